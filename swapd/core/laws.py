"""States what must be true after every event, as functions that raise; ``Scheduler.check`` runs them all.

A law about a decision (who was evicted, what was booked) looks at what the last step did; a law about the state looks
at everything. ``replay_is_exact`` cannot be seen from inside one run: the property suite states it over two.
"""

from typing import Final

from swapd.core import weight_laws
from swapd.core.commands import Answer, Transitioned
from swapd.core.eta import clearing_estimate
from swapd.core.guards import AUTO_PROTECTION_MOST, is_patient
from swapd.core.host_memory import held, promised
from swapd.core.ids import Instant, gpu_indices
from swapd.core.lawbook import law
from swapd.core.lifecycle import TABLE
from swapd.core.node import GpuRecord, Node
from swapd.core.reasons import State, UnloadCause
from swapd.core.sentences import gpu_list
from swapd.core.state import Instance, Phase
from swapd.core.suitable import is_able, is_named

_SERVING: Final = (State.READY, State.DRAINING)
_ORDERLY: Final = (UnloadCause.EVICTED, UnloadCause.IDLE, UnloadCause.LOAD_ABORTED, UnloadCause.OPERATOR,
                   UnloadCause.REMOVED, UnloadCause.CHANGED, UnloadCause.GPU_FAILED, UnloadCause.SHUTDOWN)  # fmt: skip
_LEGAL: Final = {(row.before, row.after): None for row in TABLE}


def check(node: Node) -> None:
    """Raise LawBrokenError if any law does not hold."""
    no_overcommit(node)
    host_memory_is_never_overbooked(node)
    only_good_gpus_are_taken(node)
    starts_are_confirmed(node)
    one_instance_per_model(node)
    only_ready_serves(node)
    never_evict_in_flight(node)
    never_evict_pinned(node)
    protection_is_bounded(node)
    no_needless_eviction(node)
    infeasible_evicts_nobody(node)
    answered_exactly_once(node)
    nothing_dropped(node)
    cancelled_never_loads(node)
    queue_bounded(node)
    commands_bounded(node)
    legal_transitions_only(node)
    weight_laws.check(node)


def no_overcommit(node: Node) -> None:
    """Neither what is held nor what is promised exceeds a GPU's memory; an exclusive model has its GPUs alone.

    Where memory is measured, engines may prove larger than booked, and others may come: there the law is that nothing
    is booked and nothing starts in this step on a GPU that is too full by what is known, foreign memory included. The
    same goes for a GPU that was found to be smaller than what was booked on it.
    """
    for gpu in node.gpus:
        held = [i for i in gpu.instances.values() if i.holds]
        promised = [i for i in gpu.instances.values() if i.state is not State.UNLOADING]
        strict = not gpu.measured and not gpu.shrunk
        for which, instances in (("held", held), ("promised", promised)):
            total = sum(instance.charge(gpu.index) for instance in instances) + gpu.foreign_bytes
            decided = any(_booked_now(node, i) if which == "promised" else _started_now(node, i) for i in instances)
            full = total > gpu.memory_bytes and (strict or decided)
            law(node, "no_overcommit", f"{total} bytes {which} on GPU {gpu.index}", holds=not full)
            alone = len(instances) < 2 or not any(instance.exclusive for instance in instances)
            law(node, "no_overcommit", f"an exclusive model shares GPU {gpu.index} ({which})", holds=alone)
        loading = sum(1 for i in held if i.state is State.LOADING)
        law(node, "no_overcommit", f"{loading} loads at once on GPU {gpu.index}", holds=loading <= 1)


def host_memory_is_never_overbooked(node: Node) -> None:
    """Neither what is held nor what is promised exceeds the host memory that models may take.

    What was booked before that became less stays.
    """
    most = node.topology.host_bytes
    if most is None:
        return
    owners = [instance for instance in node.instances.values() if instance.host_bytes]
    started, booked = any(_started_now(node, i) for i in owners), any(_booked_now(node, i) for i in owners)
    for which, total, decided in (("held", held(node), started), ("promised", promised(node), booked)):
        law(node, "host_memory_is_never_overbooked", f"{total} bytes {which}", holds=total <= most or not decided)


def only_good_gpus_are_taken(node: Node) -> None:
    """Whatever is booked or starts in this step stands on GPUs that may be used, of one product, and of its kind."""
    for instance in node.instances.values():
        if not (_booked_now(node, instance) or _started_now(node, instance)):
            continue
        gpus = [node.topology.gpus[index] for index in gpu_indices(instance.gpus)]
        name, where = "only_good_gpus_are_taken", f"{instance.model.name} on {gpu_list(instance.gpus)}"
        law(node, name, f"{where}: not placeable", holds=all(gpu.placeable for gpu in gpus))
        law(node, name, f"{where}: of several products", holds=len(dict.fromkeys(gpu.name for gpu in gpus)) == 1)
        kind = all(is_named(gpu, instance.model.need) and is_able(gpu, instance.model.need) for gpu in gpus)
        law(node, name, f"{where}: of another kind than it asks for", holds=kind)
        law(node, name, f"{where}: the driver is in trouble", holds=node.may_load)


