"""Decides who may leave, and which set of victims makes room at the least cost.

Rules that hold here:

* A victim has nothing in flight and nobody waiting, is not pinned, and is outside its protection, unless the newcomer
  has waited ``protect_max_wait``. The least residency holds whoever waits.
* A load that nobody waits for may be broken off; one that somebody waits for never.
* Nobody leaves a GPU while a neighbour loads there: engines size their cache from a snapshot of free memory.
* The plan is the legal set with the least sum of worth × GPUs; of equals the one with the fewest victims, then the one
  that need not wait for memory already on its way back, then the order of ``placement.legal_sets``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from swapd.core.catalog import Footprint
from swapd.core.ids import SECOND, Duration, GpuSet, InstanceId, Instant
from swapd.core.node import Node
from swapd.core.placement import GpuOption, legal_sets, option
from swapd.core.policies.base import Resident
from swapd.core.reasons import EvictionBlock, State
from swapd.core.state import Instance, Model, Need

AUTO_PROTECTION_MOST: Final = Duration(120 * SECOND)
#: subsets of sharing victims looked at for one set of GPUs before the best so far is taken
SEARCH_LIMIT: Final = 4096
_NEVER: Final = Instant(-(1 << 62))


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a model goes and who leaves for it."""

    gpus: GpuSet
    #: by id
    victims: tuple[Instance, ...]
    #: somebody is unloading there already
    waits: bool


def protection(node: Node, model: Model) -> Duration:
    """Return the protection time T of a model."""
    if node.settings.protect is None:
        return min(model.lhat, AUTO_PROTECTION_MOST)
    return node.settings.protect


def protected_until(node: Node, instance: Instance) -> Instant:
    """Return when the protection of an idle instance ends."""
    return Instant(instance.last_used + protection(node, instance.model))


def resident_until(node: Node, instance: Instance) -> Instant:
    """Return when the least residency of an instance ends."""
    settings = node.settings
    relative = round(settings.min_residency_load_times * instance.model.lhat)
    return Instant(instance.ready_at + max(settings.min_residency, relative))


def quiet(node: Node, instance: Instance) -> bool:
    """Say whether no neighbour on the same GPUs is loading."""
    return not any(other.state is State.LOADING for other in node.neighbours(instance))


def patient_limit(node: Node) -> Instant:
    """Return since when somebody must have waited to override protection."""
    wait = node.settings.protect_max_wait
    return _NEVER if wait is None else Instant(node.at - wait)


class Failed:
    """Which footprints found no room in this round; who is patient and fails would fail as well if it were not."""

    __slots__ = ("_all", "_patient")

    def __init__(self) -> None:
        self._all: dict[Need, None] = {}
        self._patient: dict[Need, None] = {}

    def add(self, need: Need, *, patient: bool) -> None:
        """Note a footprint that found no room."""
        self._all[need] = None
        if patient:
            self._patient[need] = None

    def covers(self, need: Need, *, patient: bool) -> bool:
        """Say whether trying again is in vain."""
        return need in (self._patient if patient else self._all)

    def covers_all(self, needs: Mapping[Need, int]) -> bool:
        """Say whether no footprint is left that is worth a try."""
        return len(self._patient) == len(needs)


def evictable(node: Node, instance: Instance, *, patient: bool, holder: bool) -> bool:
    """Say whether an instance may be a victim now; ``holder``: of the model that holds the reservation."""
    model = instance.model
    if instance.state is State.LOADING:
        return not model.claimed
    if instance.in_flight or model.pinned or not quiet(node, instance):
        return False
    if instance.state is State.DRAINING:
        if not holder or instance.drain is None or instance.drain.cause is not None:
            return False
    elif instance.state is not State.READY or model.queue or node.at < resident_until(node, instance):
        return False
    return patient or node.at >= protected_until(node, instance)


def drainable(node: Node, instance: Instance, *, patient: bool) -> bool:
    """Say whether an instance may be asked to drain in favour of a reservation, busy or not."""
    model = instance.model
    if instance.state is State.LOADING:
        return not model.claimed
    if instance.state is not State.READY or model.pinned or node.at < resident_until(node, instance):
        return False
    if patient or not protection(node, model):
        return True
    return not instance.in_flight and not model.queue and node.at >= protected_until(node, instance)


def blocked_by(node: Node, instance: Instance, *, patient: bool) -> EvictionBlock | None:
    """Return why a ready instance may not be a victim now, if the notes have a word for it."""
    if instance.state is not State.READY:
        return None
    if instance.model.pinned:
        return EvictionBlock.PINNED
    if instance.in_flight:
        return EvictionBlock.IN_FLIGHT
    if not patient and node.at < protected_until(node, instance):
        return EvictionBlock.PROTECTED
    return None


