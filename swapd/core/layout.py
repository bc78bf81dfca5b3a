"""Divides a node into boards, and puts sets together out of several of them.

Rules that hold here:

* A board holds up to 8 GPUs that are close to each other: links count first, then PCIe, then the NUMA node. What does
  not fit into 8 is cut, so a border between boards may run through an NVLink domain.
* A set over several boards is made of whole boards as far as it goes. It has GPUs of one product only.
* Everything is bounded: of sets over several boards only the first ``MOST_SETS`` are considered, and what lies in none
  of them is put together piece by piece.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations, islice
from typing import Final

from swapd.core.ids import NO_GPUS, GpuSet, gpu_indices
from swapd.core.tables import BOARD_GPUS
from swapd.core.wiring import Wiring

#: most sets of one size over several boards that are kept
MOST_SETS: Final = 512


def split(wiring: Wiring) -> tuple[tuple[int, ...], ...]:
    """Return the boards of a node, each by the indices of its GPUs; the closest GPUs are put together first."""
    count = len(wiring.products)

    def closeness(pair: tuple[int, int]) -> tuple[bool, int, int, bool]:
        one, two = pair
        return (
            wiring.products[one] == wiring.products[two],
            wiring.links[one][two],
            wiring.levels[one][two],
            wiring.numa[one] == wiring.numa[two],
        )

    board = {gpu: [gpu] for gpu in range(count)}
    for one, two in sorted(combinations(range(count), 2), key=closeness, reverse=True):
        if board[one] is not board[two] and len(board[one]) + len(board[two]) <= BOARD_GPUS:
            board[one].extend(board[two])
            for gpu in board[two]:
                board[gpu] = board[one]
    return tuple(tuple(sorted(board[gpu])) for gpu in range(count) if min(board[gpu]) == gpu)


def parts(wiring: Wiring, boards: Sequence[GpuSet]) -> tuple[tuple[GpuSet, ...], ...]:
    """Return the boards once for each product, with the GPUs of that product only."""
    found = []
    for product in dict.fromkeys(wiring.products):
        mask = wiring.mask(gpu for gpu, other in enumerate(wiring.products) if other == product)
        found.append(tuple(GpuSet(board & mask) for board in boards if board & mask))
    return tuple(found)


def sets_over(boards: Sequence[GpuSet], size: int) -> tuple[GpuSet, ...]:
    """Return sets of one size over several of these boards, at most ``MOST_SETS``: as many whole boards as go in.

    If whole boards of 8 give the size, there are no others.
    """
    whole = whole_boards(boards, size)
    if whole:
        unions = (sum(chosen) for chosen in combinations(whole, size // BOARD_GPUS))
        return tuple(GpuSet(union) for union in islice(unions, MOST_SETS))
    return tuple(islice(_whole_and_rest(boards, size), MOST_SETS))


def whole_boards(boards: Sequence[GpuSet], size: int) -> list[GpuSet]:
    """Return the boards of 8, if some of them together have exactly ``size`` GPUs."""
    whole = [board for board in boards if board.bit_count() == BOARD_GPUS]
    return whole if size % BOARD_GPUS == 0 and len(whole) * BOARD_GPUS >= size else []


def _whole_and_rest(boards: Sequence[GpuSet], size: int) -> Iterator[GpuSet]:
    """Yield sets of some whole boards and a part of one more; of the ways to take so many boards only the first."""
    smallest = accumulate(sorted(board.bit_count() for board in boards))
    for number in range(sum(together <= size for together in smallest), 0, -1):
        for chosen in islice(combinations(boards, number), MOST_SETS):
            union = sum(chosen)
            rest = size - union.bit_count()
            if rest == 0:
                yield GpuSet(union)
            for other in boards if rest > 0 else ():
                if not other & union and other.bit_count() > rest:
                    for some in combinations(gpu_indices(other), rest):
                        yield GpuSet(union | sum(1 << gpu for gpu in some))


def patch(boards: Sequence[GpuSet], size: int, free: int) -> GpuSet:
    """Put together a set of ``size`` GPUs out of ``free``, on few boards: the fullest pieces, then the closest fit."""
    pieces = [piece for board in boards if (piece := board & free)]
    if sum(piece.bit_count() for piece in pieces) < size:
        return NO_GPUS
    found = 0
    while (missing := size - found.bit_count()) > 0:
        enough = [piece for piece in pieces if piece.bit_count() >= missing]
        if enough:
            piece = min(enough, key=_count_and_mask)
            for gpu in islice(gpu_indices(GpuSet(piece)), missing):
                found |= 1 << gpu
        else:
            piece = max(pieces, key=int.bit_count)
            found |= piece
        pieces.remove(piece)
    return GpuSet(found)


def _count_and_mask(piece: int) -> tuple[int, int]:
    return piece.bit_count(), piece


def lowest(size: int, free: int) -> GpuSet:
    """Return the lowest ``size`` GPUs of ``free``; none if there are fewer."""
    rest = free
    for _ in range(size):
        rest &= rest - 1
    return GpuSet(free ^ rest) if free.bit_count() >= size else NO_GPUS
