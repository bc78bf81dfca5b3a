"""Decides which set of victims makes room at the least cost.

Where GPUs and host memory are free at once, the boards choose among the free GPUs. Otherwise the plan is the legal set
with the least sum of worth × GPUs; of equals the one of the better class, then with the fewest victims, then the one
that need not wait for memory already on its way back, then the order of ``placement.legal_sets``. Host memory that is
lacking is made free in the same reckoning. Where nobody may stay in part, the boards find the least sum and its class;
only the sets of this class are compared one by one. Nobody leaves whose memory is not needed. Who may leave at all is
decided in ``guards``, and worth is the policy's word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swapd.core.guards import evictable
from swapd.core.host_memory import given_up, is_short, lacking
from swapd.core.ids import Bytes, GpuSet, InstanceId, gpu_indices
from swapd.core.node import Node
from swapd.core.placement import GpuOption, legal_sets, option, suited
from swapd.core.policies.base import Resident
from swapd.core.sharers import Sharers, Victims
from swapd.core.state import Instance, Need
from swapd.core.weights import reload_time

#: a set of GPUs and the number of its class, a lower one is better
Ranked = tuple[GpuSet, int]
#: what GPUs offer, by index and by what of a need that depends on; while nobody moves, and the same may leave
Known = dict[tuple[int, Bytes, bool], GpuOption | None]
#: who may leave, and the cost of losing each; what that makes of the GPUs
Leaving = tuple[dict[InstanceId, float], Known]


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a model goes and who leaves for it."""

    gpus: GpuSet
    #: by id
    victims: tuple[Instance, ...]
    #: somebody is unloading there already, or has host memory that is needed
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
    floor = clock_floor(node)
    return {
        instance.id: cost(node, instance, floor)
        for instance in node.instances.values()
        if evictable(node, instance, patient=patient, holder=holder)
    }


def clock_floor(node: Node) -> float:
    """Return the part of the GDSF clock that is in the worth of every resident that may ever be a victim."""
    return min((one.model.clock for one in node.instances.values() if not one.model.pinned), default=0.0)


def cost(node: Node, instance: Instance, floor: float) -> float:
    """Return what the policy says it costs to lose an instance; ``floor`` as from ``clock_floor``."""
    model = instance.model
    gpus = instance.gpus.bit_count()
    resident = Resident(
        model=model.name,
        gpus=gpus,
        load_time=reload_time(node, model),
        last_used=instance.last_used,
        worth=model.worth,
        at=node.at,
        floor=floor,
    )
    return node.policy.value(resident) * gpus


def find(
    node: Node, need: Need, avail: GpuSet, costs: Mapping[InstanceId, float], known: Known | None = None
) -> Plan | None:
    """Return the cheapest plan within ``avail`` when the instances in ``costs`` may leave; ``None``: there is none.

    ``known`` is what was found out for other needs with the same ``costs``; it is added to.
    """
    known = {} if known is None else known
    options: dict[int, GpuOption] = {}
    usable = clear = waiting = 0
    for gpu in node.on(GpuSet(avail & suited(node, need))):
        index = gpu.index
        key = index, need.bytes_per_gpu, need.exclusive
        if key in known:
            found = known[key]
        else:
            found = known[key] = option(gpu, need, costs)
        if found is not None:
            options[index] = found
            usable |= 1 << index
            clear |= found.clear << index
            waiting |= found.waits << index
    if usable.bit_count() < need.gpus:
        return None
    missing, host_waits = (lacking(node, need), is_short(node, need.host_bytes)) if need.host_bytes else (0, False)
    if missing <= 0:
        gpus = _free_set(node, need, clear)
        if gpus:
            return Plan(gpus, (), waits=host_waits)
    owners = [node.instances[number] for number in costs if node.instances[number].host_bytes] if missing > 0 else []
    sharers = Sharers(options, costs, lacking_host=missing, owners=owners)
    leaving = _Owners(options, costs)
    if missing > 0 or sharers.short:
        sets = _sets_within(node, need, usable)
    else:
        sets = _sets_of_best_class(node, need, usable, leaving)
    if not sets or given_up(owners) < missing:
        return None
    return _cheapest(sets, sharers, leaving, GpuSet(waiting), host_waits=host_waits)


