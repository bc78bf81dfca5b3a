"""Judges a core from outside: each command by the suite's own books, and the whole after each step.

Law names are those of the architecture page. The books know only events and commands; the core's own view is read in
one place, to compare it with the books (``laws.nothing_dropped``).
"""

from typing import assert_never

from swapd.core.catalog import Catalog, Mode
from swapd.core.commands import (
    Answer,
    CancelFetch,
    Check,
    Command,
    CoolingDown,
    Cut,
    DriverChanged,
    Evicted,
    EvictionBlocked,
    FetchEnded,
    FetchWeights,
    FootprintMeasured,
    GpuChanged,
    Grant,
    KeepWeights,
    Kill,
    LoadFinished,
    NodeLoadChanged,
    Placed,
    PromotionAdvised,
    ReadMemory,
    RefetchWeights,
    Reject,
    ReleaseConfirmed,
    StaleFact,
    Start,
    Stop,
    StopWarming,
    ThrashPinChanged,
    Transitioned,
    VerdictChanged,
    VerifyWeights,
    WarmWeights,
)
from swapd.core.events import Event
from swapd.core.ids import Duration, gpu_indices, seconds
from swapd.core.reasons import Rejection, State, ThrashPin, UnloadCause
from swapd.core.topology import NodeTopology
from tests.properties import device_laws
from tests.properties.books import Books, Instance, Phase
from tests.properties.broken import broken
from tests.properties.hearing import hear

TRANSITIONS = {
    None: {State.RESERVED},
    State.RESERVED: {State.LOADING, State.GONE},
    State.LOADING: {State.READY, State.UNLOADING},
    State.READY: {State.DRAINING, State.UNLOADING},
    State.DRAINING: {State.UNLOADING, State.READY},
    State.UNLOADING: {State.GONE, State.LEAKED},
    State.LEAKED: {State.GONE},
}
"""The life of an instance without engine sleep; DRAINING → READY when the drain is called off."""

_AT_ONCE = frozenset({UnloadCause.EXITED, UnloadCause.UNRESPONSIVE, UnloadCause.LOAD_FAILED, UnloadCause.LOAD_ABORTED})
"""Causes for which an instance stops whoever is in flight: nobody can be served by it any more."""


ANSWER_DEADLINE = seconds(10)
"""A reading that was ordered and has not come by then may be ordered again."""

COOL_DOWN = seconds(10)
"""The first cool-down after a failed load; later ones are longer."""


