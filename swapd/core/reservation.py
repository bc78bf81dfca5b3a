"""Decides for whom GPUs are kept and drained, so that a model whose victims are never idle gets its turn.

Rules that hold here:

* One reservation at a time. It is made for the first pending model that has waited its ``drain_after``, cannot be
  placed, and could be if busy residents let their requests finish.
* Its victims drain: what is in flight finishes, what is new queues behind it. Nobody is stopped before all of them
  are idle, so a reservation that is dropped has cost nobody a reload.
* It is dropped as soon as its model is placed, nobody waits for it any more, or its weights prove to be far off; then
  its victims serve again.
* The other models go on with the GPUs outside it.
"""

from collections.abc import Mapping

from swapd.core.eta import clearing_estimate, drain_costs, drain_due, weights_slack
from swapd.core.eviction import Failed, Plan, candidates, find
from swapd.core.grants import serve, settle_orders
from swapd.core.guards import is_patient
from swapd.core.ids import InstanceId
from swapd.core.moves import drain, lift_drain
from swapd.core.node import Node, Reservation
from swapd.core.placement import option, suited
from swapd.core.reasons import State
from swapd.core.sentences import gpu_list
from swapd.core.state import Model
from swapd.core.weights import lacks_weights


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
    _drain_victims(node, reservation)


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
    # with a free load slot everybody was tried just now; without one, some may only be waiting for a load to end
    slot_free = node.loads_running < node.settings.max_concurrent_loads
    for name in node.pending:
        model = node.models[name]
        assert model.since is not None
        if lacks_weights(node, model, clearing):
            continue
        patient = is_patient(node, model, model.since, clearing)
        if failed.covers(model.need, patient=patient) or not drain_due(node, model, model.since, clearing):
            continue
        if patient not in costs:
            idle[patient] = {} if slot_free else candidates(node, patient=patient)
            costs[patient] = drain_costs(node, patient=patient)
        placeable = not slot_free and _plan(node, model, idle[patient]) is not None
        plan = None if placeable else _plan(node, model, costs[patient])
        if plan is not None:
            _reserve(node, model, plan)
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


def _plan(node: Node, model: Model, costs: Mapping[InstanceId, float]) -> Plan | None:
    return find(node, model.need, node.topology.all_gpus, costs)


def _reserve(node: Node, model: Model, plan: Plan) -> None:
    node.changes += 1
    node.reservation = Reservation(model, plan.gpus, node.at, plan.victims)
    names = ", ".join(victim.model.name for victim in plan.victims)
    where = f"{gpu_list(plan.gpus)} {'is' if plan.gpus.bit_count() == 1 else 'are'}"
    model.story.add(node.at, f"{where} reserved for it; draining {names}")
    node.story.add(node.at, f"{where} reserved for {model.name}; draining {names}")
    _drain_victims(node, node.reservation)


def _drain_victims(node: Node, reservation: Reservation) -> None:
    for victim in reservation.victims:
        if victim.state is State.READY:
            why = f"{reservation.model.name} has waited long enough for its room"
            drain(node, victim, None, why, node.settings.drain_timeout)
