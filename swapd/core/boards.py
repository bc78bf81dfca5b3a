"""Decides which GPUs of the node a model gets, and what any set of GPUs is worth: one or more boards of up to 8 GPUs.

Rules that hold here:

* A set of up to 8 GPUs stays on one board. It spans boards only where nothing is lost by it: no board is that large,
  the node has no links at all, or links close a ring through the set all the same. Above 8, whole boards are taken.
* Among boards: the better class of sets, then the board whose free GPUs lose least, then the fuller board, then the
  lowest mask.
* Nothing tells virtual devices apart, so they are taken in index order.
* ``free`` holds the GPUs a model may have: not lost, failed or partitioned, and of a kind that suits it. Nothing here
  remembers what was chosen.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from swapd.core.catalog import NvlinkUse
from swapd.core.ids import NO_GPUS, GpuSet, gpu_indices
from swapd.core.prices import Prices
from swapd.core.quality import Quality, judge
from swapd.core.reasons import PlacementQuality
from swapd.core.rings import EXACT, ring_order
from swapd.core.spans import lowest, parts, patch, sets_over, split
from swapd.core.tables import USUAL_SIZES, Board, Choice, SetClass
from swapd.core.topology import NodeTopology
from swapd.core.wiring import Wiring

#: one hop over NVLink outweighs any PCIe level
_LINK_WEIGHT = 100


class Eviction(NamedTuple):
    """A set of GPUs and who must leave it."""

    gpus: GpuSet
    #: models, as bits of the caller's owner masks
    victims: int
    #: sum of the victims' costs
    cost: float


@lru_cache(maxsize=8)
def _built(wiring: Wiring, sizes: tuple[int, ...]) -> "Boards":
    return Boards(wiring, sizes)


def boards_for(topology: NodeTopology, sizes: Sequence[int]) -> "Boards":
    """Return the tables for a node and the GPU counts its models need; those of equally wired nodes are the same."""
    return _built(Wiring.of(topology), tuple(sorted(dict.fromkeys(sizes))))


class Boards:
    """The tables of a node."""

    def __init__(self, wiring: Wiring, sizes: Sequence[int]) -> None:
        """Work out the tables; ``sizes``: numbers of GPUs that models need (others may be asked for)."""
        self._wiring = wiring
        self._boards = tuple(Board(wiring, gpus, sizes) for gpus in split(wiring))
        self._of_product = parts(wiring, [board.mask for board in self._boards])
        self._largest = max((board.bit_count() for boards in self._of_product for board in boards), default=0)
        self._domains = wiring.domains
        self._peers = wiring.peers
        self._every = GpuSet((1 << len(wiring.products)) - 1)
        doubled = [1 << power for power in range(len(wiring.products).bit_length())]
        shapes = dict.fromkeys((*USUAL_SIZES, *sizes, *doubled))
        self._sizes = tuple(sorted((size for size in shapes if size <= len(wiring.products)), reverse=True))
        self._ranked: dict[int, tuple[tuple[GpuSet, int], ...]] = {}
        self._tops: dict[int, Quality] = {}
        for size in self._sizes if not wiring.flat else ():
            self.sets(size)

    # -- decisions ---------------------------------------------------------------------------------------------------

    def choose(self, size: int, free: int, *, use: NvlinkUse) -> GpuSet:
        """Return the set of ``size`` GPUs within ``free`` for a model; none if there is none.

        ``PREFERRED``: the best class that fits, in it the set that leaves the most. ``REQUIRED``: the same, with a ring
        (one GPU needs none). ``IGNORE``: the set that leaves the most.
        """
        if self._wiring.flat:
            return NO_GPUS if use is NvlinkUse.REQUIRED and size > 1 else lowest(size, free & self._every)
        if size <= self._largest:
            found = self._on_a_board(size, free, use)
            if found:
                return found
        return self._over_boards(size, free, use) if len(self._boards) > 1 else NO_GPUS

    def evict(
        self, size: int, owner: Sequence[int], cost: Sequence[float], blocked: int, *, use: NvlinkUse
    ) -> Eviction | None:
        """Return the set whose owners cost the least to lose; ``None``: each has a blocked GPU.

        ``owner``: by GPU, the models on it as a mask; ``cost``: by model, what losing it costs; ``blocked``: GPUs that
        cannot be had. Of equal costs the best class wins, for ``IGNORE`` the worst one.
        """
        best: tuple[float, Sequence[int], int] | None = None
        for board in self._boards if size <= self._largest else ():
            classes = _useful(board.classes(size), size, use)
            taking = Prices(board, owner, cost, blocked).cheapest(classes) if classes else None
            if taking is not None:
                sign = -1 if use is not NvlinkUse.IGNORE else 1
                key = taking.cost, tuple(sign * field for field in taking.quality), taking.gpus
                if best is None or key < best:
                    best = key
        if best is None and len(self._boards) > 1:
            best = self._taken_over_boards(size, owner, cost, blocked, use)
        return None if best is None else Eviction(GpuSet(best[2]), _victims(best[2], owner), best[0])

    def sets(self, size: int) -> tuple[tuple[GpuSet, int], ...]:
        """Return the sets of a size that are considered, best first, with the number of their class (0: the best).

        These are all sets within a board. For sizes no board has, see ``spans.sets_over``; they are bounded in number.
        """
        ranked = self._ranked.get(size)
        if ranked is None:
            judged: dict[Quality, list[GpuSet]] = {}
            if size <= self._largest:
                for board in self._boards:
                    for quality, sets, _ in board.classes(size):
                        judged.setdefault(quality, []).extend(sets)
            else:
                for boards in self._of_product:
                    for gpus in sets_over(boards, size):
                        judged.setdefault(self._judge(gpus), []).append(gpus)
            order = sorted(judged, reverse=True)
            if order:
                self._tops[size] = order[0]
            ranked = tuple((gpus, rank) for rank, quality in enumerate(order) for gpus in sorted(judged[quality]))
            self._ranked[size] = ranked
        return ranked

    def _on_a_board(self, size: int, free: int, use: NvlinkUse) -> GpuSet:
        ignore = use is NvlinkUse.IGNORE
        best: Choice | None = None
        best_key: tuple[tuple[int, ...], int, int, int] = ((), 0, 0, 0)
        for board in self._boards:
            found = board.least(size, free) if ignore else board.best(size, free)
            if found is None or (use is NvlinkUse.REQUIRED and size > 1 and not found.quality.linked):
                continue
            if len(self._boards) == 1:
                return found.gpus
            key = (
                () if ignore else found.quality,
                found.after - found.before,
                -(free & board.mask).bit_count(),
                -found.gpus,
            )
            if best is None or key > best_key:
                best, best_key = found, key
        return best.gpus if best is not None else NO_GPUS

    # -- sets over several boards ------------------------------------------------------------------------------------

    def _over_boards(self, size: int, free: int, use: NvlinkUse) -> GpuSet:
        """Return a set that spans boards, where that is allowed."""
        if size > self._largest:
            whole = self._known_over_boards(size, free, use)
            if whole or self._whole_boards_only(size):
                return whole
        for domain in self._domains:
            for boards in self._of_product:
                found = patch(boards, size, free & domain)
                if found and self.ring(found):
                    return found
        if use is NvlinkUse.REQUIRED or (size <= self._largest and self._domains):
            return NO_GPUS
        return next((found for boards in self._of_product if (found := patch(boards, size, free))), NO_GPUS)

    def _known_over_boards(self, size: int, free: int, use: NvlinkUse) -> GpuSet:
        """Return the best of the listed sets over several boards."""
        best, best_key = NO_GPUS, (0, 0)
        for gpus, rank in self.sets(size):
            if gpus & free == gpus and not (use is NvlinkUse.REQUIRED and not self.ring(gpus)):
                key = (0 if use is NvlinkUse.IGNORE else -rank, self.phi(free ^ gpus))
                if not best or key > best_key:
                    best, best_key = gpus, key
        return best

    def _whole_boards_only(self, size: int) -> bool:
        return bool(self._domains) and bool(self.sets(size)) and self.sets(size)[0][0].bit_count() % 8 == 0

    def _taken_over_boards(
        self, size: int, owner: Sequence[int], cost: Sequence[float], blocked: int, use: NvlinkUse
    ) -> tuple[float, Sequence[int], int] | None:
        """Return cost, class and set of the cheapest set over several boards."""
        best: tuple[float, Sequence[int], int] | None = None
        for gpus, rank in self.sets(size) if size > self._largest else ():
            if gpus & blocked or (use is NvlinkUse.REQUIRED and not self.ring(gpus)):
                continue
            key = (_price(gpus, owner, cost), (rank,), gpus)
            if best is None or key < best:
                best = key
        if best is None:
            gpus = self._over_boards(size, self._every & ~blocked, use)
            best = (_price(gpus, owner, cost), (), gpus) if gpus else None
        return best

    # -- judgements --------------------------------------------------------------------------------------------------

    def phi(self, free: int) -> int:
        """Return what free GPUs are still worth; greater is better."""
        return sum(board.phi[free & board.mask] for board in self._boards)

    def ring(self, gpus: int) -> int:
        """Return the links of the weakest hop of the best NVLink ring through a set; 0: there is none."""
        return self._judge(gpus).ring

    def quality(self, gpus: int) -> PlacementQuality:
        """Say how good a set is among all of its size."""
        size = gpus.bit_count()
        if size <= 1:
            return PlacementQuality.SINGLE
        judged = self._judge(gpus)
        self.sets(size)
        if judged >= self._tops.get(size, judged):
            return PlacementQuality.TOP
        if judged.linked:
            return PlacementQuality.LINKED
        nodes = dict.fromkeys(self._wiring.numa[gpu] for gpu in gpu_indices(GpuSet(gpus)))
        return PlacementQuality.LOCAL if len(nodes) == 1 else PlacementQuality.SPREAD

    def ring_order(self, gpus: int) -> tuple[int, ...]:
        """Return a set's GPUs in the order of the best ring; of more than 8 board by board, in index order."""
        if gpus.bit_count() > EXACT:
            return tuple(gpu for board in self._boards for gpu in gpu_indices(GpuSet(gpus & board.mask)))
        links, levels = self._wiring.links, self._wiring.levels
        indices = tuple(gpu_indices(GpuSet(gpus)))
        weights = [[links[one][two] * _LINK_WEIGHT or levels[one][two] for two in indices] for one in indices]
        return tuple(indices[place] for place in ring_order(weights, range(len(indices))))

    def domains(self) -> tuple[GpuSet, ...]:
        """Return the NVLink domains: two or more GPUs that links join, directly or over others, lowest first."""
        return self._domains

    def largest_nvlink_block(self, free: int) -> tuple[int, GpuSet]:
        """Return the largest usual size of which a free set has an NVLink ring, and that set (1: none has, 0: none)."""
        for size in self._sizes:
            found = self.choose(size, free, use=NvlinkUse.REQUIRED)
            if found:
                return size, found
        return 0, NO_GPUS

    def largest_clique(self, free: int) -> GpuSet:
        """Return the most free GPUs that are pairwise linked; one GPU if none are."""
        best = 0

        def grow(clique: int, others: int) -> None:
            nonlocal best
            if not others and clique.bit_count() > best.bit_count():
                best = clique
            while others and clique.bit_count() + others.bit_count() > best.bit_count():
                low = others & -others
                others ^= low
                grow(clique | low, others & self._peers[low.bit_length() - 1])

        grow(0, free & self._every)
        return GpuSet(best)

    def _judge(self, gpus: int) -> Quality:
        return judge(self._wiring, tuple(gpu_indices(GpuSet(gpus))))


def _useful(classes: Sequence[SetClass], size: int, use: NvlinkUse) -> Sequence[SetClass]:
    """Return the classes a model may have, the ones to be taken first at equal costs first."""
    if use is NvlinkUse.IGNORE:
        return classes[::-1]
    if use is NvlinkUse.REQUIRED and size > 1:
        return [found for found in classes if found.quality.linked]
    return classes


def _victims(gpus: int, owner: Sequence[int]) -> int:
    victims = 0
    for gpu in gpu_indices(GpuSet(gpus)):
        victims |= owner[gpu]
    return victims


def _price(gpus: int, owner: Sequence[int], cost: Sequence[float]) -> float:
    return sum(cost[model] for model in gpu_indices(GpuSet(_victims(gpus, owner))))
