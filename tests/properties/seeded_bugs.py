"""Small deliberate bugs in the core, one function each: it plants the bug its name tells. The suite must catch each."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from swapd.core.commands import Grant, Start
from swapd.core.events import RequestArrived
from swapd.core.ids import Duration, Instant
from swapd.core.node import Node
from swapd.core.placement import GpuOption
from swapd.core.queue import ModelQueue
from swapd.core.reasons import Rejection, State
from swapd.core.sharers import Sharers
from swapd.core.state import Instance, Model
from tests.properties.planting import Function, exchange, instead, pretending

Patch = pytest.MonkeyPatch
BUGS: list[Callable[[Patch], None]] = []


def bug(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """Enter a bug in the list."""
    BUGS.append(plant)
    return plant


@bug
def pins_do_not_guard(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def evictable(node: Node, instance: Instance, **how: Any) -> Any:
            with pytest.MonkeyPatch.context() as unpinned:
                unpinned.setattr(Model, "pinned", property(lambda _: False))
                return original(node, instance, **how)

        return evictable

    exchange(patch, "evictable", bad)


@bug
def requests_in_flight_do_not_guard(patch: Patch) -> None:
    exchange(patch, "evictable", pretending("in_flight", {}))


@bug
def protection_is_forgotten(patch: Patch) -> None:
    exchange(patch, "protection", instead(lambda _node, _model: Duration(0)))


@bug
def protection_has_no_bound(patch: Patch) -> None:
    exchange(patch, "is_patient", instead(lambda *_: False))


@bug
def least_residency_is_forgotten(patch: Patch) -> None:
    exchange(patch, "resident_until", instead(lambda _node, _instance: Instant(0)))


@bug
def plans_are_not_pruned(patch: Patch) -> None:
    def everybody(sharers: Sharers, gpus: int) -> tuple[Instance, ...]:
        found = {s.id: s for gpu, option in sharers._options.items() if gpus >> gpu & 1 for s in option.sharers}
        return tuple(found.values())

    patch.setattr(Sharers, "cheapest", everybody)


@bug
def free_room_is_overlooked(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def find(node: Node, need: Any, avail: Any, costs: dict[Any, float], _known: object = None) -> Any:
            return original(node, need, avail, dict.fromkeys(costs, -1.0))

        return find

    patch.setattr(GpuOption, "clear", property(lambda _: False))
    exchange(patch, "find", bad)


@bug
def the_infeasible_may_wait(patch: Patch) -> None:
    exchange(patch, "infeasible", instead(lambda _node, _model: None))


@bug
def bytes_are_free_at_exit(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def processes_gone(node: Node, event: Any) -> Any:
            settled = original(node, event)
            instance = node.instances.get(event.instance)
            for gpu in node.on(instance.gpus) if instance else ():
                gpu.instances.pop(event.instance, None)
            return settled

        return processes_gone

    exchange(patch, "processes_gone", bad)
    _tolerate_absence(patch)


@bug
def leaked_bytes_count_as_free(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def leak(node: Node, instance: Instance) -> None:
            original(node, instance)
            for gpu in node.on(instance.gpus):
                gpu.instances.pop(instance.id, None)

        return leak

    exchange(patch, "leak", bad)
    _tolerate_absence(patch)


@bug
def victims_memory_is_not_awaited(patch: Patch) -> None:
    exchange(patch, "fits_now", instead(lambda _gpus, _instance: True))


@bug
def sharing_has_no_limit(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def option(gpu: Any, need: Any, candidates: Any) -> Any:
            found = original(gpu, need, candidates)
            return GpuOption() if found is None and not need.exclusive else found

        return option

    exchange(patch, "option", bad)


@bug
def a_retried_request_is_dropped(patch: Patch) -> None:
    patch.setattr(ModelQueue, "put_back", lambda _queue, _request: None)


@bug
def a_failed_load_forgets_a_waiter(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def refuse_all(node: Node, model: Model, *arguments: Any, **how: Any) -> None:
            if model.queue:
                model.queue.pop()
            original(node, model, *arguments, **how)

        return refuse_all

    exchange(patch, "refuse_all", bad)


@bug
def a_failed_load_answers_twice(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def refuse(node: Node, request: Any, model: Any, reason: Rejection, detail: str, **how: Any) -> None:
            original(node, request, model, reason, detail, **how)
            if reason is Rejection.LOAD_FAILED:
                original(node, request, model, reason, detail, **how)

        return refuse

    exchange(patch, "refuse", bad)


@bug
def a_draining_instance_is_given_requests(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def arrived(node: Node, event: Any) -> Any:
            model = node.models.get(event.model)
            instance = model.instance if model else None
            if instance is None or instance.state is not State.DRAINING:
                return original(node, event)
            instance.state = State.READY
            try:
                return original(node, event)
            finally:
                instance.state = State.DRAINING

        return arrived

    exchange(patch, "arrived", bad)


@bug
def a_suspect_instance_is_given_requests(patch: Patch) -> None:
    exchange(patch, "serve", pretending("suspect", neutral=False))


@bug
def concurrency_is_ignored(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def serve(node: Node, instance: Instance) -> None:
            kept, instance.in_flight = instance.in_flight, {}
            original(node, instance)
            instance.in_flight = {**kept, **instance.in_flight}

        return serve

    exchange(patch, "serve", bad)


@bug
def a_grant_goes_out_twice(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def granted_at_once(node: Node, event: RequestArrived) -> Grant | None:
            order: Grant | None = original(node, event)
            if order is not None and len(node.instances[order.instance].in_flight) == 2:
                node.out.append(order)
            return order

        return granted_at_once

    exchange(patch, "granted_at_once", bad)


@bug
def the_last_comes_first(patch: Patch) -> None:
    def pop(queue: ModelQueue[Any]) -> Any:
        request = queue.youngest()
        queue.remove(request)
        return request

    patch.setattr(ModelQueue, "pop", pop)


@bug
def nobody_waits_too_long(patch: Patch) -> None:
    exchange(patch, "_waited_too_long", instead(lambda node, model: node.deadlines.drop(model.name)))


@bug
def the_queue_has_no_limit(patch: Patch) -> None:
    patch.setattr(ModelQueue, "__len__", lambda queue: min(queue.count, 1))


@bug
def a_cancelled_waiter_still_loads(patch: Patch) -> None:
    patch.setattr(Model, "claimed", property(lambda _: True))


@bug
def there_is_no_cool_down(patch: Patch) -> None:
    patch.setattr("swapd.core.loads.COOL_DOWN_FIRST", Duration(1))


@bug
def the_grace_is_cut_short(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def stop_signalled(node: Node, event: Any) -> Any:
            settled = original(node, event)
            instance = node.instances.get(event.instance)
            if instance and instance.stopping and instance.stopping.kill_at:
                instance.stopping.kill_at = Instant(event.at + 1)
            return settled

        return stop_signalled

    exchange(patch, "stop_signalled", bad)


@bug
def a_kill_is_repeated(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def kill(node: Node, instance: Instance, stopping: Any) -> None:
            original(node, instance, stopping)
            stopping.kill_at = Instant(node.at + 1_000)

        return kill

    exchange(patch, "kill", bad)


@bug
def an_engine_is_started_twice(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def start(node: Node, instance: Instance) -> None:
            original(node, instance)
            node.out.append(Start(instance.id, instance.spec, instance.gpus))

        return start

    exchange(patch, "start", bad)


@bug
def a_failed_load_keeps_its_slot(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def fail_load(node: Node, *arguments: Any, **how: Any) -> None:
            original(node, *arguments, **how)
            node.loads_running += 1

        return fail_load

    exchange(patch, "fail_load", bad)


@bug
def an_operator_gets_no_answer(patch: Patch) -> None:
    exchange(patch, "answer_unloads", instead(lambda _node, instance, **_how: instance.unload_orders.clear()))


@bug
def the_wakeup_is_now(patch: Patch) -> None:
    exchange(patch, "next_wakeup", instead(lambda node: node.at))


@bug
def deadlines_do_not_wake(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def moments(node: Node) -> list[int]:
            return [moment for moment in original(node) if moment != node.deadlines.first()]

        return moments

    exchange(patch, "_moments", bad)
    patch.setattr(Node, "wake_by", lambda _node, _moment: None)


@bug
def chance_decides(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def legal_sets(count: int, size: int) -> tuple[Any, ...]:
            return tuple(sorted(original(count, size), key=lambda _: random.SystemRandom().random()))

        return legal_sets

    exchange(patch, "legal_sets", bad)


@bug
def a_drain_is_never_lifted(patch: Patch) -> None:
    exchange(patch, "lift_drain", instead(lambda _node, _instance: None))


@bug
def manual_mode_loads_by_itself(patch: Patch) -> None:
    patch.setattr(Node, "manual", property(lambda _: False))


@bug
def a_drained_instance_stops_before_its_requests_end(patch: Patch) -> None:
    def bad(original: Function) -> Function:
        def move_on(node: Node, instance: Instance) -> None:
            kept = instance.in_flight
            instance.in_flight = {} if instance.state is State.DRAINING else kept
            original(node, instance)
            instance.in_flight = kept

        return move_on

    exchange(patch, "_move_on", bad)


def _tolerate_absence(patch: Patch) -> None:
    """Let an instance go although it stands on no GPU any more, as a core with such a bug would."""

    def bad(original: Function) -> Function:
        def released(node: Node, instance: Instance) -> None:
            for gpu in node.on(instance.gpus):
                gpu.instances.setdefault(instance.id, instance)
            original(node, instance)

        return released

    exchange(patch, "released", bad)
