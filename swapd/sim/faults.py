"""Bends the world: engines that fail, die, hang or lie late, memory that is not released, clients that leave.

A fault turns the healthy answer to one order into another one that the contract between core and shell allows. Which
orders are struck is a ``Choice``: by chance (``by_chance``) or the n-th of all orders (``Nth``). Facts about a living
instance are never invented, only withheld, delayed, repeated or replaced.
"""

import enum
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

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
    FetchFailed,
    FetchWaits,
    InstanceExited,
    InstanceReady,
    InstanceUnhealthy,
    LoadFailed,
    LoadProgressed,
    RequestEnded,
    StageEntered,
    StopSignalled,
    UpstreamFailed,
    WeightsVerified,
    WeightsWarmed,
)
from swapd.core.ids import Bytes, InstanceId, Instant, RequestId, seconds
from swapd.core.reasons import FetchFailure, LoadFailure, Outcome
from swapd.sim.world import World


class Fault(enum.StrEnum):
    """One way in which an order's answer differs from the healthy one."""

    LOAD_FAILS = "load_fails"
    #: … and cannot succeed by trying again
    LOAD_FAILS_FOR_GOOD = "load_fails_for_good"
    EXITS_LOADING = "exits_loading"
    #: no sign of life after the spawn
    LOAD_STALLS = "load_stalls"
    #: progress without end
    LOAD_CRAWLS = "load_crawls"
    EXITS_READY = "exits_ready"
    UNHEALTHY_READY = "unhealthy_ready"
    #: the stop hook never returns
    HOOK_HANGS = "hook_hangs"
    IGNORES_STOP = "ignores_stop"
    #: the process ends by itself at the very moment of the order
    EXIT_CROSSES_STOP = "exit_crosses_stop"
    #: the engine reports ready although it has been told to stop
    READY_CROSSES_STOP = "ready_crosses_stop"
    HOLDS_MEMORY = "holds_memory"
    #: … for a minute only
    RELEASES_LATE = "releases_late"
    SURVIVES_KILL = "survives_kill"
    CHECK_FAILS = "check_fails"
    CHECK_FINDS_EXIT = "check_finds_exit"
    REFUSES_REQUEST = "refuses_request"
    BREAKS_REQUEST = "breaks_request"
    #: the answer never ends
    HANGS_REQUEST = "hangs_request"
    CLIENT_LEAVES = "client_leaves"
    #: each fact is reported twice, the second time a while later
    REPEATS = "repeats"
    #: an engine whose GPU has left the bus goes on without a word
    HANGS_WITHOUT_GPU = "hangs_without_gpu"
    #: the source breaks off, refuses, or sends something else than it promised
    FETCH_BREAKS = "fetch_breaks"
    FETCH_REFUSED = "fetch_refused"
    FETCH_CORRUPT = "fetch_corrupt"
    #: … takes a minute longer, the rest of it without a word
    FETCH_STALLS = "fetch_stalls"
    #: … waits for room on the disk first
    FETCH_WAITS = "fetch_waits"
    #: the copy proves to be damaged
    COPY_DAMAGED = "copy_damaged"
    #: there is not memory enough to read all of a copy
    WARMS_IN_PART = "warms_in_part"


LOAD_FAULTS = (
    Fault.LOAD_FAILS,
    Fault.LOAD_FAILS_FOR_GOOD,
    Fault.EXITS_LOADING,
    Fault.LOAD_STALLS,
    Fault.LOAD_CRAWLS,
    Fault.EXITS_READY,
    Fault.UNHEALTHY_READY,
    Fault.REPEATS,
)
STOP_FAULTS = (
    Fault.HOOK_HANGS,
    Fault.IGNORES_STOP,
    Fault.EXIT_CROSSES_STOP,
    Fault.READY_CROSSES_STOP,
    Fault.HOLDS_MEMORY,
    Fault.RELEASES_LATE,
    Fault.REPEATS,
)
KILL_FAULTS = (Fault.SURVIVES_KILL, Fault.HOLDS_MEMORY, Fault.RELEASES_LATE, Fault.REPEATS)
CHECK_FAULTS = (Fault.CHECK_FAILS, Fault.CHECK_FINDS_EXIT, Fault.REPEATS)
RELEASE_FAULTS = (Fault.HOLDS_MEMORY, Fault.RELEASES_LATE)
STRAND_FAULTS = (Fault.HANGS_WITHOUT_GPU,)
FETCH_FAULTS = (
    Fault.FETCH_BREAKS,
    Fault.FETCH_REFUSED,
    Fault.FETCH_CORRUPT,
    Fault.FETCH_STALLS,
    Fault.FETCH_WAITS,
)
SERVE_FAULTS = (Fault.REFUSES_REQUEST, Fault.BREAKS_REQUEST, Fault.HANGS_REQUEST, Fault.CLIENT_LEAVES)

