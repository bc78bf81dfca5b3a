"""Plays the weight cache of the virtual node: what lies in it, and what comes of fetches, readings, verifications.

Rules: a change of what lies in the cache is told before the answer that rests on it. Each order is answered once; after
the order to end a fetch or a reading nothing more is heard of it than that it ended. Nothing here decides.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from swapd.core.catalog import Catalog
from swapd.core.commands import (
    CancelFetch,
    FetchWeights,
    KeepWeights,
    RefetchWeights,
    StopWarming,
    VerifyWeights,
    WarmWeights,
    WeightOrder,
)
from swapd.core.events import Event, FetchFailed, WeightsCached, WeightsFetched, WeightsVerified, WeightsWarmed
from swapd.core.ids import Bytes, Instant, ModelName
from swapd.core.reasons import FetchFailure
from swapd.sim.timeline import CopyDeleted, Scheduled, Timeline, drop
from swapd.sim.world import World


def at_hand(catalog: Catalog) -> Catalog:
    """Return a catalogue whose models have their weights on the node already."""
    models = {name: replace(spec, fetched=False, local_weights=False) for name, spec in catalog.models.items()}
    return replace(catalog, models=models)


class Shelf:
    """The copies of one node, and the orders about them that are not answered."""

    def __init__(self, ahead: Timeline) -> None:
        self.cached: dict[ModelName, Bytes] = {}
        self._ahead = ahead
        self._fetches: dict[ModelName, list[Scheduled]] = {}
        self._readings: dict[ModelName, list[Scheduled]] = {}

    def carry_out(self, order: WeightOrder, world: World, now: Instant) -> None:
        """Let what an order leads to happen at its time."""
        match order:
            case FetchWeights():
                if order.model not in self._fetches:
                    self._fetches[order.model] = self._schedule(world.fetch(order, now))
            case RefetchWeights():
                self._ahead.schedule(self._without(order.model, now))
                self._fetches[order.model] = self._schedule(world.fetch(order, now))
            case CancelFetch():
                failed = FetchFailed(now, order.model, FetchFailure.CANCELLED, "it was cancelled")
                self._cut_short(self._fetches, failed)
            case WarmWeights():
                self._readings[order.model] = self._schedule(world.warm(order, now))
            case StopWarming():
                self._cut_short(self._readings, WeightsWarmed(now, order.model, Bytes(0), Bytes(0), whole=False))
            case VerifyWeights():
                self._schedule(world.verify(order, now))
            case KeepWeights():
                pass
            case _:
                assert_never(order)

    def told(self, happening: Event | CopyDeleted) -> Iterator[Event]:
        """Yield what the core hears when something happens: a change of the cache goes before what rests on it."""
        match happening:
            case CopyDeleted():
                yield self._without(happening.model, happening.at)
                return
            case WeightsFetched():
                del self._fetches[happening.model]
                self.cached[happening.model] = happening.fetched
                yield WeightsCached(happening.at, dict(self.cached))
            case FetchFailed():
                del self._fetches[happening.model]
            case WeightsVerified() if not happening.intact:
                yield self._without(happening.model, happening.at)
            case WeightsWarmed():
                del self._readings[happening.model]
            case _:
                pass
        yield happening

    def _schedule(self, facts: tuple[Event, ...]) -> list[Scheduled]:
        return [self._ahead.schedule(fact) for fact in facts]

    def _cut_short(self, jobs: dict[ModelName, list[Scheduled]], answer: FetchFailed | WeightsWarmed) -> None:
        """Answer an order now, unless it has just been answered."""
        if answer.model in jobs:
            drop(jobs[answer.model])
            jobs[answer.model] = self._schedule((answer,))

    def _without(self, model: ModelName, now: Instant) -> WeightsCached:
        self.cached.pop(model, None)
        return WeightsCached(now, dict(self.cached))