def candidates(node: Node, *, patient: bool, holder: bool = False) -> dict[InstanceId, float]:
    """Return who may be a victim now, and the cost of losing each: worth × GPUs."""
    return {
        instance.id: cost(node, instance)
        for instance in node.instances.values()
        if evictable(node, instance, patient=patient, holder=holder)
    }


def cost(node: Node, instance: Instance) -> float:
    """Return what the policy says it costs to lose an instance."""
    model = instance.model
    gpus = instance.gpus.bit_count()
    resident = Resident(
        model=model.name,
        gpus=gpus,
        load_time=model.lhat,
        last_used=instance.last_used,
        worth=model.worth,
        at=node.at,
    )
    return node.policy.value(resident) * gpus


def find(node: Node, need: Footprint, avail: GpuSet, costs: Mapping[InstanceId, float]) -> Plan | None:
    """Return the cheapest plan within ``avail`` when the instances in ``costs`` may leave; ``None``: there is none."""
    options: dict[int, GpuOption] = {}
    usable = clear = 0
    for gpu in node.on(avail):
        found = option(gpu, need, costs)
        if found is not None:
            options[gpu.index] = found
            usable |= 1 << gpu.index
            clear |= found.clear << gpu.index
    if usable.bit_count() < need.gpus:
        return None
    sets = legal_sets(len(node.gpus), need.gpus)
    if clear.bit_count() >= need.gpus:
        return Plan(next(gpus for gpus in sets if not gpus & ~clear), (), waits=False)
    best: tuple[float, int, bool] | None = None
    plan: Plan | None = None
    for gpus in sets:
        if gpus & ~usable:
            continue
        victims, waits = _victims([options[gpu.index] for gpu in node.on(gpus)], gpus, costs)
        key = (sum(costs[victim.id] for victim in victims), len(victims), waits)
        if best is None or key < best:
            best, plan = key, Plan(gpus, victims, waits)
    return plan


def _victims(
    options: list[GpuOption], gpus: GpuSet, costs: Mapping[InstanceId, float]
) -> tuple[tuple[Instance, ...], bool]:
    """Return the cheapest victims for one set of GPUs, by id, and whether somebody is unloading there."""
    must: dict[InstanceId, Instance] = {}
    may: dict[InstanceId, Instance] = {}
    missing: dict[int, int] = {}
    waits = False
    indices = [index for index in range(gpus.bit_length()) if gpus >> index & 1]
    for index, found in zip(indices, options, strict=True):
        waits = waits or found.waits
        for victim in found.victims:
            must[victim.id] = victim
        if found.missing_bytes:
            missing[index] = found.missing_bytes
            for sharer in found.sharers:
                may[sharer.id] = sharer
    if missing:
        for victim in _cheapest(missing, list(may.values()), costs):
            must[victim.id] = victim
    return tuple(sorted(must.values(), key=_by_id)), waits


def _cheapest(missing: dict[int, int], sharers: list[Instance], costs: Mapping[InstanceId, float]) -> list[Instance]:
    """Return the subset of sharers of least cost (then fewest, then least bytes) that frees the missing bytes.

    Depth first over the sharers, cheapest first, cut off as soon as a branch costs more than the best so far.
    """
    order = sorted(sharers, key=lambda victim: (costs[victim.id], victim.bytes_per_gpu, victim.id))
    best: list[Instance] = order
    best_key = (float("inf"), 0, 0)
    steps = 0
    stack: list[tuple[int, tuple[Instance, ...]]] = [(0, ())]
    while stack and steps < SEARCH_LIMIT:
        steps += 1
        index, chosen = stack.pop()
        key = (sum(costs[v.id] for v in chosen), len(chosen), sum(v.bytes_per_gpu for v in chosen))
        if key >= best_key:
            continue
        if _enough(missing, chosen):
            best, best_key = list(chosen), key
        elif index < len(order):
            stack.append((index + 1, chosen))
            stack.append((index + 1, (*chosen, order[index])))
    return _pruned(missing, best)


def _pruned(missing: dict[int, int], victims: list[Instance]) -> list[Instance]:
    """Strike out, the dearest first, whoever proves unnecessary."""
    kept = list(victims)
    for victim in reversed(victims):
        rest = [other for other in kept if other is not victim]
        if _enough(missing, rest):
            kept = rest
    return kept


def _enough(missing: dict[int, int], victims: "list[Instance] | tuple[Instance, ...]") -> bool:
    return all(
        sum(victim.bytes_per_gpu for victim in victims if victim.gpus >> index & 1) >= bytes_
        for index, bytes_ in missing.items()
    )


def _by_id(instance: Instance) -> InstanceId:
    return instance.id