def _free_set(node: Node, need: Need, clear: int) -> GpuSet:
    """Return the set to take if no GPU has to be waited for; a single sharing model goes where others are already."""
    boards = node.boards
    if not need.exclusive and need.gpus == 1:
        begun = sum(1 << gpu.index for gpu in node.on(GpuSet(clear)) if gpu.instances)
        found = boards.choose(1, begun, use=need.nvlink)
        if found:
            return found
    return boards.choose(need.gpus, clear, use=need.nvlink)


def _sets_within(node: Node, need: Need, usable: int) -> Sequence[Ranked]:
    """Return the sets among the usable GPUs; where no listed one is, the one that the boards put together, if any."""
    sets = [ranked for ranked in legal_sets(node.boards, need) if not ranked[0] & ~usable]
    if not sets:
        gpus = node.boards.choose(need.gpus, usable, use=need.nvlink)
        return [(gpus, 0)] if gpus else []
    return sets


def _sets_of_best_class(node: Node, need: Need, usable: int, owners: "_Owners") -> Sequence[Ranked]:
    """Return the usable sets of the class of the cheapest one, where whoever is on a GPU leaves it altogether."""
    owner, cost = owners.by_gpu(len(node.gpus))
    blocked = (1 << len(node.gpus)) - 1 & ~usable
    found = node.boards.evict(need.gpus, owner, cost, blocked, use=need.nvlink)
    if found is None:
        return []
    sets = legal_sets(node.boards, need)
    best = next((rank for gpus, rank in sets if gpus == found.gpus), None)
    if best is None:
        return [(found.gpus, 0)]
    return [(gpus, rank) for gpus, rank in sets if rank == best and not gpus & ~usable]


class _Owners:
    """Who has to leave the GPUs of a set, whatever else happens."""

    __slots__ = ("_prices", "_where")

    def __init__(self, options: Mapping[int, GpuOption], costs: Mapping[InstanceId, float]) -> None:
        where: dict[InstanceId, GpuSet] = {}
        victims: dict[InstanceId, Instance] = {}
        for index, found in options.items():
            for victim in found.victims:
                victims[victim.id] = victim
                where[victim.id] = GpuSet(where.get(victim.id, 0) | 1 << index)
        self._where = [(victims[number], where[number]) for number in sorted(victims)]
        self._prices = [(where[number], costs[number]) for number in sorted(victims)]

    def price(self, gpus: GpuSet) -> tuple[float, int]:
        """Return what they cost, and how many they are."""
        price, count = 0.0, 0
        for where, victim_price in self._prices:
            if where & gpus:
                price += victim_price
                count += 1
        return price, count

    def by_gpu(self, count: int) -> tuple[list[int], list[float]]:
        """Return by GPU, of so many, who has to leave it, as a mask; and by bit of the masks what each costs."""
        masks = [0] * count
        for bit, (where, _) in enumerate(self._prices):
            for gpu in gpu_indices(where):
                masks[gpu] |= 1 << bit
        return masks, [price for _, price in self._prices]

    def of(self, gpus: GpuSet) -> Victims:
        """Return them, by id."""
        return tuple(victim for victim, where in self._where if where & gpus)


def _cheapest(sets: Sequence[Ranked], sharers: Sharers, owners: _Owners, waiting: GpuSet, *, host_waits: bool) -> Plan:
    """Return the plan for the best of these sets; ``waiting``: the GPUs somebody is unloading on."""
    best: tuple[float, int, int, int] | None = None
    chosen = GpuSet(0)
    for gpus, rank in sets:
        price, count = owners.price(gpus)
        if best is not None and price > best[0]:
            continue
        if gpus & sharers.short or sharers.lacking_host > 0:
            some = sharers.beside(gpus, owners.of(gpus))
            price += sharers.price(some)
            count += len(some)
        key = (price, rank, count, gpus & waiting and 1)
        if best is None or key < best:
            best, chosen = key, gpus
    must = owners.of(chosen)
    victims = (*must, *sharers.beside(chosen, must))
    return Plan(chosen, tuple(sorted(victims, key=_by_id)), waits=host_waits or bool(chosen & waiting))


def _by_id(instance: Instance) -> InstanceId:
    return instance.id