def starts_are_confirmed(node: Node) -> None:
    """Where memory is measured, a load begins only after a reading that showed its room free."""
    for instance in node.instances.values():
        if _started_now(node, instance):
            for gpu in node.on(instance.gpus):
                fresh = not gpu.measured or gpu.taken >= max(instance.reserved_at, gpu.settled)
                shown = fresh and (not gpu.measured or _shows(gpu, instance))
                what = f"{instance.model.name} starts on GPU {gpu.index}, which is not shown to be free"
                law(node, "starts_are_confirmed", what, holds=shown)


def _shows(gpu: GpuRecord, instance: Instance) -> bool:
    free = gpu.startable_bytes
    return free is not None and free >= instance.bytes_per_gpu


def _booked_now(node: Node, instance: Instance) -> bool:
    return instance.reserved_at == node.at and instance.step == node.step and not instance.holds


def _started_now(node: Node, instance: Instance) -> bool:
    return instance.state is State.LOADING and instance.step == node.step


def one_instance_per_model(node: Node) -> None:
    """Each model has at most one instance that is not on its way out, and knows it."""
    current: dict[str, Instance] = {}
    for instance in node.instances.values():
        if instance.state in (State.UNLOADING, State.LEAKED):
            continue
        name = instance.model.name
        law(node, "one_instance_per_model", f"two instances of {name}", holds=name not in current)
        current[name] = instance
    for name, model in node.models.items():
        known = model.instance is current.get(name)
        law(node, "one_instance_per_model", f"{name} does not know its instance", holds=known)


def only_ready_serves(node: Node) -> None:
    """Nothing is in flight before an instance is ready, and a suspect one is ready."""
    for instance in node.instances.values():
        early = instance.state in (State.RESERVED, State.LOADING)
        served = not (early and instance.in_flight)
        law(node, "only_ready_serves", f"instance {instance.id} serves in {instance.state}", holds=served)


def never_evict_in_flight(node: Node) -> None:
    """Whoever leaves in good order serves nobody when it does."""
    for instance in _left_now(node):
        orderly = instance.cause in _ORDERLY
        clean = not (orderly and instance.in_flight)
        law(node, "never_evict_in_flight", f"instance {instance.id} left with requests in flight", holds=clean)


def never_evict_pinned(node: Node) -> None:
    """No pinned model is evicted."""
    for instance in _left_now(node):
        pinned = instance.eviction is not None and instance.eviction.was_pinned
        law(node, "never_evict_pinned", f"{instance.model.name} was evicted", holds=not pinned)


def protection_is_bounded(node: Node) -> None:
    """Who is protected leaves only for somebody who is patient; protection has a bound."""
    longest = AUTO_PROTECTION_MOST if node.settings.protect is None else node.settings.protect
    clearing = clearing_estimate(node)
    for instance in _left_now(node):
        eviction = instance.eviction
        if eviction is None:
            continue
        over = eviction.protected_until <= node.at
        since = Instant(node.at - eviction.waited)
        waited = is_patient(node, node.models[eviction.successor], since, clearing)
        name = instance.model.name
        law(node, "protection_is_bounded", f"{name} was evicted while protected", holds=over or waited)
        bounded = eviction.protected_until - instance.last_used <= longest
        law(node, "protection_is_bounded", f"{name} was protected too long", holds=bounded)


def no_needless_eviction(node: Node) -> None:
    """Every victim of a booking was in its way, on a GPU or in host memory.

    Seen where a step books once, as later bookings change the picture.
    """
    bookings = [note.instance for note in node.out if isinstance(note, Transitioned) and note.before is None]
    if len(bookings) != 1 or bookings[0] not in node.instances:
        return
    instance = node.instances[bookings[0]]
    for victim in _left_now(node):
        if victim.eviction is None or victim.eviction.successor != instance.model.name:
            continue
        shared = [gpu for gpu in node.on(instance.gpus) if victim.id in gpu.instances]
        needed = any(_in_the_way(gpu, instance, victim) for gpu in shared) or _in_the_host(node, instance, victim)
        law(node, "no_needless_eviction", f"{victim.model.name} need not have left", holds=needed)


