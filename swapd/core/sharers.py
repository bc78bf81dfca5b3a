"""Decides which of the models leave that may stay in part: those that share GPUs, and those that hold host memory.

The answer for a set of GPUs is the subset of least cost, then fewest, then least bytes, that frees what is missing on
each of these GPUs and of host memory. It is found by depth-first search, cheapest first, each branch given up once it
costs more than the best so far. GPUs whose sharers stand on one GPU each are independent of each other and are
searched one by one. All searches of one plan together are bounded.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from swapd.core.ids import GpuSet, InstanceId, gpu_indices
from swapd.core.placement import GpuOption
from swapd.core.state import Instance

#: steps of one search, and of all searches of a plan, before the best so far is taken
SEARCH_LIMIT: Final = 4096
PLAN_LIMIT: Final = 2 * SEARCH_LIMIT

Victims = tuple[Instance, ...]
#: bytes by what is missing: on each of some GPUs, then of host memory
Amounts = tuple[int, ...]


class Sharers:
    """The candidates of one plan that may leave; answers are kept for the time of the plan."""

    __slots__ = ("_beside", "_costs", "_known", "_options", "_owners", "_steps", "lacking_host", "short")

    def __init__(
        self,
        options: Mapping[int, GpuOption],
        costs: Mapping[InstanceId, float],
        *,
        lacking_host: int = 0,
        owners: Sequence[Instance] = (),
    ) -> None:
        """Begin a plan; ``owners``: the candidates that hold host memory, if any of it is lacking."""
        self._options = options
        self._costs = costs
        #: host memory that must be given up, bytes
        self.lacking_host = lacking_host
        self._owners = owners
        self._known: dict[int, Victims] = {0: ()}
        self._beside: dict[tuple[int, tuple[InstanceId, ...]], Victims] = {}
        self._steps = PLAN_LIMIT
        #: the GPUs on which bytes are missing
        self.short = GpuSet(sum(1 << index for index, found in options.items() if found.missing_bytes))

    def cheapest(self, gpus: GpuSet) -> Victims:
        """Return who leaves so that the newcomer fits on these GPUs."""
        lacking = GpuSet(gpus & self.short)
        known = self._known.get(lacking)
        if known is None:
            known = self._known[lacking] = self._solve(lacking)
        return known

    def beside(self, gpus: GpuSet, leaving: Victims) -> Victims:
        """Return who leaves so that the newcomer fits on these GPUs and into host memory, besides ``leaving``."""
        relief = {victim.id: victim.host_bytes for victim in leaving if victim.host_bytes}
        missing = self.lacking_host - sum(relief.values())
        if missing <= 0:
            return self.cheapest(gpus)
        key = gpus & self.short, tuple(relief)
        known = self._beside.get(key)
        if known is None:
            indices = list(gpu_indices(GpuSet(gpus & self.short)))
            pool = [*self._on(indices), *(owner for owner in self._owners if owner.id not in relief)]
            known = self._beside[key] = self._cheapest_of(pool, indices, missing)
        return known

    def price(self, victims: Victims) -> float:
        """Return what these victims cost."""
        return sum(self._costs[victim.id] for victim in victims)

    def _solve(self, lacking: GpuSet) -> Victims:
        indices = list(gpu_indices(lacking))
        sharers = self._on(indices)
        if len(indices) > 1 and all(sharer.gpus.bit_count() == 1 for sharer in sharers):
            return tuple(victim for index in indices for victim in self.cheapest(GpuSet(1 << index)))
        return self._cheapest_of(sharers, indices, 0)

    def _on(self, indices: list[int]) -> list[Instance]:
        return [sharer for index in indices for sharer in self._options[index].sharers]

    def _cheapest_of(self, pool: Sequence[Instance], indices: list[int], host: int) -> Victims:
        """Return the best subset of ``pool`` that frees what these GPUs lack and ``host`` bytes of host memory."""
        candidates = {candidate.id: candidate for candidate in pool}
        order = sorted(candidates.values(), key=self._rank)
        freed = [_freed(candidate, indices) for candidate in order]
        missing = (*(self._options[index].missing_bytes for index in indices), host)
        places = self._search(missing, order, freed)
        return tuple(order[place] for place in _pruned(missing, places, freed))

    def _rank(self, victim: Instance) -> tuple[float, int, int]:
        return self._costs[victim.id], victim.bytes_per_gpu, victim.id

    def _search(self, missing: Amounts, order: list[Instance], freed: list[Amounts]) -> tuple[int, ...]:
        """Return the places in ``order`` of the best subset found."""
        best: tuple[int, ...] = tuple(range(len(order)))
        best_key = (float("inf"), 0, 0)
        stack: list[tuple[int, tuple[float, int, int], tuple[int, ...], Amounts]] = [(0, (0.0, 0, 0), (), missing)]
        limit = min(SEARCH_LIMIT, self._steps)
        for _ in range(limit):
            if not stack:
                break
            self._steps -= 1
            place, key, chosen, still = stack.pop()
            if key >= best_key:
                continue
            if not any(still):
                best, best_key = chosen, key
            elif place < len(order):
                victim = order[place]
                price, count, amount = key
                more = (price + self._costs[victim.id], count + 1, amount + victim.bytes_per_gpu)
                stack.append((place + 1, key, chosen, still))
                stack.append((place + 1, more, (*chosen, place), _less(still, freed[place])))
        return best


def _freed(victim: Instance, indices: list[int]) -> Amounts:
    """Return what the departure of a victim frees on each of these GPUs, and of host memory."""
    charge = victim.bytes_per_gpu
    return (*(charge if victim.gpus >> index & 1 else 0 for index in indices), victim.host_bytes)


def _less(missing: Amounts, freed: Amounts) -> Amounts:
    """Return what is still missing once so much is free."""
    return tuple(max(0, lack - amount) for lack, amount in zip(missing, freed, strict=True))


def _pruned(missing: Amounts, places: tuple[int, ...], freed: list[Amounts]) -> list[int]:
    """Strike out, the dearest first, whoever proves unnecessary."""
    kept = list(places)
    total: Amounts = tuple(sum(freed[place][kind] for place in places) for kind in range(len(missing)))
    for place in reversed(places):
        rest = tuple(amount - less for amount, less in zip(total, freed[place], strict=True))
        if all(amount >= lack for amount, lack in zip(rest, missing, strict=True)):
            kept.remove(place)
            total = rest
    return kept
