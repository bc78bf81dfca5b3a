"""Judges sets of GPUs: which of two sets of one size is better, wherever on the node they lie.

Rules that hold here:

* Qualities are compared field by field, a greater one is better; equal ones make a class.
* Sets with an NVLink ring come first. Among those with one, and among those without, intact GPUs come before degraded
  ones. Single GPUs have no ring: there the degraded one comes first, for it is of least use to anybody else.
* A pair with NVLinks does not need PCIe, so its PCIe level does not count.
"""

from collections.abc import Sequence
from itertools import combinations
from typing import Final, NamedTuple

from swapd.core.ids import GpuSet, gpu_indices
from swapd.core.rings import EXACT, bottleneck
from swapd.core.topology import PcieLevel
from swapd.core.wiring import Wiring

#: up to this size the sum of all links counts: in larger sets the ring and the weakest pair say all
_SUMMED: Final = 4
_NUMA_SPAN: Final = 100


class Quality(NamedTuple):
    """How good a set is."""

    #: an NVLink ring passes through it: 1, else 0
    linked: int
    #: degraded GPUs in it, negative; of a single GPU positive
    intact: int
    #: links of the weakest hop of its best ring
    ring: int
    #: links of its weakest pair
    pair: int
    #: links of all pairs
    links: int
    #: the worst PCIe level among pairs without links, less 100 for each NUMA node
    pcie: int


def judge(wiring: Wiring, gpus: Sequence[int]) -> Quality:
    """Return the quality of a set of GPUs, given by index in ascending order.

    Above ``EXACT`` GPUs the weakest pair stands for the ring, which is a lower bound of it.
    """
    degraded = sum(wiring.degraded >> gpu & 1 for gpu in gpus)
    if len(gpus) == 1 or wiring.flat:
        return Quality(0, degraded, 0, 0, 0, 0)
    links, levels = wiring.links, wiring.levels
    pairs = [(links[one][two], levels[one][two]) for one, two in combinations(gpus, 2)]
    counts = [count for count, _ in pairs]
    weakest = min(counts)
    ring = bottleneck(links, gpus) if len(gpus) <= EXACT else weakest
    return Quality(
        linked=int(ring > 0),
        intact=-degraded,
        ring=ring,
        pair=weakest,
        links=sum(counts) if len(gpus) <= _SUMMED else 0,
        pcie=min((level for count, level in pairs if not count), default=int(PcieLevel.BOARD))
        - _NUMA_SPAN * len(dict.fromkeys(wiring.numa[gpu] for gpu in gpus)),
    )


def judge_set(wiring: Wiring, gpus: int) -> Quality:
    """Return the quality of a set of GPUs, given as a mask."""
    return judge(wiring, tuple(gpu_indices(GpuSet(gpus))))