def _in_the_way(gpu: GpuRecord, instance: Instance, victim: Instance) -> bool:
    """Say whether ``instance`` would not fit on ``gpu`` if ``victim`` had stayed."""
    if instance.exclusive or victim.exclusive:
        return True
    stay = [i for i in gpu.instances.values() if i.state is not State.UNLOADING or i is victim]
    return sum(i.charge(gpu.index) for i in stay) > gpu.memory_bytes - gpu.foreign_bytes


def _in_the_host(node: Node, instance: Instance, victim: Instance) -> bool:
    """Say whether ``instance`` would not fit into host memory if ``victim`` had stayed."""
    most = node.topology.host_bytes
    if most is None or not instance.host_bytes or not victim.host_bytes:
        return False
    return promised(node) + victim.host_bytes > most


def infeasible_evicts_nobody(node: Node) -> None:
    """Whoever was evicted made room that was booked in the same step, or gave up its copy for a fetch."""
    for instance in _left_now(node):
        if instance.eviction is None:
            continue
        heirs = [i for i in node.instances.values() if i.model.name == instance.eviction.successor]
        booked = any(heir.step == node.step for heir in heirs)
        gave = instance.model.weights.given_to == instance.eviction.successor
        law(node, "infeasible_evicts_nobody", f"{instance.model.name} left for nothing", holds=booked or gave)


def answered_exactly_once(node: Node) -> None:
    """Every open request stands in exactly one place, and no answered one is open."""
    for request in node.requests.values():
        queued = request in request.model.queue
        granted = request.instance is not None and request.id in request.instance.in_flight
        right = (queued, granted) == (request.phase is Phase.QUEUED, request.phase is Phase.GRANTED)
        law(node, "answered_exactly_once", f"request {request.id} is lost", holds=right)
        law(node, "answered_exactly_once", f"{request.id} was refused", holds=request.id not in node.refused)
    open_ = sum(len(model.queue) for model in node.models.values())
    waiting = sum(1 for request in node.requests.values() if request.phase is Phase.QUEUED)
    law(node, "answered_exactly_once", "a queue holds requests that ended", holds=open_ == waiting)
    answers = [command.request for command in node.out if isinstance(command, Answer)]
    law(node, "answered_exactly_once", "an order was answered twice", holds=len(answers) == len(dict.fromkeys(answers)))


def nothing_dropped(node: Node) -> None:
    """Whoever waits is looked at again: by deadline, and as pending if there is no instance."""
    for name, model in node.models.items():
        waits = bool(model.queue)
        law(node, "nothing_dropped", f"{name} has no deadline", holds=not waits or name in node.deadlines)
        answered = model.instance is None or model.instance.state is not State.READY or not model.orders
        law(node, "nothing_dropped", f"operators wait for {name}, which is ready", holds=answered)
        absent = model.instance is None and (waits or bool(model.orders))
        law(node, "nothing_dropped", f"{name} is pending unknown to the node", holds=absent == (name in node.pending))
    first = node.deadlines.first()
    if first is not None:
        in_time = node.wake is not None and node.wake <= first
        law(node, "nothing_dropped", "the next wake-up is after a deadline", holds=in_time)


def cancelled_never_loads(node: Node) -> None:
    """No room is kept for, and no load begins for, a model that nobody waits for."""
    for instance in node.instances.values():
        model = instance.model
        wanted = model.claimed or model.name in node.wishes or instance.ahead
        begins = instance.state is State.LOADING and instance.step == node.step
        idle = (begins or instance.state is State.RESERVED) and not wanted
        law(node, "cancelled_never_loads", f"{model.name} loads for nobody", holds=not idle)


def queue_bounded(node: Node) -> None:
    """No more requests wait for a model than its limit, and loads stay within theirs."""
    for name, model in node.models.items():
        bounded = len(model.queue) <= model.spec.max_queue
        law(node, "queue_bounded", f"{len(model.queue)} wait for {name}", holds=bounded)
    running = sum(1 for i in node.instances.values() if i.state in (State.RESERVED, State.LOADING))
    law(node, "queue_bounded", "loads are miscounted", holds=running == node.loads_running)


def commands_bounded(node: Node) -> None:
    """One event gives no more orders and notes than there are things to speak about."""
    things = len(node.requests) + len(node.refused) + len(node.models) + len(node.instances) * len(node.models)
    law(node, "commands_bounded", f"{len(node.out)} commands", holds=len(node.out) <= 32 + 8 * things)


def legal_transitions_only(node: Node) -> None:
    """Every step of this event stands in the table."""
    for note in node.out:
        if isinstance(note, Transitioned):
            legal = (note.before, note.after) in _LEGAL
            law(node, "legal_transitions_only", f"{note.before} to {note.after}", holds=legal)


def _left_now(node: Node) -> list[Instance]:
    """Return the instances that began to unload in the last step."""
    return [i for i in node.instances.values() if i.state is State.UNLOADING and i.step == node.step]
