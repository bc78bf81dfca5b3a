"""Estimates: how long a load, a drain, a release take, and when a model will be ready.

ETA = max((slots busy ? shortest remaining load : 0) + (victims busy ? remaining drain : 0) + release, remaining fetch)
+ Lhat: making room and fetching go on side by side.
An estimate is what a client is told and what patience is measured against; no law rests on it.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from swapd.core.catalog import Source
from swapd.core.eviction import candidates, clock_floor, cost, find
from swapd.core.guards import drainable
from swapd.core.ids import SECOND, Duration, GpuSet, InstanceId, Instant
from swapd.core.node import Node
from swapd.core.reasons import State
from swapd.core.state import Instance, Model
from swapd.core.weights import is_guess, median, remaining_fetch

#: expected time from stop to released memory before any was measured
RELEASE_ESTIMATE: Final = Duration(3 * SECOND)
#: measured times kept per model and source
KEPT: Final = 5
SERVICE_WEIGHT: Final = 0.2


def note_load_times(model: Model, source: Source, times: Iterable[Duration]) -> None:
    """Remember measured load times; the median of the last five is what is expected from now on."""
    kept = model.load_times.setdefault(source, deque(maxlen=KEPT))
    kept.extend(times)
    if kept:
        model.typical = dict(sorted({**model.typical, source: median(kept)}.items()))
    expect(model)


def expect(model: Model) -> None:
    """Set the expected load time: as measured where the weights came from last, disk or memory; else as configured."""
    typical = model.typical
    sources = (model.weights.local, Source.CACHE, Source.PAGE_CACHE)
    model.lhat = next((typical[source] for source in sources if source in typical), model.spec.load_estimate)


def note_service(model: Model, duration: int) -> None:
    """Remember how long a request was in flight."""
    model.service += (duration - model.service) * (SERVICE_WEIGHT if model.service else 1.0)


def note_release_time(node: Node, model: Model, took: Duration) -> None:
    """Remember how long it took from the order to stop until the memory was free."""
    node.release_times.append(took)
    node.usual_release = median(node.release_times)
    model.release_times.append(took)
    model.release = median(model.release_times)
    node.longest_release = max(other.release or Duration(0) for other in node.models.values())


def release_estimate(node: Node) -> Duration:
    """Return the expected time from the order to stop until the memory is free, whoever it is."""
    return RELEASE_ESTIMATE if node.usual_release is None else node.usual_release


def release_of(node: Node, victims: Iterable[Instance]) -> Duration:
    """Return that time for these: the longest of theirs. Without any it is that of whoever it is."""
    whoever = release_estimate(node)
    return max((whoever if i.model.release is None else i.model.release for i in victims), default=whoever)


def longest_release(node: Node) -> Duration:
    """Return the longest that time is expected to be, with whatever victims."""
    return max(release_estimate(node), node.longest_release)


def longest_drain(node: Node) -> int:
    """Return how long the residents' requests are expected to take, from the grant on."""
    busy = (i.model.service for i in node.instances.values() if i.in_flight)
    return round(max(busy, default=0.0))


def clearing_estimate(node: Node) -> int:
    """Return how long it is expected to take to drain and release whatever is resident."""
    return release_estimate(node) + longest_drain(node)


def weights_slack(node: Node) -> int:
    """Return how far off the weights of a model may be that has room already: somewhat further than to be given it."""
    return longest_release(node) + longest_drain(node) + node.settings.release_timeout


def drain_due(node: Node, model: Model, since: Instant, clearing: int) -> bool:
    """Say whether somebody who waits since then may have residents drained.

    That is after ``drain_after``, or so much earlier that ``max_wait`` stays within reach; ``clearing`` is the
    clearing estimate.
    """
    waited = node.at - since
    return waited >= node.settings.drain_after or waited >= model.spec.max_wait - model.lhat - clearing


