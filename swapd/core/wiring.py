"""Says how the node's GPUs are joined, in the form that the placement tables are built from.

Rules that hold here:

* A wiring is what sets of GPUs are judged by and nothing else: two topologies that differ only in memory, driver or
  which GPUs are lost have equal wirings, so tables are kept by it.
* What is not known is the worst: no link, across NUMA nodes, a NUMA node of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Self

from swapd.core.ids import GpuSet
from swapd.core.topology import GpuHealth, NodeTopology, PcieLevel

_UNKNOWN_NUMA: Final = -1


@dataclass(frozen=True, slots=True)
class Wiring:
    """Links, PCIe levels, NUMA nodes and products of all GPUs, by index."""

    #: NVLinks between GPU i and GPU j, symmetric
    links: tuple[tuple[int, ...], ...]
    #: how GPU i and GPU j meet on PCIe, symmetric
    levels: tuple[tuple[int, ...], ...]
    #: NUMA node; those not known have different negative numbers
    numa: tuple[int, ...]
    #: number of the product; only GPUs of one product form a set
    products: tuple[int, ...]
    #: GPUs that work, but not as they should
    degraded: GpuSet
    #: nothing tells the GPUs apart: any set is as good as any other
    flat: bool

    @classmethod
    def of(cls, topology: NodeTopology) -> Self:
        """Take from a topology what sets are judged by."""
        gpus = topology.gpus
        count = len(gpus)
        names = list(dict.fromkeys(gpu.name for gpu in gpus))
        degraded = sum(1 << gpu.index for gpu in gpus if gpu.health is GpuHealth.DEGRADED)
        nothing = ((0,) * count,) * count
        return cls(
            links=topology.links or nothing,
            levels=topology.levels or ((int(PcieLevel.SYS),) * count,) * count,
            numa=tuple(gpu.numa if gpu.numa != _UNKNOWN_NUMA else -1 - gpu.index for gpu in gpus),
            products=tuple(names.index(gpu.name) for gpu in gpus),
            degraded=GpuSet(degraded),
            flat=not topology.links and not topology.levels and not degraded and len(names) <= 1,
        )

    def mask(self, gpus: Iterable[int]) -> GpuSet:
        """Return the set of these GPUs."""
        return GpuSet(sum(1 << gpu for gpu in gpus))

    @property
    def peers(self) -> tuple[GpuSet, ...]:
        """Return for each GPU those it has links to."""
        return tuple(
            self.mask(other for other, count in enumerate(row) if count and other != gpu)
            for gpu, row in enumerate(self.links)
        )

    @property
    def domains(self) -> tuple[GpuSet, ...]:
        """Return the sets of two or more GPUs that links join, directly or over others, lowest first."""
        peers = self.peers
        found: list[GpuSet] = []
        seen = 0
        for gpu in range(len(peers)):
            if seen >> gpu & 1 or not peers[gpu]:
                continue
            domain = reached = 1 << gpu
            while reached:
                low = reached & -reached
                reached = (reached ^ low) | peers[low.bit_length() - 1] & ~domain
                domain |= reached
            found.append(GpuSet(domain))
            seen |= domain
        return tuple(found)


def largest_clique(peers: Sequence[int], among: int) -> GpuSet:
    """Return the most GPUs of ``among`` that are pairwise linked; one GPU if none are. ``peers``: see ``Wiring``."""
    return GpuSet(_grown(peers, 0, among, 0))


def _grown(peers: Sequence[int], clique: int, others: int, best: int) -> int:
    """Return the largest clique of ``clique`` and some of ``others``, all linked to it; ``best`` if none is larger."""
    if not others and clique.bit_count() > best.bit_count():
        return clique
    while others and clique.bit_count() + others.bit_count() > best.bit_count():
        low = others & -others
        others ^= low
        best = _grown(peers, clique | low, others & peers[low.bit_length() - 1], best)
    return best
