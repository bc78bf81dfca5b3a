"""Enters the facts a core is told into the suite's books."""

from typing import assert_never

from swapd.core.catalog import Catalog
from swapd.core.events import (
    CatalogChanged,
    DemandKnown,
    EngineGone,
    Event,
    FetchFailed,
    FetchProgressed,
    FetchStarted,
    FetchWaits,
    FootprintsKnown,
    GpuMemoryRead,
    InstanceExited,
    InstanceHealthy,
    InstanceReady,
    InstanceUnhealthy,
    LoadFailed,
    LoadOrdered,
    LoadProgressed,
    LoadTimesKnown,
    NodeDrainOrdered,
    NodeUndrainOrdered,
    PinOrdered,
    PrefetchOrdered,
    ProcessesGone,
    RequestArrived,
    RequestEnded,
    StageEntered,
    StopSignalled,
    Tick,
    TopologyChanged,
    UnloadOrdered,
    UpstreamFailed,
    WeekKnown,
    WeightsCached,
    WeightsFetched,
    WeightsVerified,
    WeightsWarmed,
)
from swapd.core.ids import Duration, InstanceId, Instant, ModelName, RequestId
from swapd.core.reasons import State
from tests.properties.books import Books, OperatorOrder, Phase, Request


def hear(books: Books, event: Event) -> None:
    """Enter one fact."""
    books.now = event.at
    books.weights.begin_step(event)
    match event:
        case WeightsCached() | FetchStarted() | WeightsFetched() | FetchFailed() | WeightsWarmed() | WeightsVerified():
            books.weights.hear(books, event)
        case FetchWaits():
            alive = {i.model for i in books.instances.values() if i.state is State.UNLOADING}
            books.weights.lacks_room(event, alive)
        case FetchProgressed():
            books.weights.goes_on(event.model)
        case PrefetchOrdered():
            _order(books, event.at, event.request, OperatorOrder(event.at, "prefetch", event.model))
        case RequestArrived():
            _arrived(books, event)
        case RequestEnded():
            _left(books, event.request)
            books.requests.pop(event.request, None)
        case UpstreamFailed():
            _upstream_failed(books, event)
        case InstanceReady():
            _ready(books, event)
        case LoadFailed() | InstanceExited() | InstanceUnhealthy():
            _broken(books, event.instance)
        case InstanceHealthy():
            if event.instance in books.instances:
                books.instances[event.instance].checks = 0
        case StopSignalled():
            if event.instance in books.instances:
                books.instances[event.instance].signalled = event.at
        case ProcessesGone():
            if event.instance in books.instances:
                instance = books.instances[event.instance]
                instance.gone = event.at if instance.gone is None else instance.gone
        case EngineGone():
            if event.instance in books.instances:
                instance = books.instances[event.instance]
                instance.engine_gone = True
                instance.gone = event.at if instance.gone is None else instance.gone
        case GpuMemoryRead():
            books.devices.hear(event)
            if books.asked is not None and event.taken >= books.asked:
                books.asked = None
        case TopologyChanged():
            books.devices.change(event.topology)
        case FootprintsKnown():
            for model, size in event.bytes_per_gpu.items():
                if model in books.catalog.models:
                    books.measured.setdefault((model, books.catalog.models[model].revision), size)
        case CatalogChanged():
            _reconfigured(books, event.catalog)
            books.operator_pins = {m: pin for m, pin in books.operator_pins.items() if m in event.catalog.models}
            books.thrash_pins = books.thrash_pins.intersection(event.catalog.models)
            books.failed_at.clear()
            books.cooling_until.clear()
        case LoadTimesKnown():
            for (model, _), durations in event.load_times.items():
                books.load_times.setdefault(model, []).extend(durations)
        case LoadOrdered():
            books.cooling_until.pop(event.model, None)
            books.failed_at.pop(event.model, None)
            _order(books, event.at, event.request, OperatorOrder(event.at, "load", event.model))
        case UnloadOrdered():
            _order(books, event.at, event.request, OperatorOrder(event.at, "unload", event.model))
        case PinOrdered():
            if event.model in books.catalog.models:
                books.operator_pins[event.model] = event.pinned
                books.thrash_pins.discard(event.model)
            _order(books, event.at, event.request, OperatorOrder(event.at, "pin", event.model))
        case NodeDrainOrdered():
            books.draining = True
            books.weights.refused_for_eta.clear()
            _order(books, event.at, event.request, OperatorOrder(event.at, "drain", None))
        case NodeUndrainOrdered():
            books.draining = False
            _order(books, event.at, event.request, OperatorOrder(event.at, "undrain", None))
        case DemandKnown() | WeekKnown() | StageEntered() | LoadProgressed() | Tick():
            pass
        case _:
            assert_never(event)
    books.note_released()


def _reconfigured(books: Books, catalog: Catalog) -> None:
    """Take a new catalogue; what was measured of another revision does not count any more."""
    for name, revision in list(books.measured):
        if name in catalog.models and catalog.models[name].revision != revision:
            del books.measured[name, revision]
    same = {name for name, spec in catalog.models.items() if _revision(books.catalog, name) == spec.revision}
    books.weights.reconfigured(same)
    books.weights.learn(catalog)
    books.catalog = catalog


def _revision(catalog: Catalog, model: ModelName) -> str | None:
    spec = catalog.models.get(model)
    return None if spec is None else spec.revision


def _arrived(books: Books, event: RequestArrived) -> None:
    spec = books.catalog.models.get(event.model)
    priority = max(event.priority, spec.priority) if spec else event.priority
    books.requests[event.request] = Request(event.request, event.model, event.at, priority)
    for instance in books.instances.values():
        if instance.model == event.model:
            instance.last_used = event.at


def _left(books: Books, request: RequestId) -> None:
    """Take a request off the instance that served it."""
    entry = books.requests.get(request)
    instance = books.instances.get(entry.instance) if entry and entry.instance is not None else None
    if entry is not None and instance is not None:
        instance.in_flight.discard(request)
        books.longest_service = max(books.longest_service, Duration(books.now - entry.granted))
        if not entry.cut:
            instance.last_used = books.now


def _upstream_failed(books: Books, event: UpstreamFailed) -> None:
    entry = books.requests.get(event.request)
    if entry is None or entry.instance != event.instance:
        return
    _left(books, event.request)
    entry.phase, entry.instance, entry.failed_once = Phase.WAITING, None, True


def _ready(books: Books, event: InstanceReady) -> None:
    instance = books.instances.get(event.instance)
    if instance is None or instance.started is None or instance.ready is not None or instance.stop is not None:
        return
    if instance.broken:
        return
    instance.ready = event.at
    books.weights.succeeded(instance.model)
    books.failed_at.pop(instance.model, None)
    books.cooling_until.pop(instance.model, None)
    instance.last_used = max(instance.last_used, event.at)
    books.load_times.setdefault(instance.model, []).append(Duration(event.at - instance.started))


def _broken(books: Books, identity: InstanceId) -> None:
    instance = books.instances.get(identity)
    if instance is None or instance.broken or instance.stop is not None or instance.killed:
        return
    instance.broken = True
    if instance.ready is None:
        books.failed_at[instance.model] = books.now


def _order(books: Books, at: Instant, request: RequestId, order: OperatorOrder) -> None:
    assert request not in books.orders, f"the suite gave order {request} twice at {at}"
    books.orders[request] = order
