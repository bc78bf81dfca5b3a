"""Plays one trace on one node under several rules, and puts the outcomes side by side.

Rules that hold here:

* Every row sees the same requests on the same node; only what the row names is different.
* The GPUs are virtual, however the topology was found: nobody else is on them, and their memory is what they have.
* With a seed each load takes up to 15 % more or less than listed; without, exactly what is listed.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from typing_extensions import override

from swapd.core.accounts import HOUR_S
from swapd.core.catalog import Catalog, ModelSpec, PolicyName
from swapd.core.commands import Start
from swapd.core.ids import SECOND, Duration, Instant, ModelName
from swapd.core.policies import EvictionPolicy
from swapd.core.tiers import WEEK_HOURS, Hour
from swapd.core.topology import NodeTopology
from swapd.sim.clairvoyant import Clairvoyant
from swapd.sim.node import Observer
from swapd.sim.occupancy import Occupancy, Waste
from swapd.sim.report import Report
from swapd.sim.run import Setup, simulate
from swapd.sim.workload import Arrival
from swapd.sim.world import HealthyWorld, Timings

CLAIRVOYANT: Final = "clairvoyant"
POLICIES: Final = (*(policy.value for policy in PolicyName), CLAIRVOYANT)
#: a load takes up to this share more or less than listed, with a seed
SPREAD: Final = 0.15


@dataclass(frozen=True, slots=True)
class Rules:
    """What one row tries."""

    policy: str = PolicyName.GDSF.value
    #: ``None``: auto
    protect: Duration | None = None

    @property
    def name(self) -> str:
        """How a row is called."""
        return self.policy if self.protect is None else f"{self.policy}, protect {self.protect / SECOND:g} s"


@dataclass(frozen=True, slots=True)
class Study:
    """Node, models and requests."""

    topology: NodeTopology
    catalog: Catalog
    arrivals: Sequence[Arrival]
    #: of the GPUs a model is given, how many it makes use of; one that is not named uses all
    needs: Mapping[ModelName, int] = field(default_factory=dict)
    #: how long things take besides loads and requests
    timings: Timings = field(default_factory=Timings)

    def hours(self) -> Iterator[tuple[ModelName, list[Hour]]]:
        """Yield what is asked of each model, hour by hour, in the last week before the last request."""
        begin = self.arrivals[0].at if self.arrivals else Instant(0)
        end_s = (self.arrivals[-1].at - begin) / SECOND if self.arrivals else 0.0
        last = int(end_s // HOUR_S)
        first = max(0, last + 1 - WEEK_HOURS)
        counts = {name: [0] * (last + 1 - first) for name in self.catalog.models}
        for arrival in self.arrivals:
            hour = int((arrival.at - begin) // (HOUR_S * SECOND)) - first
            if hour >= 0:
                counts[arrival.model][hour] += 1
        rest = end_s - last * HOUR_S
        for name, found in counts.items():
            *whole, broken = found
            yield name, [*(Hour(count) for count in whole), Hour(broken, rest)]

    def pinning(self, names: Iterable[ModelName]) -> "Study":
        """Return the study with these models pinned."""
        wanted = set(names)
        models = {
            name: replace(spec, pinned=True) if name in wanted else spec for name, spec in self.catalog.models.items()
        }
        return replace(self, catalog=replace(self.catalog, models=models))

    def without(self, names: Iterable[ModelName]) -> "Study":
        """Return the study with these models and their requests gone elsewhere."""
        gone = set(names)
        models = {name: spec for name, spec in self.catalog.models.items() if name not in gone}
        arrivals = [arrival for arrival in self.arrivals if arrival.model not in gone]
        return replace(self, catalog=replace(self.catalog, models=models), arrivals=arrivals)

    def rounded_up(self) -> "Study":
        """Return the study with every number of GPUs rounded up to a power of two; what is needed stays the same."""
        needs = {name: self.needs.get(name, spec.footprint.gpus) for name, spec in self.catalog.models.items()}
        models = {name: _rounded_up(spec) for name, spec in self.catalog.models.items()}
        return replace(self, catalog=replace(self.catalog, models=models), needs=needs)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one row."""

    report: Report
    waste: Waste


@dataclass(frozen=True, slots=True)
class UnevenWorld(HealthyWorld):
    """A healthy world in which no load takes as long as the last one."""

    chance: random.Random

    @override
    def load_time(self, order: Start) -> Duration:
        # not super(): a slotted dataclass is another class than the one its methods were made in
        usual = HealthyWorld.load_time(self, order)
        return Duration(round(usual * self.chance.uniform(1 - SPREAD, 1 + SPREAD)))


def play(study: Study, rules: Rules, *, seed: int | None = None, observers: Iterable[Observer] = ()) -> Outcome:
    """Play the trace under these rules."""
    settings = replace(study.catalog.settings, protect=rules.protect)
    policy: EvictionPolicy | None = None
    if rules.policy == CLAIRVOYANT:
        policy = Clairvoyant(study.arrivals)
    else:
        settings = replace(settings, policy=PolicyName(rules.policy))
    catalog = replace(study.catalog, settings=settings)
    setup = Setup(virtual(study.topology), catalog, study.timings, policy=policy)
    world = setup.healthy(study.arrivals)
    if seed is not None:
        world = UnevenWorld(world.timings, random.Random(seed))  # noqa: S311 - a run that can be repeated
    occupancy = Occupancy(len(study.topology.gpus), study.needs)
    report = simulate(setup, study.arrivals, world=world, observers=(occupancy, *observers))
    return Outcome(report, occupancy.waste())


def virtual(topology: NodeTopology) -> NodeTopology:
    """Return a node of the same wiring whose memory nobody measures."""
    return replace(topology, gpus=tuple(replace(gpu, measured=False) for gpu in topology.gpus))


def _rounded_up(spec: ModelSpec) -> ModelSpec:
    gpus = 1 << (spec.footprint.gpus - 1).bit_length()
    return replace(spec, footprint=replace(spec.footprint, gpus=gpus))
