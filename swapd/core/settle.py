"""Takes every decision that an event makes possible, until nothing more changes. There is one copy of this tree.

In this order, again and again: what is due; the node's own drain; cordoned GPUs and a driver in trouble; instances that
may leave or start; refusals; missing weights; the reservation; room on the disk; then the pending models, the
most urgent first, and last the pins, the largest first, and what comes back after a change. When nothing changes any
more, the driver is asked if somebody waits for its word.

A model that finds no room does not stop the others, and a footprint that found none is not tried again in the same
round: booking only takes room away.
"""

from typing import Final

from swapd.core import devices, disk_room, fetching, gate, node_drain, reservation, warming
from swapd.core.asking import ask
from swapd.core.commands import EvictionBlocked
from swapd.core.due import expire
from swapd.core.eta import clearing_estimate, longest_release, release_of, surplus, weights_slack
from swapd.core.eviction import Failed, Leaving, Plan, candidates, find
from swapd.core.feasibility import Infeasible, infeasible
from swapd.core.grants import refuse_all
from swapd.core.guards import blocked_by, is_patient, quiet
from swapd.core.lawbook import law
from swapd.core.lifecycle import Cause
from swapd.core.moves import book, drain, forget, unload
from swapd.core.node import Node
from swapd.core.placement import holds
from swapd.core.reasons import Rejection, State, UnloadCause
from swapd.core.state import Instance, Model, Need
from swapd.core.wakeups import next_wakeup
from swapd.core.weights import has_weights, lacks_weights, note_fed, note_starved

ROUNDS_MOST: Final = 1_000
"""Far more rounds than any node needs: a core that goes on deciding for ever would hold up everything else."""


def settle(node: Node) -> None:
    """Bring the node to a fixed point and set its next wake-up."""
    expire(node)
    changes, rounds = -1, 0
    while changes != node.changes:
        changes, rounds = node.changes, rounds + 1
        law(node, "decisions_come_to_an_end", f"no end after {ROUNDS_MOST} rounds", holds=rounds <= ROUNDS_MOST)
        node_drain.advance(node)
        devices.attend(node)
        for instance in list(node.instances.values()):
            _move_on(node, instance)
        _refuse(node)
        fetching.order_missing(node)
        reservation.keep(node)
        if node.drain is None and node.may_load:
            disk_room.make(node)
            _place_pending(node)
            _place_pins(node)
            if node.changes == changes:
                reservation.consider(node)
    warming.stop_needless(node)
    node_drain.answer_if_drained(node)
    ask(node)
    _forget_removed(node)
    node.wake = next_wakeup(node)


def _forget_removed(node: Node) -> None:
    """Forget models that are no longer configured, once nothing is left of them."""
    for name in list(node.removed):
        model = node.models[name]
        if not model.weights.busy and not any(instance.model is model for instance in node.instances.values()):
            node.hungry.pop(name, None)
            node.unkept.pop(name, None)
            del node.models[name], node.removed[name]


def _refuse(node: Node) -> None:
    """Refuse pending requests that cannot be served in this mode, or on this node as it has become."""
    if node.manual:
        for name in node.pending:
            model = node.models[name]
            if not model.orders and name not in node.wishes:
                detail = f"{name} is not loaded and the node is in manual mode; an operator has to load it"
                refuse_all(node, model, Rejection.MANUAL_MODE, detail)
    if not node.recheck:
        return
    node.recheck = False
    known: dict[Need, Infeasible | None] = {}
    for name in node.pending:
        model = node.models[name]
        if model.need in known and known[model.need] is None:
            continue
        never = known[model.need] = infeasible(node, model)
        if never is not None:
            refuse_all(
                node, model, never.reason, never.detail, retry_after=never.retry_after, permanent=never.permanent
            )


def _move_on(node: Node, instance: Instance) -> None:
    """Let one instance leave or start, if it may."""
    model = instance.model
    match instance.state:
        case State.RESERVED:
            if not (model.claimed or model.name in node.wishes or instance.ahead):
                forget(node, instance, Cause.UNWANTED, "nobody waits for it any more")
            elif instance.step < node.step and not holds(node.on(instance.gpus), instance):
                forget(node, instance, Cause.ROOM_LOST, "the memory booked for it cannot be had any more")
                node.recheck = True
            elif model.spec.fetched and lacks_weights(node, model, weights_slack(node)):
                forget(node, instance, Cause.WEIGHTS_WANTING, "its weights are not here, and far off")
            else:
                gate.begin(node, instance)
        case State.DRAINING:
            gone = instance.drain
            assert gone is not None
            if gone.cause is not None and not instance.in_flight and quiet(node, instance):
                unload(node, instance, gone.cause, Cause.DRAINED, "drained")
        case State.READY if instance.outdated_since is not None and not node.degraded:
            _renew(node, instance)
        case _:
            pass


