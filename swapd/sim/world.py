"""Says how a healthy world answers the core's orders: which facts come back, and when.

An answer is a tuple of facts whose ``at`` lies in the future. Nothing here knows a clock or chance; the wrappers in
``faults.py`` bend these answers, and the virtual node delivers them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from swapd.core.commands import (
    Check,
    FetchWeights,
    Grant,
    Kill,
    RefetchWeights,
    Start,
    Stop,
    VerifyWeights,
    WarmWeights,
)
from swapd.core.events import (
    EngineGone,
    Event,
    FetchProgressed,
    FetchStarted,
    InstanceExited,
    InstanceHealthy,
    InstanceReady,
    LoadProgressed,
    ProcessesGone,
    RequestEnded,
    StageEntered,
    StopSignalled,
    UpstreamFailed,
    WeightsFetched,
    WeightsVerified,
    WeightsWarmed,
)
from swapd.core.ids import MILLISECOND, SECOND, Bytes, Duration, InstanceId, Instant, ModelName, RequestId, seconds
from swapd.core.reasons import Outcome, Stage


class World(Protocol):
    """Answers each order with the facts that will follow, earliest first."""

    def load(self, order: Start, now: Instant) -> tuple[Event, ...]:
        """Facts after a Start."""
        ...

    def check(self, order: Check, now: Instant) -> tuple[Event, ...]:
        """Facts after a Check."""
        ...

    def stop(self, order: Stop, now: Instant) -> tuple[Event, ...]:
        """Facts after a Stop."""
        ...

    def kill(self, order: Kill, now: Instant) -> tuple[Event, ...]:
        """Facts after a Kill."""
        ...

    def release(self, now: Instant) -> Instant | None:
        """When the driver gives back the memory of an engine whose processes have ended now; ``None``: never."""
        ...

    def strand(self, instance: InstanceId, now: Instant) -> tuple[Event, ...]:
        """Facts about a running engine one of whose GPUs has left the bus."""
        ...

    def fetch(self, order: FetchWeights | RefetchWeights, now: Instant) -> tuple[Event, ...]:
        """Facts after the order of a fetch."""
        ...

    def warm(self, order: WarmWeights, now: Instant) -> tuple[Event, ...]:
        """Facts after a WarmWeights."""
        ...

    def verify(self, order: VerifyWeights, now: Instant) -> tuple[Event, ...]:
        """Facts after a VerifyWeights."""
        ...

    def serve(self, order: Grant, now: Instant) -> tuple[Event, ...]:
        """Facts after a Grant: how the request ends."""
        ...

    def lose(self, request: RequestId, instance: InstanceId, now: Instant) -> tuple[Event, ...]:
        """Facts about a granted request whose engine has just died."""
        ...


@dataclass(frozen=True, slots=True)
class Timings:
    """How long things take on the virtual node."""

    #: from Start to ready, by model
    load: Mapping[ModelName, Duration] = field(default_factory=dict)
    #: … of a model not named there
    default_load: Duration = Duration(40 * SECOND)
    #: from Stop to the end of the processes
    stop: Duration = seconds(2)
    #: from the end of the processes until nothing of the engine is left; without a driver that frees the memory
    release: Duration = seconds(1)
    #: from the end of the processes until the driver has the memory free
    give_back: Duration = seconds(1)
    #: from Check to its answer
    check: Duration = Duration(5 * MILLISECOND)
    #: from the order of a fetch until the copy is complete, and the size of a copy
    fetch: Duration = seconds(30)
    copy_bytes: Bytes = Bytes(1 << 30)
    #: from the order to read a copy into the page cache, or to verify it, to its answer
    read: Duration = seconds(4)
    #: from Grant to the end of the answer, by request
    service: Mapping[RequestId, Duration] = field(default_factory=dict)
    #: … of a request not named there
    default_service: Duration = seconds(1)
    #: the loading engine writes to its log this often
    progress: Duration = seconds(5)


@dataclass(frozen=True, slots=True)
class HealthyWorld:
    """Every order is carried out in the time the table gives."""

    timings: Timings

    def load(self, order: Start, now: Instant) -> tuple[Event, ...]:
        """Spawn, load, warm up, ready; a sign of progress at regular times on the way."""
        duration = self.load_time(order)
        ready_at = Instant(now + duration)
        return (
            StageEntered(now, order.instance, Stage.SPAWN),
            StageEntered(Instant(now + duration // 100), order.instance, Stage.LOAD),
            *self._progress(order, now, ready_at),
            StageEntered(Instant(ready_at - duration // 100), order.instance, Stage.WARMUP),
            InstanceReady(ready_at, order.instance),
        )

    def load_time(self, order: Start) -> Duration:
        """Return the time from the start to ready."""
        return self.timings.load.get(order.spec.name, self.timings.default_load)

    def check(self, order: Check, now: Instant) -> tuple[Event, ...]:
        """Find the instance alive."""
        return (InstanceHealthy(Instant(now + self.timings.check), order.instance),)

    def stop(self, order: Stop, now: Instant) -> tuple[Event, ...]:
        """Send the signal at once; then the processes end, then the memory is free."""
        gone_at = Instant(now + self.timings.stop)
        return (
            StopSignalled(now, order.instance),
            ProcessesGone(gone_at, order.instance),
            EngineGone(Instant(gone_at + self.timings.release), order.instance),
        )

    def kill(self, order: Kill, now: Instant) -> tuple[Event, ...]:
        """End the processes at once and release the memory a little later."""
        return (
            ProcessesGone(now, order.instance),
            EngineGone(Instant(now + self.timings.release), order.instance),
        )

    def release(self, now: Instant) -> Instant | None:
        """Give the memory back a little later."""
        return Instant(now + self.timings.give_back)

    def strand(self, instance: InstanceId, now: Instant) -> tuple[Event, ...]:
        """End the engine at its next call to the GPU."""
        return (InstanceExited(Instant(now + SECOND), instance, -6, "a GPU has fallen off the bus"),)

    def fetch(self, order: FetchWeights | RefetchWeights, now: Instant) -> tuple[Event, ...]:
        """Begin at once, tell how it gets on every second, end in the time of a fetch."""
        model, size, took = order.model, self.timings.copy_bytes, self.timings.fetch
        rate = size * SECOND / took
        progress = (
            FetchProgressed(Instant(now + passed), model, Bytes(size * passed // took), size, rate)
            for passed in range(SECOND, took, SECOND)
        )
        return (FetchStarted(now, model), *progress, WeightsFetched(Instant(now + took), model, size, took))

    def warm(self, order: WarmWeights, now: Instant) -> tuple[Event, ...]:
        """Read all of the copy."""
        end, size = Instant(now + self.timings.read), self.timings.copy_bytes
        return (WeightsWarmed(end, order.model, read=size, present=Bytes(0), whole=True),)

    def verify(self, order: VerifyWeights, now: Instant) -> tuple[Event, ...]:
        """Find the copy intact."""
        return (WeightsVerified(Instant(now + self.timings.read), order.model, intact=True),)

    def serve(self, order: Grant, now: Instant) -> tuple[Event, ...]:
        """End the answer after the request's service time."""
        duration = self.timings.service.get(order.request, self.timings.default_service)
        return (RequestEnded(Instant(now + duration), order.request, Outcome.SERVED),)

    def lose(self, request: RequestId, instance: InstanceId, now: Instant) -> tuple[Event, ...]:
        """Report that no byte of the answer has been sent."""
        return (UpstreamFailed(now, request, instance),)

    def _progress(self, order: Start, now: Instant, ready_at: Instant) -> Iterator[Event]:
        """Yield signs of progress, at most a hundred unless that would be too few to count as such."""
        rarely = min((ready_at - now) // 100, order.spec.load_stall // 2)
        for at in range(now + self.timings.progress, ready_at, max(self.timings.progress, rarely)):
            yield LoadProgressed(Instant(at), order.instance)
