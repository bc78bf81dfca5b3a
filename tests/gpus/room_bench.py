"""Drives the room over the fake of NVML, and waits for facts and rounds instead of for time.

    async with bench(tmp_path, "03") as room:
        await room.up()
        room.library.faults.lose(room.gpus[3])
        await room.health(3, GpuHealth.LOST)

Polls come a millisecond apart and deadlines are long, so that nothing is late unless a test makes it so. Leaving the
block closes the room and asserts that NVML is shut down as often as it was begun, all by one thread.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from swapd.aio.clock import monotonic_now
from swapd.aio.supervise import Tasks
from swapd.core.events import Event, GpuMemoryRead, TopologyChanged
from swapd.core.ids import MILLISECOND, SECOND, Duration, InstanceId, Instant
from swapd.core.topology import DriverState, GpuHealth, NodeTopology
from swapd.gpus.fake import FakeLibrary
from swapd.gpus.fake_gpu import FakeGpu, Product, gpus_of
from swapd.gpus.fake_sysfs import write_sysfs
from swapd.gpus.fixture import parse_matrix
from swapd.gpus.health import Patience
from swapd.gpus.room import Gpus
from swapd.gpus.settings import GpuSettings
from tests.fakes.engine_bench import until
from tests.gpus.nodes import fixture

E = TypeVar("E")

PATIENCE = Patience(bad=3, clean=4)
LONG = Duration(3_600 * SECOND)
SOON = Duration(20 * MILLISECOND)


def quick(root: Path, **changes: Any) -> GpuSettings:
    """Return settings under which a poll follows the other and nothing else happens by itself."""
    return GpuSettings(
        **{
            "host_root": root,
            "poll_period": MILLISECOND,
            "discovery_period": LONG,
            "hurry": MILLISECOND,
            "poll_deadline": LONG,
            "discovery_deadline": LONG,
            "event_wait": Duration(10 * MILLISECOND),
            "retry_first": MILLISECOND,
            "retry_cap": Duration(4 * MILLISECOND),
            "patience": PATIENCE,
            **changes,
        }
    )


@dataclass(slots=True)
class Bench:
    """One room, its fake, and everything it has reported."""

    gpus: list[FakeGpu]
    library: FakeLibrary
    room: Gpus = field(init=False)
    facts: list[Event] = field(default_factory=list)
    #: errors of tasks; must stay empty
    errors: list[tuple[str, BaseException]] = field(default_factory=list)
    #: numbers of GPUs that were reported as the most ever seen
    seen: list[int] = field(default_factory=list)
    #: a call hangs beyond the end: NVML is not shut down
    hangs: bool = False

    def post(self, event: Event) -> None:
        assert not self.facts or event.at >= self.facts[-1].at, "time went back"
        self.facts.append(event)

    def of(self, kind: type[E]) -> list[E]:
        """Return the facts of a kind so far."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def topology(self) -> NodeTopology:
        return self.room.topology

    @property
    def states(self) -> list[DriverState]:
        """Return the states of the driver that were reported, without repetitions."""
        states: list[DriverState] = []
        for fact in self.of(TopologyChanged):
            if not states or states[-1] is not fact.topology.driver:
                states.append(fact.topology.driver)
        return states

    @property
    def healths(self) -> list[GpuHealth]:
        return [gpu.health for gpu in self.topology.gpus]

    async def state(self, state: DriverState) -> None:
        """Wait for a state of the driver."""
        await until(lambda: self.topology.driver is state)

    async def up(self) -> None:
        await self.state(DriverState.UP)

    async def health(self, gpu: int, health: GpuHealth) -> None:
        """Wait for the health of a GPU."""
        await until(lambda: self.topology.gpus[gpu].health is health)

    async def polls(self, count: int) -> None:
        """Wait for so many more polls."""
        enough = self.room.stats().polls + count
        await until(lambda: self.room.stats().polls >= enough)

    async def polled(self) -> None:
        """Wait for the first poll."""
        await until(lambda: self.room.stats().polls)

    async def reading(self) -> GpuMemoryRead:
        """Wait for a reading that began after this call."""
        begun = monotonic_now()
        await until(lambda: any(read.taken >= begun for read in self.of(GpuMemoryRead)))
        return next(read for read in self.of(GpuMemoryRead) if read.taken >= begun)


@contextlib.asynccontextmanager
async def bench(
    root: Path,
    text: str = "03",
    *,
    product: Product | None = None,
    owners: Callable[[], Mapping[int, InstanceId]] | None = None,
    before: Callable[[Bench], object] = lambda _: None,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """Start a room over the machine of a fixture; ``before`` may script what goes wrong from the beginning."""
    gpus = gpus_of(parse_matrix(fixture(text)), product)
    write_sysfs(root, gpus)
    room = Bench(gpus, FakeLibrary(gpus))
    tasks = Tasks(on_failure=lambda name, error: room.errors.append((name, error)))
    room.room = Gpus(
        post=room.post,
        now=lambda: Instant(monotonic_now()),
        tasks=tasks,
        settings=quick(root, **settings),
        library=room.library,
        owners=owners,
        seen=room.seen.append,
    )
    before(room)
    room.room.start()
    try:
        yield room
    finally:
        await room.room.aclose()
        await tasks.aclose()
    assert room.errors == []
    if room.hangs:
        return
    assert (room.library.inits, room.library.descriptors) == (0, ())
    assert len(room.library.owners) <= 1
    await until(lambda: event_threads() == [])


def event_threads() -> list[str]:
    """Return the threads that wait for events."""
    return [thread.name for thread in threading.enumerate() if thread.name == "nvml-events"]


@dataclass(slots=True)
class Hang:
    """Makes a call of the fake hang until it is let go."""

    began: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> None:
        self.began.set()
        assert self.go.wait(60), "nobody let the call go"

    async def until_it_hangs(self) -> None:
        await until(self.began.is_set)


@contextlib.contextmanager
def hanging(library: FakeLibrary, name: str | None, **rule: Any) -> Iterator[Hang]:
    """Let the next call of a function hang until the block is left."""
    hang = Hang()
    library.faults.block(name, hang, times=1, **rule)
    try:
        yield hang
    finally:
        hang.go.set()


async def turns(count: int = 20) -> None:
    """Let the loop go on."""
    for _ in range(count):
        await asyncio.sleep(0)
