"""Builds simulated nodes for the tests: small, scarce, watched by the oracle after every step."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from swapd.core.catalog import Footprint, ModelSpec, SchedulingSettings
from swapd.core.commands import Command
from swapd.core.events import CatalogChanged, Event, NodeDrainOrdered, NodeUndrainOrdered, RequestEnded
from swapd.core.ids import SECOND, Duration, Instant, ModelName, RequestId, seconds
from swapd.core.scheduler import Scheduler
from swapd.sim.disturb import FIRST_ORDER, Disturbances
from swapd.sim.driver import ListsTurn
from swapd.sim.faults import Choice, FaultyWorld, by_chance
from swapd.sim.mishaps import Mishaps
from swapd.sim.node import VirtualNode
from swapd.sim.reader import Reader
from swapd.sim.replay import Origin
from swapd.sim.report import Counter, Report
from swapd.sim.workload import Arrival, Zipf
from swapd.sim.world import HealthyWorld, Timings
from tests.properties.nodes import GPU_BYTES, PLACES, Place, catalog, topology
from tests.properties.watch import Watch

#: how long the faults last
DURATION = seconds(300)

TIMINGS = Timings(
    default_load=seconds(8),
    stop=seconds(1),
    release=seconds(1),
    default_service=seconds(3),
    fetch=seconds(6),
    read=seconds(2),
)


@dataclass(slots=True)
class Rig:
    """A node under watch."""

    origin: Origin
    scheduler: Scheduler
    watch: Watch
    node: VirtualNode

    def heal(self) -> None:
        """End all faults and take back whatever was configured or ordered."""
        self.node.world = HealthyWorld(TIMINGS)
        if self.node.reader is not None:
            self.node.reader.driver.befall(ListsTurn(self.node.now, trusted=True))
        self.node.heal()
        self.node.post(
            CatalogChanged(self.node.now, self.origin.catalog),
            NodeUndrainOrdered(self.node.now, RequestId(FIRST_ORDER - 1)),
        )

    def come_to_rest(self) -> None:
        """Demand that a healthy node keeps every promise, and that nothing stays booked once all is unloaded."""
        self.node.run(Instant(self.node.now + seconds(400)))
        assert self.node.open == {}
        self.watch.liveness()
        self.node.post(NodeDrainOrdered(self.node.now, RequestId(FIRST_ORDER - 2), None))
        self.node.run(Instant(self.node.now + seconds(100)))
        view = self.scheduler.view()
        assert self.node.alive == {}
        assert (view.instances, view.reservation, view.loads_running) == ((), None, 0)
        assert [gpu.reserved_bytes for gpu in view.gpus] == [0] * len(view.gpus)
        assert [(m.in_flight, sum(m.queued.values())) for m in view.models] == [(0, 0)] * len(view.models)
        self.watch.liveness()
        self.watch.replay_is_exact()


def rig(place: Place, choose: Choice, chance: random.Random, **reading: Duration) -> Rig:
    """Put a node together whose world is bent by a choice of faults; ``reading``: times of a ``Reader``."""
    origin, driver = place.origin, place.driver()
    scheduler = origin.scheduler()
    watch = Watch(origin, scheduler, driver)
    world = FaultyWorld(HealthyWorld(TIMINGS), choose, chance)
    reader = Reader(driver, **reading) if driver is not None else None
    return Rig(origin, scheduler, watch, VirtualNode(scheduler, world, observers=(watch,), reader=reader))


def stormy(seed: int) -> Rig:
    """Run one seed through its time of faults: engines, memory, clients, operators and configurations."""
    chance = random.Random(seed)
    place = PLACES[seed % len(PLACES)]
    origin = place.origin
    slow = Duration(seed % 3 * SECOND)
    built = rig(place, by_chance(chance, chance.choice((0.05, 0.2, 0.5))), chance, latency=slow, notice=slow)
    names = sorted(origin.catalog.models)
    arrivals = Zipf(rate_per_s=chance.choice((0.1, 0.4)), duration=DURATION).arrivals(names, chance)
    trouble = Disturbances(
        departures=len(arrivals) // 4, orders=6, drains=1, configurations=5, stale_facts=10, deletions=5, prefetches=3
    )
    built.node.post(*(arrival.event() for arrival in arrivals))
    built.node.post(*trouble.events(origin.catalog, arrivals, DURATION, chance))
    if built.node.reader is not None:
        mishaps = Mishaps(losses=3, faults=2, foreigners=8, outages=2, mistrusts=2, longest=seconds(60))
        built.node.post(*mishaps.incidents(origin.topology, DURATION, chance))
    built.node.run(Instant(DURATION))
    return built


def one_slot(*names: str, settings: SchedulingSettings | None = None) -> Origin:
    """Return a node with a single GPU that holds one of these models at a time."""
    return Origin(topology(1), catalog(*(plain(name) for name in names), settings=settings or SchedulingSettings()))


def plain(name: str) -> ModelSpec:
    """Return a model that takes one GPU and has the limits a user gets by default."""
    return ModelSpec(ModelName(name), Footprint(1, GPU_BYTES))


@dataclass(slots=True)
class Played:
    """A scenario that has run."""

    node: VirtualNode
    scheduler: Scheduler
    counter: Counter
    #: empty after a brief run
    steps: list[tuple[Event, tuple[Command, ...]]] = field(default_factory=list)
    #: instances with memory, and requests, at the worst moment
    most_alive: int = 0
    most_open: int = 0

    @property
    def report(self) -> Report:
        """What came out."""
        return self.counter.report()

    @property
    def commands(self) -> list[tuple[Instant, Command]]:
        """Every command with the time it was given."""
        return [(event.at, command) for event, commands in self.steps for command in commands]


def play(
    origin: Origin,
    arrivals: Sequence[Arrival],
    timings: Timings,
    *,
    until: Instant,
    follow: Callable[[RequestEnded], Event | None] = lambda _: None,
    brief: bool = False,
) -> Played:
    """Run a scenario without faults; ``follow`` makes the next request of a client whose last one has ended.

    A ``brief`` run keeps no steps, and checks the core at its end only.
    """
    scheduler = origin.scheduler()
    counter = Counter(gpus=len(origin.topology.gpus), footprints=origin.catalog.models)

    def after(event: Event, commands: tuple[Command, ...]) -> None:
        if not brief:
            scheduler.check()
            played.steps.append((event, commands))
        played.most_alive = max(played.most_alive, len(node.alive))
        played.most_open = max(played.most_open, len(node.open))
        if isinstance(event, RequestEnded) and (following := follow(event)):
            node.post(following)

    node = VirtualNode(scheduler, HealthyWorld(timings), observers=(counter, after))
    played = Played(node, scheduler, counter)
    node.post(*(arrival.event() for arrival in arrivals))
    node.run(until)
    scheduler.check()
    return played
