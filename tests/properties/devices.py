"""Keeps what the suite was told of the devices: GPUs and their health, readings of their memory; which sets are legal.

Nothing here asks the core. Sets are found by trying all, rings by trying every order.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import combinations, pairwise, permutations

from swapd.core.catalog import ModelSpec, NvlinkUse
from swapd.core.events import GpuMemory, GpuMemoryRead
from swapd.core.ids import Bytes, GpuSet, Instant, gpu_indices
from swapd.core.topology import DriverState, Gpu, NodeTopology


class Devices:
    """The devices as they were told."""

    def __init__(self, topology: NodeTopology) -> None:
        self.topology = topology
        #: what the last reading said of each GPU, and when it was taken; a GPU that it left out is not known now
        self.read: dict[int, tuple[Instant, GpuMemory]] = {}
        self._taken: dict[int, Instant] = {}

    def hear(self, reading: GpuMemoryRead) -> None:
        """Take the last word on memory; of a GPU that was read later, one that comes late says nothing any more."""
        told = {memory.gpu: memory for memory in reading.readings}
        for gpu in range(len(self.topology.gpus)):
            if reading.taken < self._taken.get(gpu, reading.taken) or not self.tells(gpu):
                continue
            self.read.pop(gpu, None)
            if gpu in told:
                self.read[gpu] = reading.taken, told[gpu]
                self._taken[gpu] = reading.taken

    def change(self, topology: NodeTopology) -> None:
        """Take the devices as they are now; what was read of one that must not be used counts no more."""
        self.topology = topology
        for gpu in range(len(topology.gpus)):
            if not self.tells(gpu):
                self.read.pop(gpu, None)
                self._taken.pop(gpu, None)

    @property
    def up(self) -> bool:
        """Whether anything new may be loaded."""
        return self.topology.driver in (DriverState.UP, DriverState.VIRTUAL)

    def tells(self, gpu: int) -> bool:
        """Whether the driver's word counts for the memory of a GPU, as far as was told."""
        known = self.topology.gpus[gpu]
        return known.measured and known.placeable

    @property
    def virtual(self) -> bool:
        """Whether there is no driver."""
        return self.topology.driver is DriverState.VIRTUAL

    def capacity(self, gpu: int) -> Bytes:
        """Return the usable memory of a GPU."""
        return self.topology.gpus[gpu].memory_bytes

    def seen_free(self, gpu: int, need: int) -> bool:
        """Whether the last reading showed this much free, or no reading tells of this GPU."""
        if not self.topology.gpus[gpu].measured:
            return True
        return gpu in self.read and self.read[gpu][1].free_bytes >= need

    def sets(self, spec: ModelSpec) -> Iterator[GpuSet]:
        """Yield every set of GPUs that a model may be placed on, whoever is there now."""
        usable = [gpu for gpu in self.topology.gpus if gpu.placeable and suits(spec, gpu)]
        for chosen in combinations(usable, spec.footprint.gpus):
            gpus = GpuSet(sum(1 << gpu.index for gpu in chosen))
            if len({gpu.name for gpu in chosen}) == 1 and self._linked(spec, gpus):
                yield gpus

    def _linked(self, spec: ModelSpec, gpus: GpuSet) -> bool:
        return spec.nvlink is not NvlinkUse.REQUIRED or gpus.bit_count() == 1 or self.ring(gpus) > 0

    def ring(self, gpus: GpuSet) -> int:
        """Return the fewest links between neighbours in the best ring through a set of two or more GPUs."""
        links = self.topology.links
        first, *others = gpu_indices(gpus)
        if not links:
            return 0
        rings = ((first, *order, first) for order in permutations(others))
        return max(min(links[one][two] for one, two in pairwise(ring)) for ring in rings)


def suits(spec: ModelSpec, gpu: Gpu) -> bool:
    """Say whether a GPU is of the kind a model asks for."""
    named = not spec.gpu_name or fnmatchcase(gpu.name.lower(), spec.gpu_name.lower())
    able = spec.min_compute_capability is None or (gpu.compute_capability or (0, 0)) >= spec.min_compute_capability
    return named and able
