"""Decides within one board (up to 8 GPUs) which set of free GPUs a model gets.

Everything that depends on the wiring alone is worked out once: all sets of a size in classes of equal quality, best
class first, and what every possible rest of free GPUs is still worth. A decision is then a walk over one list.

Rules that hold here:

* Sets are masks of the whole node, and only sets of one product exist. The caller's masks may contain GPUs of other
  boards.
* The worth of a rest (``phi``) is compared by: how many sets of the best class it holds, of the largest size first;
  then the links its GPUs have; then its whole index-aligned blocks of 4 and 2.
* Equal input, equal answer: the lowest mask wins every tie.
* Which GPUs are free is the caller's knowledge. The decision is about whole GPUs.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from swapd.core.ids import NO_GPUS, GpuSet
from swapd.core.quality import Quality, judge
from swapd.core.wiring import Wiring

#: most GPUs of a board: 256 masks
BOARD_GPUS: Final = 8
#: sizes the worth of a rest is measured by whatever the models need: these are what placers ask for
USUAL_SIZES: Final = (1, 2, 4, 8)

#: places in the lower half of a board
HALF: Final = 4
_FIELD_BITS: Final = 8
_LINK_BITS: Final = 20


class SetClass(NamedTuple):
    """The sets of one size that are equally good, lowest mask first."""

    quality: Quality
    sets: tuple[GpuSet, ...]
    #: the same sets as places in the lower and the upper half of the board
    halves: tuple[tuple[GpuSet, int, int], ...]


class Choice(NamedTuple):
    """A set of free GPUs."""

    gpus: GpuSet
    quality: Quality
    #: worth of the GPUs that were free before, and of those left
    before: int
    after: int


class Board:
    """The tables of up to ``BOARD_GPUS`` GPUs of a node."""

    def __init__(self, wiring: Wiring, gpus: Sequence[int], sizes: Sequence[int]) -> None:
        """Work out the tables for these GPUs (by index, ascending); other sizes than ``sizes`` are added when asked."""
        assert 0 < len(gpus) <= BOARD_GPUS, f"a board of {len(gpus)} GPUs"
        self.gpus = tuple(gpus)
        self._wiring = wiring
        self._spread = [wiring.mask(gpus[place] for place in _bits(mask)) for mask in range(1 << len(gpus))]
        self.mask = self._spread[-1]
        self._classes: dict[int, tuple[SetClass, ...]] = {}
        shapes = sorted(dict.fromkeys((*USUAL_SIZES, *sizes)), reverse=True)
        worths = self._worths([size for size in shapes if 1 < size <= len(gpus)])
        #: worth of every mask of free GPUs of this board; worths of several boards may be added
        self.phi: Mapping[int, int] = dict(zip(self._spread, worths, strict=True))
        order = {worth: place for place, worth in enumerate(sorted(dict.fromkeys(worths)))}
        self._place: Mapping[int, int] = {mask: order[worth] for mask, worth in self.phi.items()}

    def classes(self, size: int) -> tuple[SetClass, ...]:
        """Return the sets of a size, best class first."""
        found = self._classes.get(size)
        if found is None:
            found = self._classes[size] = self._sorted_sets(size)
        return found

    def best(self, size: int, free: int) -> Choice | None:
        """Return the free set of the best class, of equals the one that leaves the most; ``None``: there is none."""
        free &= self.mask
        if free.bit_count() >= size:
            for quality, sets, _ in self.classes(size):
                chosen = self._richest(sets, free)
                if chosen:
                    return Choice(chosen, quality, self.phi[free], self.phi[free ^ chosen])
        return None

    def least(self, size: int, free: int) -> Choice | None:
        """Return the free set that leaves the most, whatever its class; ``None``: there is none."""
        free &= self.mask
        found, most = None, (-1, 0)
        for quality, sets, _ in self.classes(size) if free.bit_count() >= size else ():
            chosen = self._richest(sets, free)
            if chosen and (self._place[free ^ chosen], -chosen) > most:
                most = self._place[free ^ chosen], -chosen
                found = Choice(chosen, quality, self.phi[free], self.phi[free ^ chosen])
        return found

    def _richest(self, sets: Sequence[GpuSet], free: int) -> GpuSet:
        """Return the set within ``free`` that leaves the most."""
        place = self._place
        taken = self.mask ^ free
        most, chosen = -1, NO_GPUS
        for gpus in sets:
            if not gpus & taken:
                worth = place[free ^ gpus]
                if worth > most:
                    most, chosen = worth, gpus
        return chosen

    def _sorted_sets(self, size: int) -> tuple[SetClass, ...]:
        """Judge every set of a size."""
        by_quality: dict[Quality, list[int]] = {}
        for places in combinations(range(len(self.gpus)), size):
            gpus = [self.gpus[place] for place in places]
            if len(dict.fromkeys(self._wiring.products[gpu] for gpu in gpus)) == 1:
                by_quality.setdefault(judge(self._wiring, gpus), []).append(sum(1 << place for place in places))
        half = (1 << HALF) - 1
        found = []
        for quality in sorted(by_quality, reverse=True):
            masks = sorted(by_quality[quality])
            sets = tuple(self._spread[mask] for mask in masks)
            halves = tuple((self._spread[mask], mask & half, mask >> HALF) for mask in masks)
            found.append(SetClass(quality, sets, halves))
        return tuple(found)

    def _worths(self, sizes: Sequence[int]) -> list[int]:
        """Return what every mask of places is worth when it is free, for sizes in descending order."""
        worths = [0] * len(self._spread)
        if self._wiring.flat:
            return worths
        for size in sizes:
            packs = self._packs(size)
            worths = [worth << _FIELD_BITS | pack for worth, pack in zip(worths, packs, strict=True)]
        links = [sum(self._wiring.links[gpu]) for gpu in self.gpus]
        return [
            (pack << _LINK_BITS | sum(links[place] for place in _bits(mask))) << 2 * _FIELD_BITS | self._aligned(mask)
            for mask, pack in enumerate(worths)
        ]

    def _aligned(self, mask: int) -> int:
        """Return the numbers of whole index-aligned blocks of 4 and of 2 places, as one number."""
        aligned = 0
        for size in (4, 2):
            block = (1 << size) - 1
            whole = sum(mask >> start & block == block for start in range(0, len(self.gpus), size))
            aligned = aligned << _FIELD_BITS | whole
        return aligned

    def _packs(self, size: int) -> list[int]:
        """Return for every mask of places how many disjoint best sets of this size fit in."""
        packs = [0] * len(self._spread)
        by_lowest: list[list[int]] = [[] for _ in self.gpus]
        for mask in self._best_of_each_product(size):
            by_lowest[(mask & -mask).bit_length() - 1].append(mask)
        for free in range(1, len(packs)):
            low = free & -free
            most = packs[free ^ low]
            limit = free.bit_count() // size
            for mask in by_lowest[low.bit_length() - 1]:
                if most == limit:
                    break
                if mask & free == mask:
                    most = max(most, packs[free ^ mask] + 1)
            packs[free] = most
        return packs

    def _best_of_each_product(self, size: int) -> list[int]:
        """Return the sets of the best class of each product, as masks of places."""
        place = {gpus: mask for mask, gpus in enumerate(self._spread)}
        best: dict[int, Quality] = {}
        found = []
        for quality, sets, _ in self.classes(size):
            for gpus in sets:
                product = self._wiring.products[gpus.bit_length() - 1]
                if best.setdefault(product, quality) == quality:
                    found.append(place[gpus])
        return found


def worth(boards: Iterable[Board], free: int) -> int:
    """Return what free GPUs of several boards are still worth."""
    return sum(board.phi[free & board.mask] for board in boards)


def _bits(mask: int) -> list[int]:
    return [place for place in range(mask.bit_length()) if mask >> place & 1]
