"""Describes the node's GPUs as the core sees them: an index, a stable id, a size."""

from dataclasses import dataclass

from swapd.core.ids import Bytes, GpuSet


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU (or virtual device)."""

    #: position on the node and bit in every GpuSet; dense from 0
    index: int
    #: stable identity: the full NVML UUID, or ``virtual-<index>``
    uuid: str
    #: usable memory, bytes
    memory_bytes: Bytes


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """All GPUs of the node, ordered by index."""

    gpus: tuple[Gpu, ...]

    @property
    def all_gpus(self) -> GpuSet:
        """Every GPU of the node."""
        return GpuSet((1 << len(self.gpus)) - 1)