class Oracle:
    """An observer of a core that raises at the first broken law."""

    def __init__(self, topology: NodeTopology, catalog: Catalog) -> None:
        self.books = Books(topology, catalog)

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Judge one step."""
        hear(self.books, event)
        for command in commands:
            self._judge(command)
        self.books.forget_removed()

    def _judge(self, command: Command) -> None:
        match command:
            case Grant():
                self._grant(command)
            case Reject():
                self._reject(command)
            case Cut():
                self._cut(command)
            case Start():
                self._start(command)
            case Check():
                self._check(command)
            case Stop():
                self._stop(command)
            case Kill():
                self._kill(command)
            case Answer():
                order = self.books.orders.get(command.request)
                if order is None or order.answered:
                    broken("answered_exactly_once", f"{command} answers no open order")
                order.answered = True
            case Transitioned():
                self._transition(command)
            case CoolingDown():
                self.books.cooling_until[command.model] = command.until
            case Evicted():
                self._evicted(command)
            case LoadFinished() | EvictionBlocked() | VerdictChanged() | NodeLoadChanged() | StaleFact():
                pass
            case FootprintMeasured():
                self._measured(command)
            case ReadMemory():
                if self.books.asked is not None and self.books.now < self.books.asked + ANSWER_DEADLINE:
                    broken("commands_bounded", f"{command}: one ordered at {self.books.asked} is not answered")
                self.books.asked = self.books.now
            case ThrashPinChanged():
                self._thrash_pin(command)
            case PromotionAdvised() | KeepWeights():
                pass
            case (
                FetchWeights()
                | RefetchWeights()
                | CancelFetch()
                | WarmWeights()
                | StopWarming()
                | VerifyWeights()
                | FetchEnded()
            ):
                self.books.weights.judge(self.books, command)
            case Placed() | GpuChanged() | DriverChanged() | ReleaseConfirmed():
                pass
            case _:
                assert_never(command)

    def _thrash_pin(self, note: ThrashPinChanged) -> None:
        books = self.books
        match note.action:
            case ThrashPin.PINNED:
                if note.model in books.operator_pins:
                    broken("an_operators_word_wins", f"{note}: an operator has pinned or unpinned it")
                if books.pinned(note.model):
                    broken("commands_bounded", f"{note}: it is pinned already")
                books.thrash_pins.add(note.model)
            case ThrashPin.LIFTED:
                if note.model not in books.thrash_pins:
                    broken("commands_bounded", f"{note}: it was not pinned")
                books.thrash_pins.discard(note.model)
            case ThrashPin.REFUSED:
                pass
            case _:
                assert_never(note.action)

    def _grant(self, order: Grant) -> None:
        books = self.books
        request, instance = books.requests.get(order.request), books.instances.get(order.instance)
        if request is None or request.phase is not Phase.WAITING:
            broken("answered_exactly_once", f"{order}: the request is not waiting")
        if instance is None or not instance.serves or instance.model != request.model:
            broken("only_ready_serves", f"{order}: {instance} does not serve {request.model}")
        spec = books.catalog.models.get(order.model, instance.spec)
        served = [other for other in instance.in_flight if not books.requests[other].cut]
        if spec is None or len(served) >= spec.concurrency:
            broken("only_ready_serves", f"{order}: {served} are in flight already")
        if order.waited != books.now - request.arrived:
            broken("answered_exactly_once", f"{order}: it waited {books.now - request.arrived}")
        rank = (request.priority, request.arrived, request.id)
        passed = [r for r in books.waiting(order.model) if (r.priority, r.arrived, r.id) < rank]
        if passed:
            broken("served_in_order", f"{order}: it passed {passed}")
        request.phase, request.instance, request.granted = Phase.GRANTED, order.instance, books.now
        instance.in_flight.add(order.request)

    def _reject(self, order: Reject) -> None:
        books = self.books
        request = books.requests.get(order.request)
        if request is None or request.phase is not Phase.WAITING:
            broken("answered_exactly_once", f"{order}: the request is not waiting")
        spec = books.catalog.models.get(request.model)
        if order.reason is Rejection.QUEUE_FULL and (spec is None or len(books.waiting(spec.name)) <= spec.max_queue):
            broken("queue_bounded", f"{order}: {len(books.waiting(request.model)) - 1} wait, which is below the limit")
        if order.reason is Rejection.WAIT_TIMEOUT and books.now < books.deadline(request):
            broken("answered_exactly_once", f"{order}: refused for its wait before {books.deadline(request)}")
        if order.reason is Rejection.ETA_EXCEEDS_MAX_WAIT:
            books.refused_for_eta.add(request.model)
            books.weights.refused_for_eta.add(request.model)
        request.phase = Phase.REJECTED

    def _cut(self, order: Cut) -> None:
        request = self.books.requests.get(order.request)
        if request is None or request.phase is not Phase.GRANTED or request.cut:
            broken("answered_exactly_once", f"{order}: the request is not being served, or was cut before")
        request.cut = True

    def _start(self, order: Start) -> None:
        books = self.books
        instance = books.instances.get(order.instance)
        if instance is None or instance.started is not None:
            broken("legal_transitions_only", f"{order}: not reserved, or started before")
        if instance.gpus != order.gpus or order.gpus.bit_count() != order.spec.footprint.gpus:
            broken("no_overcommit", f"{order}: reserved were {instance.gpus:b}")
        device_laws.starts_on_legal_gpus(books, order)
        device_laws.starts_into_free_memory(books, order, instance)
        device_laws.host_memory_suffices(books, order)
        for gpu in gpu_indices(order.gpus):
            if not books.fits(order.spec, gpu, beside=books.holders(gpu), need=instance.charge):
                broken("no_overcommit", f"{order}: GPU {gpu} is held by {books.holders(gpu)}")
        twins = [i for i in books.instances.values() if i.model == instance.model and i.started and not _leaving(i)]
        if twins:
            broken("one_instance_per_model", f"{order}: beside {twins}")
        self._wanted(order)
        books.weights.started(order)
        if books.now < books.failed_at.get(instance.model, -COOL_DOWN) + COOL_DOWN:
            broken("cool_down", f"{order}: its last load failed at {books.failed_at[instance.model]}")
        instance.spec, instance.started = order.spec, books.now

    def _wanted(self, order: Start) -> None:
        books, model = self.books, order.spec.name
        by_operator = books.load_orders(model) or books.pinned(model)
        by_client = books.waiting(model) or model in books.refused_for_eta
        books.refused_for_eta.discard(model)
        if not by_operator and not by_client and model not in books.wishes:
            broken("cancelled_never_loads", f"{order}: nobody waits for it")

    def _check(self, order: Check) -> None:
        instance = self.books.instances.get(order.instance)
        if instance is None or instance.started is None or instance.stop is not None or instance.killed:
            broken("commands_bounded", f"{order}: there is nothing to check")
        if instance.checks:
            broken("commands_bounded", f"{order}: a check is under way")
        instance.checks += 1

    def _stop(self, order: Stop) -> None:
        instance = self.books.instances.get(order.instance)
        if instance is None or instance.started is None or instance.stop is not None or instance.killed:
            broken("commands_bounded", f"{order}: never started, or stopped before")
        uncut = [request for request in instance.in_flight if not self.books.requests[request].cut]
        if uncut and not instance.broken and order.cause not in _AT_ONCE:
            broken("never_evict_in_flight", f"{order}: {uncut} are in flight")
        instance.stop = order.cause
        if order.cause is UnloadCause.CHANGED:
            self.books.wishes.add(instance.model)
        if order.cause is UnloadCause.LOAD_FAILED:
            self.books.failed_at.setdefault(instance.model, self.books.now)

    def _kill(self, order: Kill) -> None:
        instance = self.books.instances.get(order.instance)
        if instance is None or instance.started is None or instance.killed:
            broken("commands_bounded", f"{order}: never started, or killed before")
        if not instance.broken and instance.stop is None:
            broken("commands_bounded", f"{order}: it was not asked to stop before")
        if instance.signalled is not None and instance.spec is not None and not instance.broken:
            grace_end = instance.signalled + instance.spec.stop_grace
            if self.books.now < grace_end:
                broken("commands_bounded", f"{order}: its grace lasts until {grace_end}")
        instance.killed = True

    def _measured(self, note: FootprintMeasured) -> None:
        instance = self.books.instances.get(note.instance)
        if instance is None or instance.ready is None:
            broken("measured_when_ready", f"{note}: {instance} is not ready")
        shared = any(other.gpus & instance.gpus for other in self.books.instances.values() if other is not instance)
        if instance.measured and (shared or not note.declared <= note.measured < instance.charge):
            broken("measured_when_ready", f"{note}: {instance} was measured before, and nothing shows it smaller")
        instance.charge, instance.measured = note.measured, True
        spec = self.books.catalog.models.get(note.model)
        if spec is not None and spec.revision == note.revision:
            self.books.measured[note.model, note.revision] = note.measured

    def _evicted(self, note: Evicted) -> None:
        if note.cause in {UnloadCause.EVICTED, UnloadCause.IDLE} and self.books.pinned(note.model):
            broken("never_evict_pinned", f"{note}")

    def _transition(self, note: Transitioned) -> None:
        books = self.books
        instance = books.instances.get(note.instance)
        before = instance.state if instance else None
        if note.before != before or note.after not in TRANSITIONS.get(before, set()):
            broken("legal_transitions_only", f"{note}: it was {before}")
        if instance is None:
            if note.instance in books.seen:
                broken("legal_transitions_only", f"{note}: the id was used before")
            books.seen.add(note.instance)
            books.weights.reloaded(note.model)
            self._booked(note)
            spec = books.catalog.models.get(note.model)
            instance = Instance(note.instance, note.model, note.gpus, note.after, books.now, spec=spec)
            instance.booked = books.now
            instance.charge = books.need(spec) if spec else instance.charge
            books.instances[note.instance] = instance
        if note.before is State.UNLOADING:
            books.longest_release = max(books.longest_release, Duration(books.now - instance.since))
        instance.state, instance.since = note.after, books.now
        if note.after is State.GONE:
            if instance.holds_memory:
                broken("shown_free", f"{note}: its memory was not reported free")
            del books.instances[note.instance]

    def _booked(self, note: Transitioned) -> None:
        books = self.books
        asked = books.load_orders(note.model) or note.model in books.wishes
        if books.draining:
            broken("legal_transitions_only", f"{note}: the node is leaving service")
        if books.catalog.settings.mode is Mode.MANUAL and not asked:
            broken("cancelled_never_loads", f"{note}: in manual mode nothing loads by itself")


def _leaving(instance: Instance) -> bool:
    """Whether an instance counts no more as its model's one: it is dead or has been told to go."""
    return instance.broken or instance.stop is not None or instance.killed or instance.state is State.LEAKED
