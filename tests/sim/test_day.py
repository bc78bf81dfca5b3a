"""A day of swaps on eight NVLinked GPUs: lost and healed GPUs, late memory, foreign processes, a shaky driver.

Nothing is started into memory that is not there, no request is lost, quarantines end, and in the evening every model
is served.
"""

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from swapd.core.commands import Command, Transitioned
from swapd.core.events import Event, RequestArrived, RequestEnded
from swapd.core.ids import Duration, InstanceId, Instant, RequestId, seconds
from swapd.core.reasons import Outcome, State
from swapd.core.scheduler import Scheduler
from swapd.core.topology import DriverState
from swapd.sim.audit import Audit
from swapd.sim.driver import DriverTurns, VirtualDriver
from swapd.sim.faults import Fault, FaultyWorld, by_chance
from swapd.sim.mishaps import Mishaps
from swapd.sim.node import VirtualNode
from swapd.sim.reader import Reader
from swapd.sim.replay import Origin
from swapd.sim.workload import Zipf
from swapd.sim.world import HealthyWorld
from tests.sim.hgx import MODELS, SIZES, catalog, hgx, timings

HOUR = seconds(3600)
#: memory that comes back a minute late is beyond the release timeout; engines on a lost GPU may hang
FAULTS = frozenset({Fault.RELEASES_LATE, Fault.HANGS_WITHOUT_GPU})
NAMES = [spec.name for spec in MODELS]


@dataclass(slots=True)
class Diary:
    """What happened to requests and to leaked memory; an observer."""

    scheduler: Scheduler
    #: the laws inside the core are checked at every so many steps
    every: int
    steps: int = 0
    arrived: Counter[RequestId] = field(default_factory=Counter)
    ended: Counter[RequestId] = field(default_factory=Counter)
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    leaked: dict[InstanceId, Instant] = field(default_factory=dict)
    leaks: int = 0
    longest_leak: Duration = Duration(0)

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Note one step."""
        self.steps += 1
        if self.steps % self.every == 0:
            self.scheduler.check()
        if isinstance(event, RequestArrived):
            self.arrived[event.request] += 1
        elif isinstance(event, RequestEnded):
            self.ended[event.request] += 1
            self.outcomes[event.outcome] += 1
        for note in commands:
            if isinstance(note, Transitioned):
                self._follow(note, event.at)

    def _follow(self, note: Transitioned, at: Instant) -> None:
        if note.after is State.LEAKED:
            self.leaked[note.instance] = at
            self.leaks += 1
        elif note.before is State.LEAKED:
            self.longest_leak = max(self.longest_leak, Duration(at - self.leaked.pop(note.instance)))


def a_day(seed: int, duration: Duration, *, every: int, late: bool) -> tuple[VirtualNode, Diary]:
    """Play a day; the driver may come a minute after the daemon."""
    chance = random.Random(seed)
    driver = VirtualDriver(
        hgx(), sizes=SIZES, state=DriverState.ABSENT if late else DriverState.UP, ghosts=seed % 2 == 0
    )
    origin = Origin(driver.topology, catalog())
    scheduler = origin.scheduler()
    arrivals = Zipf(rate_per_s=0.04, duration=duration, exponent=0.7, mean_service=seconds(15)).arrivals(NAMES, chance)
    service = {arrival.request: arrival.service for arrival in arrivals}
    healthy = HealthyWorld(replace(timings(), service=service))
    diary = Diary(scheduler, every)
    node = VirtualNode(
        scheduler,
        FaultyWorld(healthy, by_chance(chance, 0.15, only=FAULTS), chance),
        observers=(Audit(driver, origin.topology, origin.catalog), diary),
        reader=Reader(driver, interval=seconds(10), latency=seconds(0.05)),
    )
    hours = duration // HOUR
    mishaps = Mishaps(
        losses=hours // 2, faults=hours // 6, foreigners=4 * hours, outages=hours // 3, mistrusts=hours // 4
    )
    node.post(*(arrival.event() for arrival in arrivals))
    node.post(*mishaps.incidents(hgx(), duration, chance))
    if late:
        node.post(DriverTurns(Instant(seconds(60)), DriverState.UP))
    node.run(Instant(duration))
    return node, diary


def evening(node: VirtualNode, diary: Diary) -> None:
    """Heal everything, ask for every model once, and demand that each is served and nothing is left over."""
    node.heal()
    node.world = HealthyWorld(timings())
    node.run(Instant(node.now + seconds(900)))
    assert node.open == {}
    assert diary.leaked == {}

    before = diary.outcomes[Outcome.SERVED]
    asked = [RequestId(10_000_000 + number) for number in range(len(NAMES))]
    for number, (request, name) in enumerate(zip(asked, NAMES, strict=True)):
        node.post(RequestArrived(Instant(node.now + seconds(20 * number)), request, name))
    node.run(Instant(node.now + seconds(3600)))
    assert diary.outcomes[Outcome.SERVED] - before == len(NAMES)
    assert node.open == {}
    assert diary.leaked == {}
    assert set(diary.arrived.values()) == set(diary.ended.values()) == {1}
    assert diary.arrived.keys() == diary.ended.keys()


@pytest.mark.parametrize(
    ("seed", "hours", "every"),
    [
        (1, 24, 25),
        (2, 12, 25),
        *(pytest.param(seed, 7 * 24, 1, marks=pytest.mark.soak) for seed in range(3, 13)),
    ],
)
def test_a_day_of_swaps_overcommits_nothing_and_loses_no_request(seed: int, hours: int, every: int) -> None:
    node, diary = a_day(seed, Duration(hours * HOUR), every=every, late=seed % 2 == 0)

    assert diary.steps > 1200 * hours
    assert diary.outcomes[Outcome.SERVED] > 100 * hours
    assert diary.leaks > hours // 4
    evening(node, diary)
    assert diary.longest_leak < seconds(600)
