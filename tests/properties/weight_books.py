"""Keeps the suite's own books on weights, and judges the orders about them. Never reads the core."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from swapd.core.catalog import Catalog, CopyKey, Mode, ModelSpec
from swapd.core.commands import (
    CancelFetch,
    Command,
    Evicted,
    FetchEnded,
    FetchWeights,
    RefetchWeights,
    Start,
    StopWarming,
    Transitioned,
    VerifyWeights,
    WarmWeights,
)
from swapd.core.events import (
    CatalogChanged,
    Event,
    FetchFailed,
    FetchStarted,
    FetchWaits,
    Tick,
    WeightsCached,
    WeightsFetched,
    WeightsVerified,
    WeightsWarmed,
)
from swapd.core.ids import Bytes, InstanceId, Instant, ModelName, seconds
from swapd.core.reasons import State, UnloadCause
from tests.properties.broken import broken

if TYPE_CHECKING:
    from tests.properties.books import Books

#: the first cool-down after a failure; later ones are longer
COOL_DOWN = seconds(10)

#: why a load is broken off in favour of another model
_ABORTED = re.compile("nobody waits for it and (.+) needs its room")

WeightEvent = WeightsCached | FetchStarted | WeightsFetched | FetchFailed | WeightsWarmed | WeightsVerified


@dataclass(slots=True)
class Fetch:
    """A fetch that was ordered and not answered."""

    ahead: bool
    cancelled: bool = False
    begun: bool = False
    #: bytes it lacks on the disk, as told last
    lacking: int = 0
    #: what residents that left for it have given since then, and which copies that were
    given: int = 0
    givers: set[ModelName] = field(default_factory=set)

    def goes_on(self) -> None:
        """Note that it lacks nothing."""
        self.lacking = self.given = 0
        self.givers.clear()


@dataclass
class WeightBooks:
    """What an observer without insight knows of the weights of one node."""

    cached: dict[ModelName, Bytes] = field(default_factory=dict)
    #: what the copy of each model is called that ever shared one
    copies: dict[ModelName, CopyKey] = field(default_factory=dict)
    fetches: dict[ModelName, Fetch] = field(default_factory=dict)
    #: readings and verifications that are not answered; of the readings, whether they were told to end
    readings: dict[ModelName, bool] = field(default_factory=dict)
    checks: set[ModelName] = field(default_factory=set)
    #: models whose copy was found to be damaged after a failed load, and not fetched anew yet
    damaged: set[ModelName] = field(default_factory=set)
    #: models that were changed while their copy was verified: what comes out matters to nobody
    changed: set[ModelName] = field(default_factory=set)
    #: models with a copy that came, or was found intact, since its last success
    proven: set[ModelName] = field(default_factory=set)
    #: refused for their ETA: one fetch for the next one is allowed
    refused_for_eta: set[ModelName] = field(default_factory=set)
    #: booked instances that lack nothing but their weights, and since when
    wanting: dict[InstanceId, Instant] = field(default_factory=dict)
    #: fetches that have ended in this step
    ended: list[ModelName] = field(default_factory=list)
    #: fetches that have lost their sense in this step
    pointless: dict[ModelName, Fetch] = field(default_factory=dict)
    #: the configuration changes in this step
    changing: bool = False

    def learn(self, catalog: Catalog) -> None:
        """Note who shares a copy."""
        self.copies |= {name: spec.copy for name, spec in catalog.models.items() if spec.copy}

    def copy_of(self, model: ModelName) -> CopyKey:
        """Name the copy of a model."""
        return self.copies.get(model, CopyKey(model))

    def sharers(self, model: ModelName) -> list[ModelName]:
        """Return the models that have the copy of a model, itself included."""
        return sorted({model, *(name for name, copy in self.copies.items() if copy == self.copy_of(model))})

    def flying(self, model: ModelName) -> list[ModelName]:
        """Return the models that share the fetch of a model; whose fetch has to end shares it with nobody."""
        if model in self.fetches and self.fetches[model].cancelled:
            return [model]
        return [one for one in self.sharers(model) if one in self.fetches and not self.fetches[one].cancelled]

    def flights(self) -> list[list[ModelName]]:
        """Return which models share each of the fetches."""
        return [list(models) for models in sorted({tuple(self.flying(model)) for model in self.fetches})]

    def begin_step(self, event: Event) -> None:
        """Forget what belonged to the last step."""
        self.ended.clear()
        self.pointless.clear()
        self.changing = isinstance(event, CatalogChanged)

    def reconfigured(self, same: set[ModelName]) -> None:
        """Forget what was known of copies whose models were changed or removed; ``same``: all the others."""
        self.proven.intersection_update(same)
        self.pointless = {model: fetch for model, fetch in self.fetches.items() if model not in same}
        self.changed.update(self.checks - same)

    def missing(self, spec: ModelSpec) -> bool:
        """Say whether a model cannot start for want of its weights."""
        here = spec.name in self.cached and spec.name not in self.checks
        return spec.fetched and (not here or self.may_be_given_up(spec.name))

    def may_be_given_up(self, model: ModelName) -> bool:
        """Say whether a model may have to do without its copy, in favour of a fetch that lacks room."""
        return any(model in fetch.givers for fetch in self.fetches.values())

    def lacks_room(self, fact: FetchWaits, alive: set[ModelName]) -> None:
        """Note what a fetch lacks; only who is on its way out still counts beside that."""
        for one in self.flying(fact.model):
            fetch = self.fetches[one]
            fetch.lacking = fact.lacking
            fetch.given = self.size(fetch.givers & alive)

    def size(self, models: Iterable[ModelName]) -> int:
        """Return the size of the copies of models."""
        return sum({self.copy_of(model): self.cached.get(model, 0) for model in models}.values())

    def goes_on(self, model: ModelName) -> None:
        """Note that a fetch gets on."""
        for one in self.flying(model):
            self.fetches[one].goes_on()

    def begin(self, model: ModelName, *, ahead: bool) -> None:
        """Enter a fetch that was ordered; it may join one that lacks room."""
        lacking = max((self.fetches[one].lacking for one in self.flying(model)), default=0)
        self.fetches[model] = Fetch(ahead, lacking=lacking)

    def cancel(self, model: ModelName) -> None:
        """Enter that a fetch is to end; what was given for it is for those for whom it goes on."""
        fetch = self.fetches[model]
        heirs = [self.fetches[one] for one in self.flying(model) if one != model]
        for heir in heirs[:1]:
            heir.given += fetch.given
            heir.givers |= fetch.givers
            fetch.goes_on()
        fetch.cancelled = True

    def reloaded(self, model: ModelName) -> None:
        """Note that a model is booked: its copy is not given up, or no more."""
        for fetch in self.fetches.values():
            fetch.givers.discard(model)

    def hear(self, books: "Books", event: WeightEvent) -> None:
        """Enter one fact."""
        match event:
            case WeightsCached():
                self.cached = dict(event.cached)
                self.proven.intersection_update(self.cached)
                self.refused_for_eta.difference_update(self.cached)
                for fetch in self.fetches.values():
                    fetch.givers.intersection_update(self.cached)
            case FetchStarted():
                if event.model in self.fetches:
                    joined = any(self.fetches[one].begun for one in self.flying(event.model) if one != event.model)
                    self.fetches[event.model].begun = True
                    if not joined:
                        self.goes_on(event.model)
            case WeightsFetched():
                self._over(event.model)
                if event.model in self.cached:
                    self.proven.add(event.model)
            case FetchFailed():
                fetch = self._over(event.model)
                if fetch is not None and not fetch.cancelled:
                    self.refused_for_eta.discard(event.model)
                    books.failed_at[event.model] = books.now
            case WeightsWarmed():
                self.readings.pop(event.model, None)
            case WeightsVerified():
                if event.model in self.checks and not event.intact:
                    if event.model not in self.changed and not books.draining:
                        self.damaged.add(event.model)
                    books.failed_at.pop(event.model, None)
                self.checks.discard(event.model)
                self.changed.discard(event.model)
                if event.intact:
                    self.proven.add(event.model)

    def _over(self, model: ModelName) -> Fetch | None:
        if model in self.fetches:
            self.ended.append(model)
            self.goes_on(model)
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
                self.begin(order.model, ahead=False)
            case CancelFetch():
                fetch = self.fetches.get(order.model)
                if fetch is None or fetch.cancelled or not (self.changing or books.draining):
                    broken("one_fetch_for_each_model", f"{order}: {fetch} need not end")
                self.cancel(order.model)
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
        if model in self.damaged:
            broken("one_fetch_for_each_model", f"{order}: its copy is damaged, and has to be given up")
        failed = books.now < books.failed_at.get(model, -COOL_DOWN) + COOL_DOWN
        cooling = failed or books.cooling_until.get(model, Instant(0)) > books.now
        if cooling and not books.load_orders(model) and not prefetches(books, model):
            broken("cool_down", f"{order}: it cools down")
        if under_way is None:
            self.begin(model, ahead=order.ahead)
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


def nobody_leaves_in_vain(books: "Books", commands: tuple[Command, ...]) -> None:
    """Let residents leave for a model that is not booked only if their copies are what its fetch lacks."""
    booked = {note.model for note in commands if isinstance(note, Transitioned) and note.before is None}
    leaving: dict[ModelName, list[ModelName]] = {}
    for note in commands:
        if isinstance(note, Evicted) and note.cause is UnloadCause.EVICTED and note.successor not in booked:
            assert note.successor is not None
            leaving.setdefault(note.successor, []).append(note.model)
        aborted = _ABORTED.fullmatch(note.why) if isinstance(note, Transitioned) else None
        if isinstance(note, Transitioned) and aborted is not None and aborted[1] not in booked:
            leaving.setdefault(ModelName(aborted[1]), []).append(note.model)
    for heir, models in leaving.items():
        fetch = books.weights.fetches.get(heir)
        weights = books.weights
        if fetch is None or not all(weights.cached.get(model) for model in models) or fetch.lacking <= 0:
            broken("nobody_leaves_in_vain", f"{models} leave for {heir}, whose fetch is {fetch}")
        sharers = {one for model in models for one in weights.sharers(model)}
        if staying := [one for one in sharers if keeps(books, one)]:
            broken("nobody_leaves_in_vain", f"{models} leave for {heir}, and {staying} keep their copies")
        givers = {one for other in weights.flying(heir) for one in weights.fetches[other].givers}
        on_their_way = {i.model for i in books.instances.values() if i.state is State.UNLOADING} & givers - sharers
        if weights.size(on_their_way) >= fetch.lacking and not any(keeps(books, one) for one in givers):
            broken("nobody_leaves_in_vain", f"{models} leave for {heir}, for which {on_their_way} leave already")
        given = sum(weights.fetches[one].given for one in weights.flying(heir))
        fetch.given += weights.size(models)
        fetch.givers.update(sharers)
        if given + weights.size(models) < fetch.lacking:
            broken("nobody_leaves_in_vain", f"{models} leave for {heir}, and that is not enough: {fetch}")


def keeps(books: "Books", model: ModelName) -> bool:
    """Say whether a copy stays for a model's sake although residents of others leave it."""
    weights = books.weights
    waits = (bool(books.waiting(model)) or bool(books.load_orders(model))) and not weights.may_be_given_up(model)
    spec, copy = books.catalog.models.get(model), weights.copy_of(model)
    configured = spec is not None and (spec.copy or model) == copy
    staying = (i for i in books.instances.values() if i.model == model and i.state is not State.UNLOADING)
    alive = any(configured or (i.spec is not None and i.spec.copy == copy) for i in staying)
    pinned = configured and books.pinned(model)
    return alive or pinned or (configured and (waits or model in weights.fetches or model in weights.checks))