Choice = Callable[[tuple[Fault, ...]], Fault | None]
"""Picks the fault that strikes the next order out of those that can, or none."""

_LATE = seconds(60)


def by_chance(chance: random.Random, rate: float, *, only: frozenset[Fault] = frozenset(Fault)) -> Choice:
    """Strike each order with this probability, with any of its possible faults among ``only``."""

    def choose(possible: tuple[Fault, ...]) -> Fault | None:
        allowed = [fault for fault in possible if fault in only]
        return chance.choice(allowed) if allowed and chance.random() < rate else None

    return choose


@dataclass(slots=True)
class Nth:
    """Strike one order only: the n-th (from 0) of those the fault is possible for."""

    fault: Fault
    number: int
    #: whether the order came that was to be struck
    struck: bool = False
    _seen: int = 0

    def __call__(self, possible: tuple[Fault, ...]) -> Fault | None:
        """Count the orders and pick the n-th."""
        if self.fault not in possible:
            return None
        self._seen += 1
        self.struck = self.struck or self._seen == self.number + 1
        return self.fault if self._seen == self.number + 1 else None


@dataclass(frozen=True, slots=True)
class FaultyWorld:
    """A world in which some answers are bent."""

    healthy: World
    choose: Choice
    #: where in time a fault falls within the healthy answer
    chance: random.Random

    def load(self, order: Start, now: Instant) -> tuple[Event, ...]:
        """Facts after a Start."""
        return self._bent(LOAD_FAULTS, order.instance, self.healthy.load(order, now))

    def check(self, order: Check, now: Instant) -> tuple[Event, ...]:
        """Facts after a Check."""
        return self._bent(CHECK_FAULTS, order.instance, self.healthy.check(order, now))

    def stop(self, order: Stop, now: Instant) -> tuple[Event, ...]:
        """Facts after a Stop."""
        return self._bent(STOP_FAULTS, order.instance, self.healthy.stop(order, now))

    def kill(self, order: Kill, now: Instant) -> tuple[Event, ...]:
        """Facts after a Kill."""
        return self._bent(KILL_FAULTS, order.instance, self.healthy.kill(order, now))

    def release(self, now: Instant) -> Instant | None:
        """When the driver has the memory free."""
        back = self.healthy.release(now)
        match self.choose(RELEASE_FAULTS):
            case Fault.HOLDS_MEMORY:
                return None
            case Fault.RELEASES_LATE:
                return Instant((back or now) + _LATE)
            case _:
                return back

    def strand(self, instance: InstanceId, now: Instant) -> tuple[Event, ...]:
        """Facts about an engine without its GPU."""
        hangs = self.choose(STRAND_FAULTS) is Fault.HANGS_WITHOUT_GPU
        return () if hangs else self.healthy.strand(instance, now)

    def fetch(self, order: FetchWeights | RefetchWeights, now: Instant) -> tuple[Event, ...]:
        """Facts after the order of a fetch."""
        facts = self.healthy.fetch(order, now)
        fault = self.choose(FETCH_FAULTS)
        at, model = self._between(now, facts[-1].at), order.model
        match fault:
            case Fault.FETCH_STALLS:
                progress = tuple(fact for fact in facts[:-1] if fact.at <= at)
                return (*progress, replace(facts[-1], at=Instant(facts[-1].at + _LATE)))
            case Fault.FETCH_WAITS:
                late = tuple(replace(fact, at=Instant(fact.at + _LATE)) for fact in facts[1:])
                return (facts[0], FetchWaits(now, model, "the disk is full", Bytes(0)), *late)
            case Fault.FETCH_BREAKS | Fault.FETCH_REFUSED | Fault.FETCH_CORRUPT:
                before = tuple(fact for fact in facts[:-1] if fact.at <= at)
                return (*before, FetchFailed(at, model, _FETCH_FAILURES[fault], f"the source: {fault.value}"))
            case _:
                return facts

    def warm(self, order: WarmWeights, now: Instant) -> tuple[Event, ...]:
        """Facts after a WarmWeights."""
        facts = self.healthy.warm(order, now)
        if self.choose((Fault.WARMS_IN_PART,)) is None:
            return facts
        return (WeightsWarmed(facts[-1].at, order.model, read=Bytes(1), present=Bytes(0), whole=False),)

    def verify(self, order: VerifyWeights, now: Instant) -> tuple[Event, ...]:
        """Facts after a VerifyWeights."""
        facts = self.healthy.verify(order, now)
        if self.choose((Fault.COPY_DAMAGED,)) is None:
            return facts
        return (WeightsVerified(facts[-1].at, order.model, intact=False, detail="a checksum differs"),)

    def serve(self, order: Grant, now: Instant) -> tuple[Event, ...]:
        """Facts after a Grant."""
        facts = self.healthy.serve(order, now)
        at = self._between(now, facts[-1].at)
        match self.choose(SERVE_FAULTS):
            case Fault.REFUSES_REQUEST:
                return (UpstreamFailed(now, order.request, order.instance),)
            case Fault.BREAKS_REQUEST:
                return (RequestEnded(at, order.request, Outcome.UPSTREAM_FAILED),)
            case Fault.CLIENT_LEAVES:
                return (RequestEnded(at, order.request, Outcome.CANCELLED),)
            case Fault.HANGS_REQUEST:
                return ()
            case _:
                return facts

    def lose(self, request: RequestId, instance: InstanceId, now: Instant) -> tuple[Event, ...]:
        """Whether a byte of the answer was out already is a matter of chance."""
        if self.chance.random() < 0.5:
            return (RequestEnded(now, request, Outcome.UPSTREAM_FAILED),)
        return self.healthy.lose(request, instance, now)

    def _bent(self, possible: tuple[Fault, ...], instance: InstanceId, facts: tuple[Event, ...]) -> tuple[Event, ...]:
        fault = self.choose(possible)
        if fault is None:
            return facts
        if fault is Fault.REPEATS:
            again = tuple(replace(fact, at=self._between(fact.at, Instant(fact.at + _LATE))) for fact in facts)
            return facts + again
        at = self._between(facts[0].at, facts[-1].at)
        before = tuple(fact for fact in facts if fact.at <= at and not isinstance(fact, InstanceReady))
        later = Instant(facts[-1].at + self.chance.randrange(_LATE))
        ending = _ENDINGS.get(fault)
        if ending is not None:
            return (*before, ending(at, instance))
        return _bend(fault, instance, facts, later)

    def _between(self, first: Instant, last: Instant) -> Instant:
        return Instant(self.chance.randint(first, last))


