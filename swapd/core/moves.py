"""Takes an instance from one state to the next, with everything that belongs to the step.

Rules that hold here: every step goes through the table of ``lifecycle``; an instance that is unloading is nobody's any
more from that step on; an order to stop is given once, a kill once. When memory is free is decided in ``release``.
"""

from typing import Final

from swapd.core.commands import Answer, Evicted, Kill, Placed, ReleaseConfirmed, Start, Stop, Transitioned
from swapd.core.eta import note_release_time
from swapd.core.eviction import Plan
from swapd.core.guards import protected_until
from swapd.core.ids import SECOND, Duration, InstanceId, Instant
from swapd.core.lifecycle import Cause, after
from swapd.core.node import Node
from swapd.core.reasons import LoadResult, Stage, State, UnloadCause
from swapd.core.state import Drain, Eviction, Instance, Model, Stopping
from swapd.core.swaps import load_ended
from swapd.core.warming import warm
from swapd.core.weights import starved_before

#: how long a stop hook may run before the signal goes out
HOOK_ALLOWANCE: Final = Duration(120 * SECOND)
#: how long the signal itself may take to go out without a hook
SIGNAL_ALLOWANCE: Final = Duration(10 * SECOND)
#: an aborted load has nothing to lose
ABORT_GRACE_MOST: Final = Duration(5 * SECOND)

_RUNNING: Final = (State.RESERVED, State.LOADING)
_SERVING: Final = (State.READY, State.DRAINING)
_OVER: Final = (State.UNLOADING, State.LEAKED, State.GONE)


def step(node: Node, instance: Instance, cause: Cause, why: str) -> None:
    """Take one step of the table."""
    before = instance.state
    state = after(before, cause, instance=instance.id, story=instance.story.lines())
    node.changes += 1
    instance.story.add(node.at, f"{state.value}: {why}")
    if state is before:
        return
    instance.state = state
    instance.since = node.at
    instance.step = node.step
    node.loads_running += (state in _RUNNING) - (before in _RUNNING)
    _tell(node, instance, before, why)
    model = instance.model
    if model.instance is instance and state in _OVER:
        model.instance = None
        # whoever waits for it was let wait because it was there; with a GPU less it may find no place again
        node.recheck = node.recheck or bool(node.cordoned)
    if state is State.GONE:
        del node.instances[instance.id]
        for gpu in node.on(instance.gpus):
            gpu.instances.pop(instance.id, None)
    node.refresh(model)


def _tell(node: Node, instance: Instance, before: State | None, why: str) -> None:
    model = instance.model
    model.story.add(node.at, f"{instance.state.value}: {why}")
    node.story.add(node.at, f"{model.name} {instance.state.value}: {why}")
    node.out.append(Transitioned(instance.id, model.name, instance.gpus, before, instance.state, why))


def book(node: Node, model: Model, plan: Plan, why: str) -> Instance:
    """Book the GPUs of a plan for a new instance, and order its victims to leave."""
    need = model.need
    instance = Instance(
        id=node.next_instance,
        model=model,
        spec=model.spec,
        gpus=plan.gpus,
        state=after(None, Cause.PLANNED, instance=node.next_instance),
        since=node.at,
        step=node.step,
        reserved_at=node.at,
        bytes_per_gpu=need.bytes_per_gpu,
        exclusive=need.exclusive,
        host_bytes=need.host_bytes,
        victims=tuple(victim.model.name for victim in plan.victims),
    )
    node.next_instance = InstanceId(node.next_instance + 1)
    node.changes += 1
    node.loads_running += 1
    instance.waited_from = node.at if model.since is None else model.since
    reservation = node.reservation
    if reservation is not None and reservation.model is model:
        instance.timeline.append((Stage.DRAIN, reservation.since))
    if plan.victims or plan.waits:
        instance.timeline.append((_first_stage(node, plan), node.at))
    instance.starved = starved_before(node, instance)
    node.instances[instance.id] = instance
    for gpu in node.on(plan.gpus):
        gpu.instances[instance.id] = instance
    model.instance = instance
    instance.story.add(node.at, f"{instance.state.value}: {why}")
    _tell(node, instance, None, why)
    node.out.append(Placed(instance.id, model.name, plan.gpus, node.boards.quality(plan.gpus)))
    for victim in plan.victims:
        evict(node, victim, model)
    warm(node, model)
    node.refresh(model)
    return instance


def _first_stage(node: Node, plan: Plan) -> Stage:
    """Return what a plan waits for first: processes that have to end, or memory alone."""
    leaving = [i for gpu in node.on(plan.gpus) for i in gpu.instances.values() if i.state is State.UNLOADING]
    ended = leaving and all(i.stopping is not None and i.stopping.processes_gone for i in leaving)
    return Stage.RELEASE if ended and not plan.victims else Stage.STOP


def evict(node: Node, victim: Instance, successor: Model) -> None:
    """Order an instance to leave in favour of another model."""
    node.clock = max(node.clock, victim.model.worth)
    if victim.state is State.LOADING:
        abort_load(node, victim, Cause.ABORTED, f"nobody waits for it and {successor.name} needs its room")
        return
    since = successor.since
    victim.eviction = Eviction(
        successor=successor.name,
        waited=Duration(0 if since is None else node.at - since),
        protected_until=protected_until(node, victim),
        was_pinned=victim.model.pinned,
    )
    unload(node, victim, UnloadCause.EVICTED, Cause.EVICTED, f"evicted for {successor.name}")


