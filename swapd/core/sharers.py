"""Decides which of the models that share GPUs leave, when a newcomer wants to share them as well and lacks bytes.

The answer for a set of GPUs is the subset of least cost, then fewest, then least bytes, that frees what is missing.
It is found by depth-first search, cheapest first, each branch given up once it costs more than the best so far. GPUs
whose sharers stand on one GPU each are independent of each other and are searched one by one.
"""

from collections.abc import Mapping
from typing import Final

from swapd.core.ids import GpuSet, InstanceId, gpu_indices
from swapd.core.placement import GpuOption
from swapd.core.state import Instance

#: steps of one search before the best so far is taken
SEARCH_LIMIT: Final = 4096

Victims = tuple[Instance, ...]


class Sharers:
    """The candidates of one plan that share GPUs with the newcomer; answers are kept for the time of the plan."""

    __slots__ = ("_costs", "_known", "_options", "short")

    def __init__(self, options: Mapping[int, GpuOption], costs: Mapping[InstanceId, float]) -> None:
        self._options = options
        self._costs = costs
        self._known: dict[int, Victims] = {0: ()}
        #: the GPUs on which bytes are missing
        self.short = GpuSet(sum(1 << index for index, found in options.items() if found.missing_bytes))

    def cheapest(self, gpus: GpuSet) -> Victims:
        """Return who leaves so that the newcomer fits on these GPUs."""
        lacking = GpuSet(gpus & self.short)
        known = self._known.get(lacking)
        if known is None:
            known = self._known[lacking] = self._solve(lacking)
        return known

    def _solve(self, lacking: GpuSet) -> Victims:
        indices = list(gpu_indices(lacking))
        sharers = {s.id: s for index in indices for s in self._options[index].sharers}
        if len(indices) > 1 and all(sharer.gpus.bit_count() == 1 for sharer in sharers.values()):
            return tuple(victim for index in indices for victim in self.cheapest(GpuSet(1 << index)))
        order = sorted(sharers.values(), key=self._rank)
        missing = tuple(self._options[index].missing_bytes for index in indices)
        return _pruned(indices, missing, self._search(indices, missing, order))

    def _rank(self, victim: Instance) -> tuple[float, int, int]:
        return self._costs[victim.id], victim.bytes_per_gpu, victim.id

    def _search(self, indices: list[int], missing: tuple[int, ...], order: list[Instance]) -> Victims:
        best: Victims = tuple(order)
        best_key = (float("inf"), 0, 0)
        stack: list[tuple[int, tuple[float, int, int], Victims, tuple[int, ...]]] = [(0, (0.0, 0, 0), (), missing)]
        for _ in range(SEARCH_LIMIT):
            if not stack:
                break
            place, key, chosen, still = stack.pop()
            if key >= best_key:
                continue
            if not any(still):
                best, best_key = chosen, key
            elif place < len(order):
                victim = order[place]
                price, count, freed = key
                more = (price + self._costs[victim.id], count + 1, freed + victim.bytes_per_gpu)
                stack.append((place + 1, key, chosen, still))
                stack.append((place + 1, more, (*chosen, victim), _less(indices, still, victim)))
        return best


def _less(indices: list[int], missing: tuple[int, ...], victim: Instance) -> tuple[int, ...]:
    """Return what is still missing once ``victim`` has left."""
    return tuple(
        max(0, lack - victim.bytes_per_gpu) if victim.gpus >> index & 1 else lack
        for index, lack in zip(indices, missing, strict=True)
    )


def _pruned(indices: list[int], missing: tuple[int, ...], victims: Victims) -> Victims:
    """Strike out, the dearest first, whoever proves unnecessary."""
    kept = list(victims)
    for victim in reversed(victims):
        rest = [other for other in kept if other is not victim]
        still = missing
        for other in rest:
            still = _less(indices, still, other)
        if not any(still):
            kept = rest
    return tuple(kept)
