"""Decides for whom GPUs are kept and drained, so that a model whose victims are never idle gets its turn.

Rules that hold here:

* One reservation at a time. It is made for the first pending model that has waited its ``drain_after``, cannot be
  placed, and could be if busy residents let their requests finish.
* Its victims drain: what is in flight finishes, what is new queues behind it. Nobody is stopped before all of them
  are idle, so a reservation that is dropped has cost nobody a reload.
* It is dropped as soon as its model is placed, nobody waits for it any more, or its weights prove to be far off; then
  its victims serve again.
* The other models go on with the GPUs outside it.
* A load that somebody waits for is never broken off, and in its place the next one may begin: whoever needs many GPUs
  could wait for ever. After half as long again as ``drain_after`` the GPUs are kept although loads are in the way: no
  new one begins there, the residents go on serving, and they drain when these loads have ended.
"""

from collections.abc import Mapping

from swapd.core.eta import clearing_estimate, drain_costs, drain_due, keep_after, weights_slack
from swapd.core.eviction import Failed, Plan, candidates, clock_floor, cost, find
from swapd.core.grants import serve, settle_orders
from swapd.core.guards import is_patient
from swapd.core.ids import InstanceId
from swapd.core.moves import drain, lift_drain
from swapd.core.node import Node, Reservation
from swapd.core.placement import option, suited
from swapd.core.reasons import State
from swapd.core.sentences import gpu_list
from swapd.core.state import Instance, Model
from swapd.core.weights import has_weights, lacks_weights


def keep(node: Node) -> None:
    """Drop the reservation if its reason is gone, else have everybody drain who has to."""
    reservation = node.reservation
    if reservation is None:
        return
    if reservation.model.name not in node.pending:
        drop(node)
        return
    if lacks_weights(node, reservation.model, weights_slack(node)):
        drop(node)
        return
    need = reservation.model.need
    leaving = {i.id: 0.0 for i in node.instances.values() if i.state is not State.LEAKED and not i.model.pinned}
    unsuited = reservation.gpus & ~suited(node, need)
    if unsuited or any(option(gpu, need, leaving) is None for gpu in node.on(reservation.gpus)):
        drop(node)
        return
    if reservation.victims:
        _drain_victims(node, reservation)
    elif not any(map(_is_in_the_way, reservation.awaited)):
        _begin_to_drain(node, reservation.model)


def _is_in_the_way(instance: Instance) -> bool:
    """Say whether an instance is on its way to serve somebody, so that it can neither leave nor drain yet."""
    booked = instance.state is State.RESERVED
    return booked or (instance.state is State.LOADING and instance.model.claimed)


def _begin_to_drain(node: Node, model: Model) -> None:
    """Choose the victims for a model whose GPUs were kept until the loads there had ended."""
    assert model.since is not None
    patient = is_patient(node, model, model.since, clearing_estimate(node))
    plan = _plan(node, model, drain_costs(node, patient=patient))
    if plan is None:
        drop(node)
    elif plan.victims:
        _reserve(node, model, plan)
    # else its room is free, and kept until its weights are here


def drop(node: Node) -> None:
    """Give the reserved GPUs back; whoever drained for it serves again."""
    assert node.reservation is not None
    model = node.reservation.model
    node.reservation = None
    node.changes += 1
    model.story.add(node.at, "its reservation is over")
    for instance in list(node.instances.values()):
        if instance.drain is not None and instance.drain.cause is None:
            lift_drain(node, instance)
            serve(node, instance)
            settle_orders(node, instance.model, ok=True, detail=f"{instance.model.name} is ready")
            node.refresh(instance.model)


def consider(node: Node) -> None:
    """Make a reservation for the first model that is due one; nobody pending can be placed as things are."""
    clearing = clearing_estimate(node)
    if node.reservation is not None or not _somebody_due(node, clearing):
        return
    failed = Failed()
    idle: dict[bool, dict[InstanceId, float]] = {}
    costs: dict[bool, dict[InstanceId, float]] = {}
    # with a free load slot everybody was tried just now but who waits for weights: for those there may be room without
    # a drain, and without a slot for others, too
    slot_free = node.loads_running < node.settings.max_concurrent_loads
    for name in node.pending:
        model = node.models[name]
        assert model.since is not None
        if lacks_weights(node, model, clearing):
            continue
        patient = is_patient(node, model, model.since, clearing)
        if failed.covers(model.need, patient=patient) or not drain_due(node, model, model.since, clearing):
            continue
        tried = slot_free and has_weights(model)
        if patient not in costs:
            costs[patient] = drain_costs(node, patient=patient)
        if not tried and patient not in idle:
            idle[patient] = candidates(node, patient=patient)
        if tried or _plan(node, model, idle[patient]) is None:
            plan = _plan(node, model, costs[patient])
            if plan is not None:
                _reserve(node, model, plan)
            elif patient and node.at - model.since >= keep_after(node):
                _keep_room(node, model)
            if node.reservation is not None:
                return
        failed.add(model.need, patient=patient)
        if failed.covers_all(node.needs):
            return


def _somebody_due(node: Node, clearing: int) -> bool:
    if not node.pending:
        return False
    oldest, limit = node.ages.first(), node.limits.first()
    assert oldest is not None
    assert limit is not None
    return node.at - oldest >= node.settings.drain_after or node.at >= limit - clearing


def _keep_room(node: Node, model: Model) -> None:
    """Keep GPUs for a model that only loads keep from a reservation."""
    costs, floor = drain_costs(node, patient=True), clock_floor(node)
    for instance in node.instances.values():
        if _is_in_the_way(instance) and not instance.model.pinned:
            costs[instance.id] = cost(node, instance, floor)
    plan = _plan(node, model, dict(sorted(costs.items())))
    awaited = () if plan is None else tuple(filter(_is_in_the_way, plan.victims))
    if plan is not None and awaited:
        node.changes += 1
        node.reservation = Reservation(model, plan.gpus, node.at, (), awaited)
        _tell(node, model, plan, "once the loads there have ended")


def _plan(node: Node, model: Model, costs: Mapping[InstanceId, float]) -> Plan | None:
    return find(node, model.need, node.topology.all_gpus, costs)


def _reserve(node: Node, model: Model, plan: Plan) -> None:
    node.changes += 1
    node.reservation = Reservation(model, plan.gpus, node.at, plan.victims)
    _tell(node, model, plan, f"draining {', '.join(victim.model.name for victim in plan.victims)}")
    _drain_victims(node, node.reservation)


def _tell(node: Node, model: Model, plan: Plan, what: str) -> None:
    where = f"{gpu_list(plan.gpus)} {'is' if plan.gpus.bit_count() == 1 else 'are'}"
    model.story.add(node.at, f"{where} reserved for it; {what}")
    node.story.add(node.at, f"{where} reserved for {model.name}; {what}")


def _drain_victims(node: Node, reservation: Reservation) -> None:
    for victim in reservation.victims:
        if victim.state is State.READY:
            why = f"{reservation.model.name} has waited long enough for its room"
            drain(node, victim, None, why, node.settings.drain_timeout)
