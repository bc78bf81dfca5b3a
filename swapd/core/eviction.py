"""Decides which set of victims makes room at the least cost.

The plan is the legal set with the least sum of worth × GPUs; of equals the one with the fewest victims, then the one
that need not wait for memory already on its way back, then the order of ``placement.legal_sets``. Nobody leaves whose
memory is not needed. Who may leave at all is decided in ``guards``, and worth is the policy's word.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from swapd.core.catalog import Footprint
from swapd.core.guards import evictable
from swapd.core.ids import GpuSet, InstanceId
from swapd.core.node import Node
from swapd.core.placement import GpuOption, legal_sets, option
from swapd.core.policies.base import Resident
from swapd.core.sharers import Sharers
from swapd.core.state import Instance, Need


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a model goes and who leaves for it."""

    gpus: GpuSet
    #: by id
    victims: tuple[Instance, ...]
    #: somebody is unloading there already
    waits: bool


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
    usable = clear = waiting = 0
    for gpu in node.on(avail):
        found = option(gpu, need, costs)
        if found is not None:
            options[gpu.index] = found
            usable |= 1 << gpu.index
            clear |= found.clear << gpu.index
            waiting |= found.waits << gpu.index
    if usable.bit_count() < need.gpus:
        return None
    sets = [gpus for gpus in legal_sets(len(node.gpus), need.gpus) if not gpus & ~usable]
    if clear.bit_count() >= need.gpus:
        return Plan(next(gpus for gpus in sets if not gpus & ~clear), (), waits=False)
    return _cheapest(sets, options, waiting, costs)


def _cheapest(
    sets: list[GpuSet], options: Mapping[int, GpuOption], waiting: int, costs: Mapping[InstanceId, float]
) -> Plan:
    """Return the plan for the best of these sets; ``waiting``: the GPUs somebody is unloading on."""
    must = _must_leave(options)
    prices = [(where, costs[victim.id]) for victim, where in must]
    sharers = Sharers(options, costs)
    best: tuple[float, int, int] | None = None
    chosen = GpuSet(0)
    for gpus in sets:
        price, count = 0.0, 0
        for where, victim_price in prices:
            if where & gpus:
                price += victim_price
                count += 1
        if best is not None and price > best[0]:
            continue
        if gpus & sharers.short:
            some = sharers.cheapest(gpus)
            price += sum(costs[victim.id] for victim in some)
            count += len(some)
        key = (price, count, gpus & waiting and 1)
        if best is None or key < best:
            best, chosen = key, gpus
    victims = [victim for victim, where in must if where & chosen]
    victims += sharers.cheapest(chosen)
    return Plan(chosen, tuple(sorted(victims, key=_by_id)), waits=bool(chosen & waiting))


def _must_leave(options: Mapping[int, GpuOption]) -> list[tuple[Instance, int]]:
    """Return who has to leave whatever else happens, and on which GPUs, by id."""
    where: dict[InstanceId, int] = {}
    victims: dict[InstanceId, Instance] = {}
    for index, found in options.items():
        for victim in found.victims:
            victims[victim.id] = victim
            where[victim.id] = where.get(victim.id, 0) | 1 << index
    return [(victims[number], where[number]) for number in sorted(victims)]


def _by_id(instance: Instance) -> InstanceId:
    return instance.id