def pointless_fetches_end(books: "Books") -> None:
    """End every fetch for a model that was changed or removed, or for a node that leaves service."""
    going_on = [model for model, fetch in books.weights.pointless.items() if not fetch.cancelled]
    if books.draining:
        going_on += [model for model, fetch in books.weights.fetches.items() if not fetch.cancelled]
    if going_on:
        broken("pointless_fetches_end", f"the fetches for {going_on} go on")


def readings_end(books: "Books") -> None:
    """Let no reading go on that serves no load."""
    for model, ended in books.weights.readings.items():
        on_its_way = {State.RESERVED, State.LOADING}
        serves = any(i.model == model and i.state in on_its_way for i in books.instances.values())
        if not ended and not serves:
            broken("readings_end", f"the weights of {model} are read for nobody")


def room_is_given_back(books: "Books", event: Event, next_wakeup: Instant | None) -> None:
    """Let nobody keep free room for longer than a release may take while its weights do not come."""
    if not books.devices.virtual:
        return
    weights, before = books.weights, books.weights.wanting
    weights.wanting = {
        i.id: before.get(i.id, books.now)
        for i in books.instances.values()
        if i.state is State.RESERVED
        and i.spec is not None
        and weights.missing(i.spec)
        and not any(other.gpus & i.gpus for other in books.instances.values() if other is not i)
    }
    limit = books.catalog.settings.release_timeout
    for instance, since in weights.wanting.items():
        late = isinstance(event, Tick) and books.now >= since + limit
        if late or next_wakeup is None or next_wakeup > max(since + limit, books.now):
            broken("room_is_given_back", f"{books.instances[instance]} waits for its weights since {since}")


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