def _renew(node: Node, instance: Instance) -> None:
    """Let an outdated instance leave when idle, or drain it when it never is; not before its new weights are here."""
    model = instance.model
    assert instance.outdated_since is not None
    if not has_weights(model):
        return
    if not instance.in_flight and not model.queue:
        if quiet(node, instance):
            node.wishes[model.name] = model
            unload(node, instance, UnloadCause.CHANGED, Cause.LEFT_IDLE, "its configuration has changed")
    elif node.at >= instance.outdated_since + node.settings.drain_after:
        node.wishes[model.name] = model
        limit = node.settings.drain_timeout
        drain(node, instance, UnloadCause.CHANGED, "its configuration has changed and it is never idle", limit)


def _place_pending(node: Node) -> None:
    """Book room for the pending models, the most urgent first."""
    most = node.settings.max_concurrent_loads
    if node.loads_running >= most:
        return
    clearing, longest = clearing_estimate(node), longest_release(node)
    failed = Failed()
    leaving: dict[bool, Leaving] = {}
    for name in node.pending:
        model = node.models[name]
        assert model.since is not None
        if model.spec.fetched:
            if lacks_weights(node, model, longest):
                note_starved(node, model)
                continue
            note_fed(node, model)
        patient = is_patient(node, model, model.since, clearing)
        holder = node.reservation is not None and node.reservation.model is model
        if (failed.covers(model.need, patient=patient) and not holder) or (node.manual and not model.orders):
            continue
        if holder or patient not in leaving:
            leaving[patient] = candidates(node, patient=patient, holder=holder), {}
        plan = find(node, model.need, surplus(node, model), *leaving[patient])
        if plan is None:
            failed.add(model.need, patient=patient)
            _note_blocks(node, model, patient=patient)
        elif _too_early(node, model, plan):
            note_starved(node, model)
        else:
            book(node, model, plan, _why(model, plan))
            if node.loads_running >= most:
                return
        if holder or plan is not None:
            leaving.clear()
        if failed.covers_all(node.needs) and node.reservation is None:
            break
    _explain(node, clearing)


def _too_early(node: Node, model: Model, plan: Plan) -> bool:
    """Say whether those who leave for a model would be gone before its weights are here; note when they may leave."""
    release = release_of(node, plan.victims)
    fetch = model.weights.fetch
    if fetch is not None:
        fetch.lead = release
    return lacks_weights(node, model, release)


def _explain(node: Node, clearing: int) -> None:
    """Tell the models that have just become pending what stands in their way."""
    for name in list(node.unexplained):
        model = node.models.get(name)
        if model is not None and model.since is not None and name in node.pending:
            if lacks_weights(node, model, longest_release(node)):
                continue
            _note_blocks(node, model, patient=is_patient(node, model, model.since, clearing))
        del node.unexplained[name]


def _place_pins(node: Node) -> None:
    """Book room for absent pins, at the cost of idle unprotected residents only, and for what was outdated, at none.

    The largest pins come first: the small ones find a place beside them, but not the other way round.
    """
    absent = [model for model in node.pins.values() if model.instance is None]
    absent.sort(key=_largest_first)
    longest = longest_release(node)
    for model in [*absent, *node.wishes.values()]:
        if node.loads_running >= node.settings.max_concurrent_loads:
            return
        may_evict = model.pinned and not node.manual
        wished = model.name in node.wishes
        if model.instance is not None or not (may_evict or wished) or _cooling(node, model):
            continue
        if lacks_weights(node, model, longest):
            continue
        leaving = candidates(node, patient=False) if may_evict else {}
        plan = find(node, model.need, surplus(node, model), leaving)
        if plan is not None and _too_early(node, model, plan):
            continue
        if plan is not None:
            book(node, model, plan, "it was resident before its change" if wished else "it is pinned")
        elif wished and not may_evict:
            del node.wishes[model.name]
            node.changes += 1


def _largest_first(model: Model) -> tuple[int, int]:
    return -model.need.gpus, -model.need.bytes_per_gpu


def _cooling(node: Node, model: Model) -> bool:
    return model.cooling_until is not None and node.at < model.cooling_until


def _why(model: Model, plan: Plan) -> str:
    who = f"{len(model.queue)} waiting" if model.queue else "ordered"
    if plan.victims:
        return f"{who}; evicting {', '.join(victim.model.name for victim in plan.victims)}"
    return f"{who}; room is free" if not plan.waits else f"{who}; room is being freed"


def _note_blocks(node: Node, model: Model, *, patient: bool) -> None:
    """Say once per cause and wait which residents could not leave for a pending model."""
    for instance in node.instances.values():
        block = blocked_by(node, instance, patient=patient)
        if block is not None and (instance.id, block) not in model.noted:
            model.noted[instance.id, block] = None
            node.out.append(EvictionBlocked(instance.model.name, block, model.name))
            model.story.add(node.at, f"waits: {instance.model.name} may not leave ({block.value})")
