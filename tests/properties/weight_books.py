"""Keeps the suite's own books on weights, and judges the orders about them. Never reads the core."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from swapd.core.catalog import Mode, ModelSpec
from swapd.core.commands import (
    CancelFetch,
    Command,
    FetchEnded,
    FetchWeights,
    RefetchWeights,
    Start,
    StopWarming,
    VerifyWeights,
    WarmWeights,
)
from swapd.core.events import (
    CatalogChanged,
    Event,
    FetchFailed,
    FetchStarted,
    WeightsCached,
    WeightsFetched,
    WeightsVerified,
    WeightsWarmed,
)
from swapd.core.ids import Bytes, Instant, ModelName
from swapd.core.reasons import State
from tests.properties.broken import broken

if TYPE_CHECKING:
    from tests.properties.books import Books

WeightEvent = WeightsCached | FetchStarted | WeightsFetched | FetchFailed | WeightsWarmed | WeightsVerified


@dataclass(slots=True)
class Fetch:
    """A fetch that was ordered and not answered."""

    ahead: bool
    cancelled: bool = False
    begun: bool = False


@dataclass
class WeightBooks:
    """What an observer without insight knows of the weights of one node."""

    cached: dict[ModelName, Bytes] = field(default_factory=dict)
    fetches: dict[ModelName, Fetch] = field(default_factory=dict)
    #: readings and verifications that are not answered; of the readings, whether they were told to end
    readings: dict[ModelName, bool] = field(default_factory=dict)
    checks: set[ModelName] = field(default_factory=set)
    #: models whose copy was found to be damaged after a failed load, and not fetched anew yet
    damaged: set[ModelName] = field(default_factory=set)
    #: models with a copy that came, or was found intact, since its last success
    proven: set[ModelName] = field(default_factory=set)
    #: refused for their ETA: one fetch for the next one is allowed
    refused_for_eta: set[ModelName] = field(default_factory=set)
    #: fetches that have ended in this step
    ended: list[ModelName] = field(default_factory=list)
    #: the configuration changes in this step
    changing: bool = False

    def begin_step(self, event: Event) -> None:
        """Forget what belonged to the last step."""
        self.ended.clear()
        self.changing = isinstance(event, CatalogChanged)

    def missing(self, spec: ModelSpec) -> bool:
        """Say whether a model cannot start for want of its weights."""
        return spec.fetched and (spec.name not in self.cached or spec.name in self.checks)

    def hear(self, books: "Books", event: WeightEvent) -> None:
        """Enter one fact."""
        match event:
            case WeightsCached():
                self.cached = dict(event.cached)
                self.proven.intersection_update(self.cached)
                self.refused_for_eta.difference_update(self.cached)
            case FetchStarted():
                if event.model in self.fetches:
                    self.fetches[event.model].begun = True
            case WeightsFetched():
                self._over(event.model)
                if event.model in self.cached:
                    self.proven.add(event.model)
            case FetchFailed():
                fetch = self._over(event.model)
                self.refused_for_eta.discard(event.model)
                if fetch is not None and not fetch.cancelled:
                    books.failed_at[event.model] = books.now
            case WeightsWarmed():
                self.readings.pop(event.model, None)
            case WeightsVerified():
                if event.model in self.checks and not event.intact:
                    self.damaged.add(event.model)
                    books.failed_at.pop(event.model, None)
                self.checks.discard(event.model)
                if event.intact:
                    self.proven.add(event.model)

    def _over(self, model: ModelName) -> Fetch | None:
        if model in self.fetches:
            self.ended.append(model)
        return self.fetches.pop(model, None)

    def judge(self, books: "Books", order: Command) -> None:
        """Judge one order or note about weights."""
        match order:
            case FetchWeights():
                self._fetch(books, order)
            case RefetchWeights():
                if order.model not in self.damaged or order.model in self.fetches or books.draining:
                    broken("one_fetch_for_each_model", f"{order}: it is not known to be damaged, or is fetched already")
                self.damaged.discard(order.model)
                self.fetches[order.model] = Fetch(ahead=False)
            case CancelFetch():
                fetch = self.fetches.get(order.model)
                if fetch is None or fetch.cancelled or not (self.changing or books.draining):
                    broken("one_fetch_for_each_model", f"{order}: {fetch} need not end")
                fetch.cancelled = True
            case WarmWeights():
                self._warm(books, order)
            case StopWarming():
                if self.readings.get(order.model, True):
                    broken("commands_bounded", f"{order}: no reading, or told before")
                self.readings[order.model] = True
            case VerifyWeights():
                self._verify(books, order)
            case FetchEnded():
                if order.model not in self.ended:
                    broken("commands_bounded", f"{order}: no fetch has ended")
                self.ended.remove(order.model)

    def started(self, order: Start) -> None:
        """Judge the start of an engine."""
        if self.missing(order.spec):
            broken("never_starts_uncached", f"{order}: in the cache lie {sorted(self.cached)}")

    def succeeded(self, model: ModelName) -> None:
        """Note that an engine has loaded its weights: damage from now on is possible again."""
        self.proven.discard(model)

    def _fetch(self, books: "Books", order: FetchWeights) -> None:
        spec, model = books.catalog.models.get(order.model), order.model
        if spec is None or not spec.fetched or model in self.cached or model in self.checks or books.draining:
            broken("nothing_is_fetched_needlessly", f"{order}")
        under_way = self.fetches.get(model)
        if under_way is not None and (under_way.cancelled or order.ahead or not under_way.ahead):
            broken("one_fetch_for_each_model", f"{order}: {under_way} is under way")
        manual = books.catalog.settings.mode is Mode.MANUAL
        waited_for = bool(books.load_orders(model)) or (bool(books.waiting(model)) and not manual)
        wanted = waited_for or bool(prefetches(books, model)) or model in books.wishes or outdated(books, model)
        wanted = wanted or (not manual and (books.pinned(model) or model in self.refused_for_eta))
        if not (wanted if order.ahead else waited_for):
            broken("nothing_is_fetched_needlessly", f"{order}: nobody wants it")
        cooling = books.cooling_until.get(model, Instant(0)) > books.now
        if cooling and not books.load_orders(model) and not prefetches(books, model):
            broken("cool_down", f"{order}: it cools down until {books.cooling_until[model]}")
        if under_way is None:
            self.fetches[model] = Fetch(order.ahead)
        else:
            under_way.ahead = False

    def _warm(self, books: "Books", order: WarmWeights) -> None:
        spec = books.catalog.models.get(order.model)
        here = spec is not None and (spec.local_weights or (spec.fetched and not self.missing(spec)))
        booked = any(i.model == order.model and i.state is State.RESERVED for i in books.instances.values())
        if not here or not booked or order.model in self.readings:
            broken("commands_bounded", f"{order}: nothing to read, nothing booked, or under way")
        self.readings[order.model] = False

    def _verify(self, books: "Books", order: VerifyWeights) -> None:
        failed = books.failed_at.get(order.model) == books.now
        if order.model not in self.cached or order.model in self.checks or order.model in self.proven or not failed:
            broken("commands_bounded", f"{order}: there is no doubt about {order.model}")
        self.checks.add(order.model)


def prefetches(books: "Books", model: ModelName) -> list[object]:
    """Return the operators' unanswered orders to have a model's weights here."""
    return [o for o in books.orders.values() if o.model == model and o.kind == "prefetch" and not o.answered]


def outdated(books: "Books", model: ModelName) -> bool:
    """Say whether a running instance no longer matches the configuration of its model."""
    spec = books.catalog.models[model]
    running = (i for i in books.instances.values() if i.model == model and i.spec is not None)
    return any(i.spec is not None and i.spec.revision != spec.revision for i in running)


def held(books: "Books", model: ModelName) -> bool:
    """Say whether a model's copy has to stay."""
    weights = books.weights
    waits = bool(books.waiting(model)) or bool(books.load_orders(model))
    alive = any(i.model == model for i in books.instances.values())
    return waits or alive or model in weights.fetches or model in weights.checks
