"""Finds sets of GPUs over several boards, for models that no single board can take.

Rules that hold here:

* A set spans boards only where nothing is lost by it: no board is that large, the node has no links at all, or links
  close a ring through the set all the same.
* A multiple of 8 is made of whole boards if the node has enough of them, and then of nothing else.
* It is exact only as far as the listed sets go (``layout.sets_over``). What lies in none of them is put together on as
  few boards as can be, or from the cheapest GPUs.
"""

from collections.abc import Sequence
from operator import itemgetter

from swapd.core.catalog import NvlinkUse
from swapd.core.ids import NO_GPUS, GpuSet, gpu_indices
from swapd.core.layout import parts, patch, sets_over, whole_boards
from swapd.core.prices import Occupancy, Taking, cheaper, price_of, taking
from swapd.core.quality import judge_set
from swapd.core.tables import Board, worth
from swapd.core.wiring import Wiring


class Spans:
    """What lies on more than one board of a node."""

    def __init__(self, wiring: Wiring, boards: Sequence[Board]) -> None:
        self._wiring = wiring
        self._boards = boards
        self._of_product = parts(wiring, [board.mask for board in boards])
        #: GPUs of one product on one board, at most
        self.largest = max((board.bit_count() for boards in self._of_product for board in boards), default=0)
        self._domains = wiring.domains
        self._every = (1 << len(wiring.products)) - 1

    def sets(self, size: int) -> list[GpuSet]:
        """Return the listed sets of a size that no board has."""
        return [gpus for boards in self._of_product for gpus in sets_over(boards, size)]

    def choose(self, size: int, free: int, sets: Sequence[tuple[GpuSet, int]], use: NvlinkUse) -> GpuSet:
        """Return a free set; none if there is none that may span boards. ``sets``: those listed, with ranks."""
        if size > self.largest:
            listed = self._listed(free, sets, use)
            if listed or self._whole_only(size):
                return listed
        for domain in self._domains:
            linked = next((found for boards in self._of_product if (found := patch(boards, size, free & domain))), 0)
            if linked and self._ring(linked):
                return GpuSet(linked)
        if use is NvlinkUse.REQUIRED or not self._may_span(size):
            return NO_GPUS
        return next((found for boards in self._of_product if (found := patch(boards, size, free))), NO_GPUS)

    def cheapest(self, size: int, now: Occupancy, sets: Sequence[tuple[GpuSet, int]], use: NvlinkUse) -> Taking | None:
        """Return the cheapest set among the listed ones and one made of the cheapest GPUs, else any."""
        best: Taking | None = None
        listed = self._cheapest_listed(now, sets, use) if size > self.largest else None
        loose = () if use is NvlinkUse.REQUIRED or not self._may_span(size) else self._loose(size, now)
        for gpus in loose if listed is None else (listed, *loose):
            found = taking(self._wiring, gpus, now)
            if best is None or cheaper(found, best, use):
                best = found
        if best is None:
            gpus = self.choose(size, self._every & ~now.blocked, (), use)
            best = taking(self._wiring, gpus, now) if gpus else None
        return best

    def _cheapest_listed(self, now: Occupancy, sets: Sequence[tuple[GpuSet, int]], use: NvlinkUse) -> GpuSet | None:
        """Return the cheapest of the listed sets, of equals that of the best class (for ``IGNORE`` of the worst)."""
        best: tuple[float, int, GpuSet] | None = None
        for gpus, rank in sets:
            if not gpus & now.blocked:
                key = (price_of(gpus, now), -rank if use is NvlinkUse.IGNORE else rank, gpus)
                if (best is None or key < best) and (use is not NvlinkUse.REQUIRED or self._ring(gpus)):
                    best = key
        return None if best is None else best[2]

    def _may_span(self, size: int) -> bool:
        """Say whether sets of this size may lie on several boards even when no ring goes through them."""
        return not self._domains or (size > self.largest and not self._whole_only(size))

    def _whole_only(self, size: int) -> bool:
        return bool(self._domains) and any(whole_boards(boards, size) for boards in self._of_product)

    def _listed(self, free: int, sets: Sequence[tuple[GpuSet, int]], use: NvlinkUse) -> GpuSet:
        """Return the best of the listed sets that are free."""
        best, best_key = NO_GPUS, (0, 0)
        for gpus, rank in sets:
            if gpus & free == gpus and not (use is NvlinkUse.REQUIRED and not self._ring(gpus)):
                key = (0 if use is NvlinkUse.IGNORE else -rank, worth(self._boards, free ^ gpus))
                if not best or key > best_key:
                    best, best_key = gpus, key
        return best

    def _loose(self, size: int, now: Occupancy) -> list[GpuSet]:
        """Return for each product the set of the GPUs whose owners cost the least, each GPU by itself."""
        found = []
        for boards in self._of_product:
            prices = sorted(
                (sum(now.cost[model] for model in gpu_indices(GpuSet(now.owner[gpu]))), gpu)
                for board in boards
                for gpu in gpu_indices(GpuSet(board & ~now.blocked))
            )
            if len(prices) >= size:
                found.append(self._wiring.mask(map(itemgetter(1), prices[:size])))
        return found

    def _ring(self, gpus: int) -> int:
        return judge_set(self._wiring, gpus).ring