def start(node: Node, instance: Instance) -> None:
    """Start the engine of an instance whose room is free."""
    step(node, instance, Cause.ROOM_FREE, "its room is free")
    instance.started_at = instance.progress_at = node.at
    instance.timeline.append((Stage.SPAWN, node.at))
    gpus = [node.topology.gpus[index] for index in node.boards.ring_order(instance.gpus)]
    numa = sorted(dict.fromkeys(gpu.numa for gpu in gpus if gpu.numa >= 0))
    cpus = sorted(dict.fromkeys(cpu for gpu in gpus for cpu in gpu.cpus))
    devices = tuple(gpu.uuid for gpu in gpus)
    node.out.append(Start(instance.id, instance.spec, instance.gpus, devices, tuple(numa), tuple(cpus)))


def drain(node: Node, instance: Instance, cause: UnloadCause | None, why: str, limit: Duration | None) -> None:
    """Let an instance finish what it serves; ``cause`` ``None``: in favour of a reservation."""
    deadline = None if limit is None else Instant(node.at + limit)
    if instance.state is State.READY:
        step(node, instance, Cause.DRAIN, why)
    instance.drain = Drain(node.at, cause, deadline)


def lift_drain(node: Node, instance: Instance) -> None:
    """Take a draining instance back into service."""
    instance.drain = None
    step(node, instance, Cause.DRAIN_LIFTED, "its room is not needed any more")


def abort_load(
    node: Node, instance: Instance, step_cause: Cause, why: str, cause: UnloadCause = UnloadCause.LOAD_ABORTED
) -> None:
    """Break off a load that has begun."""
    load_ended(node, instance, LoadResult.ABORTED, detail=why)
    unload(node, instance, cause, step_cause, why, grace=min(instance.spec.stop_grace, ABORT_GRACE_MOST))


def forget(node: Node, instance: Instance, cause: Cause, why: str) -> None:
    """Give up a reservation that has not started."""
    step(node, instance, cause, why)
    answer_unloads(node, instance, ok=True)


def unload(
    node: Node, instance: Instance, cause: UnloadCause, step_cause: Cause, why: str, *, grace: Duration | None = None
) -> None:
    """Order an instance to stop."""
    at, spec = node.at, instance.spec
    if grace is None:
        grace = spec.stop_grace
    allowance = HOOK_ALLOWANCE if spec.has_stop_command else SIGNAL_ALLOWANCE
    served = instance.state in _SERVING
    for gpu in node.on(instance.gpus):
        gpu.settled = at
    instance.cause = cause
    instance.drain = None
    instance.suspect = False
    instance.stopping = Stopping(at, grace, Instant(at + allowance + grace))
    step(node, instance, step_cause, why)
    node.out.append(Stop(instance.id, instance.model.name, cause))
    demand = instance.model.demand
    demand.evicted_by = None
    if not served or cause is UnloadCause.SHUTDOWN:
        return
    successor = instance.eviction.successor if instance.eviction else None
    if successor is not None:
        demand.evicted_at, demand.evicted_by = at, successor
    node.out.append(Evicted(instance.id, instance.model.name, cause, successor))


def kill(node: Node, instance: Instance, stopping: Stopping) -> None:
    """Kill an instance whose grace has passed."""
    stopping.kill_at = None
    stopping.leak_at = Instant(node.at + node.settings.release_timeout)
    step(node, instance, Cause.STOP_DEADLINE, "killed: its stop grace has passed")
    node.out.append(Kill(instance.id, instance.model.name))


def leak(node: Node, instance: Instance) -> None:
    """Quarantine the memory of an instance that was not confirmed released; until now its engine may have grown."""
    for gpu in node.on(instance.gpus):
        gpu.settled = node.at
    step(node, instance, Cause.RELEASE_DEADLINE, "its memory was not confirmed released in time")
    node.recheck = True
    answer_unloads(node, instance, ok=False)


def released(node: Node, instance: Instance) -> None:
    """Let an instance go whose memory is free."""
    stopping = instance.stopping
    assert stopping is not None
    if instance.state is State.UNLOADING:
        note_release_time(node, instance.model, Duration(node.at - stopping.ordered_at))
    step(node, instance, Cause.MEMORY_RELEASED, "its memory is released")
    after_end = Duration(0 if stopping.gone_at is None else node.at - stopping.gone_at)
    node.out.append(ReleaseConfirmed(instance.id, instance.model.name, after_end, stopping.by))
    answer_unloads(node, instance, ok=True)


def answer_unloads(node: Node, instance: Instance, *, ok: bool) -> None:
    """Answer the operators who wait for an instance to be gone."""
    name = instance.model.name
    detail = f"{name} is unloaded" if ok else f"{name} has stopped, but its memory was not released in time"
    for order in instance.unload_orders:
        node.out.append(Answer(order, ok, detail))
    instance.unload_orders.clear()