_FETCH_FAILURES: Mapping[Fault, FetchFailure] = {
    Fault.FETCH_BREAKS: FetchFailure.UNREACHABLE,
    Fault.FETCH_REFUSED: FetchFailure.REFUSED,
    Fault.FETCH_CORRUPT: FetchFailure.CORRUPT,
}

_ENDINGS: Mapping[Fault, Callable[[Instant, InstanceId], Event]] = {
    Fault.LOAD_FAILS: lambda at, instance: LoadFailed(at, instance, LoadFailure.WARMUP, "out of luck"),
    Fault.LOAD_FAILS_FOR_GOOD: lambda at, instance: LoadFailed(
        at, instance, LoadFailure.SPAWN, "no such file", permanent=True
    ),
    Fault.EXITS_LOADING: lambda at, instance: InstanceExited(at, instance, 1, "died loading"),
    Fault.CHECK_FAILS: lambda at, instance: InstanceUnhealthy(at, instance, "no answer"),
    Fault.CHECK_FINDS_EXIT: lambda at, instance: InstanceExited(at, instance, -9, "found dead"),
}
"""Faults that cut the healthy answer short with one other fact."""


def _bend(fault: Fault, instance: InstanceId, facts: tuple[Event, ...], later: Instant) -> tuple[Event, ...]:
    """Apply a fault that withholds, delays or adds facts."""
    last = facts[-1].at
    match fault:
        case Fault.LOAD_STALLS:
            return tuple(fact for fact in facts if isinstance(fact, StageEntered))[:1]
        case Fault.LOAD_CRAWLS:
            signs = (LoadProgressed(Instant(last + seconds(number)), instance) for number in range(0, 3600, 20))
            return (*_without(facts, InstanceReady), *signs)
        case Fault.EXITS_READY:
            return (*facts, InstanceExited(later, instance, -11, "died ready"))
        case Fault.UNHEALTHY_READY:
            return (*facts, InstanceUnhealthy(later, instance, "frozen"))
        case Fault.IGNORES_STOP:
            return tuple(fact for fact in facts if isinstance(fact, StopSignalled))
        case Fault.EXIT_CROSSES_STOP:
            return (InstanceExited(facts[0].at, instance, 0, "left by itself"), *facts)
        case Fault.READY_CROSSES_STOP:
            return (InstanceReady(facts[0].at, instance), *facts)
        case Fault.HOLDS_MEMORY:
            return _without(facts, EngineGone)
        case Fault.RELEASES_LATE:
            return (*_without(facts, EngineGone), EngineGone(Instant(last + _LATE), instance))
        case _:
            assert fault in {Fault.HOOK_HANGS, Fault.SURVIVES_KILL}, f"{fault} cuts an answer short"
            return ()


def _without(facts: tuple[Event, ...], kind: type) -> tuple[Event, ...]:
    return tuple(fact for fact in facts if not isinstance(fact, kind))
