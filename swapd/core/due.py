"""Carries out every deadline that has passed: waits, loads, stops, releases, drains, idle limits, verdicts.

The deadlines are the core's; the shell only says what time it is. Each is looked at again in ``wakeups``.
"""

from swapd.core import thrash_pins
from swapd.core.commands import Answer
from swapd.core.eta import eta
from swapd.core.grants import cut_all, note_if_idle, refuse_queued
from swapd.core.guards import quiet
from swapd.core.ids import SECOND, Instant
from swapd.core.lifecycle import Cause
from swapd.core.loads import fail_load
from swapd.core.moves import kill, unload
from swapd.core.node import Node
from swapd.core.reasons import LoadFailure, Rejection, State, UnloadCause
from swapd.core.release import overdue
from swapd.core.review import review
from swapd.core.sentences import number, retry_after, waited_too_long
from swapd.core.state import Instance, Model
from swapd.core.swaps import evaluate


def expire(node: Node) -> None:
    """Carry out what is due."""
    at = node.at
    while (first := node.deadlines.first()) is not None and first <= at:
        _waited_too_long(node, node.models[node.deadlines.first_model()])
    for instance in list(node.instances.values()):
        match instance.state:
            case State.LOADING:
                _loading(node, instance)
            case State.DRAINING:
                _draining(node, instance)
            case State.UNLOADING:
                _unloading(node, instance)
            case State.READY:
                _idle(node, instance)
            case _:
                pass
    evaluation = node.load.next_evaluation
    if evaluation is not None and evaluation <= at:
        evaluate(node)
        thrash_pins.attend(node)
        review(node)


def _waited_too_long(node: Node, model: Model) -> None:
    """Refuse whoever has waited ``max_wait``, operators who wait for room included."""
    limit = model.spec.max_wait
    remaining = eta(node, model)
    again, detail = retry_after(node, model, remaining), waited_too_long(node, model, remaining)
    while model.queue and (oldest := model.queue.oldest()).arrived + limit <= node.at:
        refuse_queued(node, oldest, Rejection.WAIT_TIMEOUT, detail, retry_after=again)
    if not model.placed:
        for order in [order for order, since in model.orders.items() if since + limit <= node.at]:
            del model.orders[order]
            node.out.append(Answer(order, ok=False, detail=detail, reason=Rejection.WAIT_TIMEOUT))
    note_if_idle(node, model)
    node.refresh(model)


def _loading(node: Node, instance: Instance) -> None:
    spec = instance.spec
    if node.at >= instance.started_at + spec.load_timeout:
        detail = f"not ready within the load timeout of {spec.load_timeout / SECOND:g} s"
        fail_load(node, instance, LoadFailure.DEADLINE, detail, cause=Cause.LOAD_FAILED)
    elif node.at >= instance.progress_at + spec.load_stall:
        detail = f"no progress in log or I/O for the stall window of {spec.load_stall / SECOND:g} s"
        fail_load(node, instance, LoadFailure.STALLED, detail, cause=Cause.LOAD_FAILED)


def _draining(node: Node, instance: Instance) -> None:
    drain = instance.drain
    assert drain is not None
    if drain.deadline is not None and node.at >= drain.deadline and instance.in_flight:
        count = cut_all(node, instance)
        instance.model.story.add(node.at, f"{number(count, 'request')} cut: the drain deadline has passed")


def _unloading(node: Node, instance: Instance) -> None:
    stopping = instance.stopping
    assert stopping is not None
    if stopping.kill_at is not None and node.at >= stopping.kill_at:
        kill(node, instance, stopping)
    elif stopping.leak_at is not None and node.at >= stopping.leak_at:
        overdue(node, instance)


def idle_moment(node: Node, instance: Instance) -> Instant | None:
    """Return when a ready instance leaves for being idle; ``None``: it does not."""
    limit, model = node.settings.idle_unload, instance.model
    if limit is None or node.manual or model.pinned or instance.in_flight or model.queue:
        return None
    return Instant(instance.last_used + limit)


def _idle(node: Node, instance: Instance) -> None:
    moment = idle_moment(node, instance)
    if moment is not None and node.at >= moment and quiet(node, instance):
        unload(node, instance, UnloadCause.IDLE, Cause.LEFT_IDLE, "idle limit passed")