def keep_after(node: Node) -> Duration:
    """Return after which wait GPUs are kept for a model although loads are in its way.

    Most have ended by then anyway. From ``drain_after`` on it would cost 1 to 3 % of the mean wait (decision 16).
    """
    return Duration(node.settings.drain_after * 3 // 2)


def remaining_drain(node: Node, instance: Instance) -> int:
    """Return how long the requests in flight are expected to go on."""
    if not instance.in_flight:
        return 0
    return max(0, round(instance.model.service) - (node.at - instance.last_grant))


def _fetch(node: Node, model: Model, *, guessing: bool) -> Duration:
    """Return the rest of a fetch; without ``guessing`` one of which nothing is known counts as none."""
    return remaining_fetch(node, model, node.at) if guessing or not is_guess(node, model) else Duration(0)


def remaining_load(node: Node, instance: Instance, *, guessing: bool = True) -> Duration:
    """Return how long an instance on its way is expected to take until it is ready."""
    expected = instance.model.lhat
    if instance.state is State.LOADING:
        return Duration(max(0, instance.started_at + expected - node.at))
    room = max(0, instance.reserved_at + release_estimate(node) - node.at)
    return Duration(max(room, _fetch(node, instance.model, guessing=guessing)) + expected)


def overdue_load(node: Node, instance: Instance) -> bool:
    """Say whether an instance loads for longer than expected, so that nobody knows how long it still takes."""
    return instance.state is State.LOADING and node.at >= instance.started_at + instance.model.lhat


def overdue_service(node: Node, instance: Instance) -> bool:
    """Say whether every request in flight has taken longer than expected already."""
    return bool(instance.in_flight) and node.at - instance.last_grant >= instance.model.service


def surplus(node: Node, model: Model) -> GpuSet:
    """Return the GPUs a model may look at: all, or all but those reserved for another one."""
    reservation = node.reservation
    if reservation is None or reservation.model is model:
        return node.topology.all_gpus
    return GpuSet(node.topology.all_gpus & ~reservation.gpus)


def slot_wait(node: Node) -> Duration:
    """Return how long until a load may begin: 0, or the shortest remaining load if all slots are busy."""
    if node.loads_running < node.settings.max_concurrent_loads:
        return Duration(0)
    return shortest_load(node)


def shortest_load(node: Node) -> Duration:
    """Return the shortest remaining load; 0 if there is none."""
    running = (i for i in node.instances.values() if i.state in (State.RESERVED, State.LOADING))
    return min((remaining_load(node, i) for i in running), default=Duration(0))


def room_wait(node: Node, model: Model) -> Duration:
    """Return how long until the room of a model without an instance is expected to be free."""
    need, avail = model.need, surplus(node, model)
    plan = find(node, need, avail, candidates(node, patient=True, holder=True))
    if plan is not None:
        return release_of(node, plan.victims) if plan.victims or plan.waits else Duration(0)
    plan = find(node, need, avail, drain_costs(node, patient=True))
    if plan is None:
        return Duration(shortest_load(node) + release_estimate(node))
    drain = max((remaining_drain(node, v) for v in plan.victims), default=0)
    return Duration(drain + release_of(node, plan.victims))


def drain_costs(node: Node, *, patient: bool) -> dict[InstanceId, float]:
    """Return who may be a victim now or after a drain, and the cost of losing each, by id."""
    costs = candidates(node, patient=patient, holder=True)
    floor = clock_floor(node)
    for instance in node.instances.values():
        if instance.id not in costs and drainable(node, instance, patient=patient):
            costs[instance.id] = cost(node, instance, floor)
    return dict(sorted(costs.items()))


def eta(node: Node, model: Model, *, guessing: bool = True) -> Duration:
    """Return when a request for this model is expected to be served, from now.

    Without ``guessing`` a fetch of which nothing is known yet counts as none.
    """
    instance = model.instance
    if instance is None:
        room = slot_wait(node) + room_wait(node, model)
        return Duration(max(room, _fetch(node, model, guessing=guessing)) + model.lhat)
    if instance.state is State.READY:
        rounds = 1 + len(model.queue) // model.spec.concurrency
        return Duration(round(model.service) * rounds)
    if instance.state is State.DRAINING:
        room = remaining_drain(node, instance) + release_of(node, (instance,))
        return Duration(max(room, _fetch(node, model, guessing=guessing)) + model.lhat)
    return remaining_load(node, instance, guessing=guessing)


def surely_within(node: Node, model: Model, limit: Duration) -> bool:
    """Say, without looking for a plan, whether even the longest estimate for a load stays within a limit."""
    room = shortest_load(node) + clearing_estimate(node)
    return max(room, remaining_fetch(node, model, node.at)) + model.lhat <= limit
