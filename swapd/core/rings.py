"""Finds the best ring through a set of GPUs: the closed path whose weakest hop is strongest.

Collective operations run around such a ring, and its weakest hop sets their speed. Both searches are exact and work on
bit masks of visited GPUs (2^(k-1) of them), so they are for sets of up to ``EXACT`` GPUs.
"""

from collections.abc import Sequence
from typing import Final

#: most GPUs for which the searches are made
EXACT: Final = 8

#: below any sum of hops
_NEVER: Final = -(1 << 60)

#: weight of the hop between GPU i and GPU j, symmetric; the diagonal is not looked at
Weights = Sequence[Sequence[int]]


def bottleneck(weights: Weights, gpus: Sequence[int]) -> int:
    """Return the weakest hop of the best ring through these GPUs (at least two; of two it is the hop between them)."""
    count = len(gpus)
    hops = [[weights[one][two] for two in gpus] for one in gpus]
    every = _different(hops)
    if count == 2 or len(every) == 1:
        return every[0]
    # each GPU has two neighbours on a ring, so none can do better than with its second best hop
    most = min(sorted(row[:place] + row[place + 1 :])[-2] for place, row in enumerate(hops))
    for weakest in reversed(every[1:]):
        if weakest <= most and _closes(hops, weakest):
            return weakest
    return every[0]


def _different(hops: Weights) -> list[int]:
    """Return the weights of all hops, each once, in ascending order."""
    return sorted(dict.fromkeys(hops[one][two] for two in range(len(hops)) for one in range(two)))


def _closes(hops: Weights, weakest: int) -> bool:
    """Say whether a ring through all places has no hop below ``weakest``."""
    count = len(hops)
    near = [sum(1 << two for two in range(count) if one != two and hops[one][two] >= weakest) for one in range(count)]
    ends = [0] * (1 << count)  # by places visited from place 0: where such a path may end
    ends[1] = 1
    for visited in range(1, 1 << count, 2):
        last = ends[visited]
        while last:
            low = last & -last
            last ^= low
            onward = near[low.bit_length() - 1] & ~visited
            while onward:
                step = onward & -onward
                onward ^= step
                ends[visited | step] |= step
    return bool(ends[-1] & near[0])


def ring_order(weights: Weights, gpus: Sequence[int]) -> tuple[int, ...]:
    """Return the GPUs (ascending, at most ``EXACT``) in the order of the best ring.

    The weakest hop is as strong as can be, then the sum of the hops, then the order is the lowest.
    """
    count = len(gpus)
    hops = [[weights[one][two] for two in gpus] for one in gpus]
    if count < 4 or len(_different(hops)) == 1:
        return tuple(gpus)
    weakest = bottleneck(weights, gpus)
    hops = [[hop if hop >= weakest else _NEVER for hop in row] for row in hops]
    full = (1 << count) - 1
    #: by places visited and the last of them, what ``_onward`` adds to the hop to that one
    known: dict[tuple[int, int], int] = {}
    order = [0]
    visited = 1
    while visited != full:
        sums = [_onward(hops, visited, order[-1], place, known) for place in range(count)]
        order.append(sums.index(max(sums)))
        visited |= 1 << order[-1]
    return tuple(gpus[place] for place in order)


def _onward(hops: Weights, visited: int, last: int, place: int, known: dict[tuple[int, int], int]) -> int:
    """Return the greatest sum of the hops from ``last`` over ``place`` and all others not visited back to the first."""
    if visited >> place & 1 or hops[last][place] == _NEVER:
        return _NEVER
    visited |= 1 << place
    rest = known.get((visited, place))
    if rest is None:
        if visited == (1 << len(hops)) - 1:
            rest = hops[place][0]
        else:
            rest = max(_onward(hops, visited, place, other, known) for other in range(len(hops)))
        known[visited, place] = rest
    return hops[last][place] + rest
