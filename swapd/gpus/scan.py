"""Reads one GPU, whatever state it is in: the result is a GPU that can be used, or one that is lost, with a reason.

Only the handle, the uuid and the memory are needed; all else that cannot be read is absent. One error counts wherever
it comes up: ``LostError``, since some calls go on looking healthy for a GPU that has left the bus.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from swapd.core.ids import Bytes
from swapd.core.topology import Gpu, GpuHealth
from swapd.gpus.errors import (
    ImplausibleError,
    NoPermissionError,
    NotSupportedError,
    NvmlError,
    optional,
)
from swapd.gpus.hostpath import HostPath
from swapd.gpus.links import LinkScan, scan_links
from swapd.gpus.nvml import Nvml
from swapd.gpus.readings import Device, MemoryReading


@dataclass(frozen=True, slots=True)
class Found:
    """What is at one position of NVML's order."""

    #: its index is not its place on the node yet; health is HEALTHY, MIG or LOST
    gpu: Gpu
    #: ``None``: it has no handle
    device: Device | None = None
    #: ``None``: takes no part in the links of others
    links: LinkScan | None = None
    #: the call without which it is not known what it is good for
    error: NvmlError | None = None
    #: why the driver cannot tell its memory, if it should; empty: it can
    unmeasured: str = ""


@dataclass(frozen=True, slots=True)
class Scanner:
    """Reads GPUs of one node."""

    nvml: Nvml
    host: HostPath
    #: what is known of each GPU, by uuid
    known: Mapping[str, Gpu]
    #: memory of a GPU whose driver does not tell; ``None``: not configured
    memory_bytes: Bytes | None

    def read(self, index: int) -> Found:
        """Read the GPU at a position of NVML's order; raises nothing."""
        gpu, device = Gpu(index=index, uuid="", memory_bytes=Bytes(0)), None
        try:
            device = handle = self.nvml.device(index)
            uuid = self.nvml.uuid(device)
            gpu = self.known.get(uuid) or replace(gpu, uuid=uuid)
            gpu = replace(gpu, name=optional(lambda: self.nvml.name(handle), otherwise="") or gpu.name)
            return self._read(gpu, device)
        except NvmlError as error:
            lost = replace(
                gpu, health=GpuHealth.LOST, why=f"cannot be read: {error}; look for Xid 79 in the kernel log"
            )
            return Found(lost, device if gpu.uuid else None, error=error)

    def _read(self, before: Gpu, device: Device) -> Found:
        """Read all of a GPU that answers; what it was known by stands in for an address that cannot be read."""
        nvml, host = self.nvml, self.host
        mig = optional(lambda: nvml.mig(device), otherwise=False)
        memory, unmeasured = self._memory(device, mig=mig)
        bdf = optional(lambda: nvml.bdf(device), otherwise="") or before.bdf
        numa = self._numa(device, bdf)
        own_numa = optional(lambda: nvml.own_numa_node(device), otherwise=-1)
        links = scan_links(nvml, device)
        gpu = Gpu(
            index=before.index,
            uuid=before.uuid,
            memory_bytes=memory.capacity_bytes if memory else self.memory_bytes or before.memory_bytes,
            name=before.name,
            bdf=bdf,
            minor=optional(lambda: nvml.minor(device), otherwise=None),
            numa=numa,
            cpus=optional(lambda: nvml.cpus(device, host.cpu_words), otherwise=()),
            pcie_root=host.pcie_path(bdf)[0],
            compute_capability=optional(lambda: nvml.compute_capability(device), otherwise=None),
            health=GpuHealth.MIG if mig else GpuHealth.HEALTHY,
            why="partitioned by MIG: switch MIG off to place models on it" if mig else "",
            measured=memory is not None,
            lingers=own_numa >= 0 and own_numa != numa and host.has_cpus(own_numa) is not True,
            nvlinks=len(links.remotes),
            nvlink_mbps=links.mbps,
            fabric=optional(lambda: nvml.fabric(device), otherwise=None),
        )
        return Found(gpu, device, None if mig else links, None, unmeasured)

    def _memory(self, device: Device, *, mig: bool) -> tuple[MemoryReading | None, str]:
        """Return the memory, or why it cannot be had from the driver; raises any error but those that say so."""
        try:
            return self.nvml.memory(device), ""
        except (NotSupportedError, NoPermissionError, ImplausibleError) as error:
            return None, "" if mig else str(error)

    def _numa(self, device: Device, bdf: str) -> int:
        """Return the NUMA node of the host: by the kernel, else the only one with CPUs that NVML calls near."""
        node = self.host.numa_node(bdf)
        if node >= 0 and self.host.has_cpus(node) is not False:
            return node
        near = optional(lambda: self.nvml.memory_nodes(device, self.host.node_words), otherwise=())
        candidates = [node for node in near if self.host.has_cpus(node) is not False]
        return candidates[0] if len(candidates) == 1 else -1
