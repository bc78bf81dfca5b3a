"""Makes what reaches the node from outside besides requests: operators, configurations, departures, stale facts."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from swapd.core.catalog import Catalog, Mode, ModelSpec, PolicyName
from swapd.core.events import (
    CatalogChanged,
    EngineGone,
    Event,
    InstanceExited,
    InstanceHealthy,
    InstanceReady,
    LoadOrdered,
    NodeDrainOrdered,
    NodeUndrainOrdered,
    PinOrdered,
    PrefetchOrdered,
    ProcessesGone,
    RequestEnded,
    UnloadOrdered,
)
from swapd.core.ids import Duration, InstanceId, Instant, ModelName, RequestId, seconds
from swapd.core.reasons import Outcome
from swapd.sim.timeline import CopyDeleted
from swapd.sim.workload import Arrival

#: ids of operators' orders start here
FIRST_ORDER = RequestId(1_000_000)


@dataclass(frozen=True, slots=True)
class Disturbances:
    """How many of each are strewn over the run."""

    departures: int = 0
    orders: int = 0
    drains: int = 0
    configurations: int = 0
    stale_facts: int = 0
    #: copies of weights deleted by hand, and weights that are wanted on the node
    deletions: int = 0
    prefetches: int = 0

    def events(
        self, catalog: Catalog, arrivals: Sequence[Arrival], duration: Duration, chance: random.Random
    ) -> Iterator[Event | CopyDeleted]:
        """Yield what happens, in no particular order."""
        models = sorted(catalog.models)
        ids = iter(range(FIRST_ORDER, FIRST_ORDER + self.orders + 2 * self.drains + self.prefetches))
        yield from self._of_weights(catalog, duration, chance, ids)
        for arrival in chance.sample(arrivals, min(self.departures, len(arrivals))):
            leaves = Instant(arrival.at + chance.randrange(seconds(90)))
            yield RequestEnded(leaves, arrival.request, Outcome.CANCELLED)
        for _ in range(self.orders):
            yield _order(_moment(duration, chance), RequestId(next(ids)), chance.choice(models), chance)
        for _ in range(self.drains):
            at = _moment(duration, chance)
            yield NodeDrainOrdered(
                at, RequestId(next(ids)), chance.choice((None, seconds(20))), stop_engines=chance.random() < 0.5
            )
            yield NodeUndrainOrdered(Instant(at + chance.randrange(seconds(120))), RequestId(next(ids)))
        for _ in range(self.configurations):
            yield CatalogChanged(_moment(duration, chance), changed(catalog, chance))
        for _ in range(self.stale_facts):
            yield _stale(_moment(duration, chance), chance)

    def _of_weights(
        self, catalog: Catalog, duration: Duration, chance: random.Random, ids: Iterator[int]
    ) -> Iterator[Event | CopyDeleted]:
        """Yield what happens to weights that are fetched; nothing where none are."""
        models = sorted(name for name, spec in catalog.models.items() if spec.fetched)
        for _ in range(self.deletions if models else 0):
            yield CopyDeleted(_moment(duration, chance), chance.choice(models))
        for _ in range(self.prefetches if models else 0):
            yield PrefetchOrdered(_moment(duration, chance), RequestId(next(ids)), chance.choice(models))


def changed(catalog: Catalog, chance: random.Random) -> Catalog:
    """Return the catalog with one thing changed that a user might change."""
    name = chance.choice(sorted(catalog.models))
    models = dict(catalog.models)
    settings = catalog.settings
    match chance.randrange(7):
        case 0:
            del models[name]
        case 1:
            models[name] = replace(models[name], revision=f"r{chance.randrange(1000)}")
        case 2:
            models[name] = replace(models[name], pinned=not models[name].pinned)
        case 3:
            models[name] = _tighter(models[name], chance)
        case 4:
            settings = replace(settings, protect=chance.choice((None, Duration(0), seconds(30))))
        case 5:
            settings = replace(settings, policy=chance.choice(tuple(PolicyName)))
        case _:
            settings = replace(settings, mode=chance.choice((Mode.AUTO, Mode.MANUAL)))
    return Catalog(models, settings)


def _tighter(spec: ModelSpec, chance: random.Random) -> ModelSpec:
    return replace(
        spec,
        concurrency=chance.randint(1, spec.concurrency),
        max_queue=chance.randint(1, spec.max_queue),
        max_wait=Duration(max(seconds(1), spec.max_wait // 2)),
    )


def _order(at: Instant, request: RequestId, model: ModelName, chance: random.Random) -> Event:
    match chance.randrange(4):
        case 0:
            return LoadOrdered(at, request, model)
        case 1:
            return UnloadOrdered(at, request, model, chance.choice((None, seconds(5))))
        case _:
            return PinOrdered(at, request, model, pinned=chance.random() < 0.25)


def _stale(at: Instant, chance: random.Random) -> Event:
    """Make a fact about an instance from before this run."""
    instance = InstanceId(-chance.randint(1, 99))
    kind = chance.choice((InstanceReady, InstanceHealthy, ProcessesGone, EngineGone, None))
    return InstanceExited(at, instance, None) if kind is None else kind(at, instance)


def _moment(duration: Duration, chance: random.Random) -> Instant:
    return Instant(chance.randrange(duration))
