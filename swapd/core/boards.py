"""Decides which GPUs of the node a model gets, and what any set of GPUs is worth: one or more boards of up to 8 GPUs.

Rules that hold here:

* A set of up to 8 GPUs stays on one board, unless it loses nothing by spanning several (``spans``). Above 8, whole
  boards are taken.
* Among boards: the better class of sets (of single GPUs this comes second), then the board whose free GPUs lose least,
  then the fuller board, then the lowest mask.
* Nothing tells virtual devices apart, so they are taken in index order.
* ``free`` holds the GPUs a model may have: not lost, failed or partitioned, and of a kind that suits it. Nothing here
  remembers what was chosen.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

from swapd.core.catalog import NvlinkUse
from swapd.core.ids import NO_GPUS, GpuSet, gpu_indices
from swapd.core.layout import lowest, split
from swapd.core.prices import Occupancy, Taking, cheaper, cheapest, least_of, occupancy, shares, victims
from swapd.core.quality import Quality, judge_set
from swapd.core.reasons import PlacementQuality
from swapd.core.rings import EXACT, ring_order
from swapd.core.spans import Spans
from swapd.core.tables import USUAL_SIZES, Board, Choice, worth
from swapd.core.topology import NodeTopology
from swapd.core.wiring import Wiring, largest_clique

#: one hop over NVLink outweighs any PCIe level
_LINK_WEIGHT: Final = 100


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
        self._spans = Spans(wiring, self._boards)
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

        ``PREFERRED``: the best class that fits, in it the set that leaves the most. ``REQUIRED``: the same, with a
        ring. ``IGNORE``: the set that leaves the most. A single GPU is chosen in the same way for all.
        """
        if free.bit_count() < size:
            return NO_GPUS
        if size == 1:
            use = NvlinkUse.PREFERRED
        if self._wiring.flat:
            return NO_GPUS if use is NvlinkUse.REQUIRED else lowest(size, free & self._every)
        found = self._on_a_board(size, free, use)
        if not found and len(self._boards) > 1:
            return self._spans.choose(size, free & self._every, self.sets(size), use)
        return found

    def evict(
        self, size: int, owner: Sequence[int], cost: Sequence[float], blocked: int, *, use: NvlinkUse
    ) -> Eviction | None:
        """Return the set whose owners cost the least to lose; ``None``: each has a blocked GPU.

        ``owner``: by GPU, the models on it as a mask; ``cost``: by model, what losing it costs; ``blocked``: GPUs that
        cannot be had. Of equal costs the best class wins, for ``IGNORE`` the worst one.
        """
        if size == 1:
            use = NvlinkUse.PREFERRED
        now = occupancy(owner, cost, blocked)
        if len(self._boards) == 1:
            best = cheapest(self._boards[0], size, now, use)
        else:
            best = self._cheapest_of_several(size, now, use)
        return None if best is None else Eviction(best.gpus, victims(best.gpus, owner), best.cost)

    def sets(self, size: int) -> tuple[tuple[GpuSet, int], ...]:
        """Return the sets of a size that are considered, best first, with the number of their class (0: the best).

        These are all sets within a board. For sizes no board has, see ``layout.sets_over``; they are bounded in number.
        """
        ranked = self._ranked.get(size)
        if ranked is None:
            judged: dict[Quality, list[GpuSet]] = {}
            if size <= self._spans.largest:
                for board in self._boards:
                    for quality, sets, _ in board.classes(size):
                        judged.setdefault(quality, []).extend(sets)
            else:
                for gpus in self._spans.sets(size):
                    judged.setdefault(judge_set(self._wiring, gpus), []).append(gpus)
            order = sorted(judged, reverse=True)
            if order:
                self._tops[size] = order[0]
            ranked = tuple((gpus, rank) for rank, quality in enumerate(order) for gpus in sorted(judged[quality]))
            self._ranked[size] = ranked
        return ranked

    def _on_a_board(self, size: int, free: int, use: NvlinkUse) -> GpuSet:
        ignore = use is NvlinkUse.IGNORE
        best: Choice | None = None
        best_key: tuple[object, ...] = ()
        for board in self._boards:
            found = board.least(size, free) if ignore else board.best(size, free)
            if found is None or (use is NvlinkUse.REQUIRED and not found.quality.linked):
                continue
            if len(self._boards) == 1:
                return found.gpus
            first, last = (found.quality, 0) if size > 1 and not ignore else (0, found.quality.intact)
            key = (first, found.after - found.before, last, -(free & board.mask).bit_count(), -found.gpus)
            if best is None or key > best_key:
                best, best_key = found, key
        return best.gpus if best is not None else NO_GPUS

    def _cheapest_of_several(self, size: int, now: Occupancy, use: NvlinkUse) -> Taking | None:
        """Return the cheapest set on or over several boards; those that cannot be cheaper are left out."""
        parts = [shares(board, now) for board in self._boards]
        best: Taking | None = None
        for least, place in sorted((least_of(part, size), place) for place, part in enumerate(parts)):
            if best is not None and least > best.cost:
                break
            taking = cheapest(self._boards[place], size, now, use)
            if taking is not None and (best is None or cheaper(taking, best, use)):
                best = taking
        if best is None or (self._wiring.flat and least_of(chain(*parts), size) < best.cost):
            taking = self._spans.cheapest(size, now, self.sets(size), use)
            if taking is not None and (best is None or cheaper(taking, best, use)):
                best = taking
        return best

    # -- judgements --------------------------------------------------------------------------------------------------

    def phi(self, free: int) -> int:
        """Return what free GPUs are still worth; greater is better."""
        return worth(self._boards, free)

    def ring(self, gpus: int) -> int:
        """Return the links of the weakest hop of the best NVLink ring through a set; 0: there is none."""
        return judge_set(self._wiring, gpus).ring

    def quality(self, gpus: int) -> PlacementQuality:
        """Say how good a set is among all of its size."""
        size = gpus.bit_count()
        if size <= 1:
            return PlacementQuality.SINGLE
        judged = judge_set(self._wiring, gpus)
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
        return largest_clique(self._peers, free & self._every)
