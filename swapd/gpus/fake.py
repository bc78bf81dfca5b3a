"""Stands for the bindings of NVML where there is no GPU: same functions, same structs, same exceptions.

Rules that hold here:

* What is not scripted behaves as the driver was seen to behave, its traps included: a lost GPU still counts, has links
  and an empty process list; a handle from before the last ``nvmlInit`` is an invalid argument; a GPU that arrives is
  not seen before the next one; an affinity array that is too short truncates.
* An argument that would crash the real library is a ``TypeError`` here.
* Time passes only in ``nvmlEventSetWait_v2``, which waits as long as it is told, as the real one does.

Used by ``swapd topology --fixture`` and by tests. See ``fake_gpu`` for what a GPU is, ``fake_faults`` for the script.
"""
# ruff: noqa: D102, N802, N803 - names and documentation are those of the bindings

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pynvml

from swapd.core.topology import PcieLevel
from swapd.gpus.fake_driver import FakeDriver, whole
from swapd.gpus.fake_fields import fabric_into, field_values
from swapd.gpus.fake_gpu import FakeLink, FakeProcess, nvml_bdf

_LEVELS: Final = {
    PcieLevel.BOARD: pynvml.NVML_TOPOLOGY_INTERNAL,
    PcieLevel.PIX: pynvml.NVML_TOPOLOGY_SINGLE,
    PcieLevel.PXB: pynvml.NVML_TOPOLOGY_MULTIPLE,
    PcieLevel.PHB: pynvml.NVML_TOPOLOGY_HOSTBRIDGE,
    PcieLevel.NODE: pynvml.NVML_TOPOLOGY_NODE,
    PcieLevel.SYS: pynvml.NVML_TOPOLOGY_SYSTEM,
}


class FakeLibrary(FakeDriver):
    """The bindings' functions over a list of GPUs that may change at any moment."""

    # -- identity ---------------------------------------------------------------------------------------------------

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        (gpu,) = self.enter("DeviceGetUUID", handle)
        return gpu.uuid

    def nvmlDeviceGetName(self, handle: Any) -> str:
        (gpu,) = self.enter("DeviceGetName", handle)
        return gpu.product.name

    def nvmlDeviceGetIndex(self, handle: Any) -> int:
        (gpu,) = self.enter("DeviceGetIndex", handle)
        return self.present().index(gpu)

    def nvmlDeviceGetMinorNumber(self, handle: Any) -> int:
        (gpu,) = self.enter("DeviceGetMinorNumber", handle)
        return gpu.minor

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:
        """Tell the address in both spellings."""
        (gpu,) = self.enter("DeviceGetPciInfo", handle)
        return _pci_info(nvml_bdf(gpu.bdf))

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, int]:
        (gpu,) = self.enter("DeviceGetCudaComputeCapability", handle)
        return gpu.product.compute_capability

    # -- memory, load, faults ---------------------------------------------------------------------------------------

    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any:
        """Count the reserve as used in version 1, tell it apart in version 2."""
        (gpu,) = self.enter("DeviceGetMemoryInfo_v2" if version else "DeviceGetMemoryInfo", handle)
        if gpu.mig:
            raise pynvml.NVMLError_NoPermission
        if gpu.total_bytes is None:
            raise pynvml.NVMLError_NotSupported
        reserved = gpu.product.reserved_bytes if gpu.total_bytes else 0
        if not version:
            return pynvml.c_nvmlMemory_t(total=gpu.total_bytes, free=gpu.free_bytes, used=gpu.used_bytes + reserved)
        if version != pynvml.nvmlMemory_v2:
            raise pynvml.NVMLError_ArgumentVersionMismatch
        return pynvml.c_nvmlMemory_v2_t(version, gpu.total_bytes, reserved, gpu.free_bytes, gpu.used_bytes)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        """List nothing for a lost GPU."""
        (gpu,) = self.enter("DeviceGetComputeRunningProcesses", handle)
        return _process_list(() if gpu.lost else gpu.compute)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any) -> list[Any]:
        """List nothing for a lost GPU."""
        (gpu,) = self.enter("DeviceGetGraphicsRunningProcesses", handle)
        return _process_list(() if gpu.lost else gpu.graphics)

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        (gpu,) = self.enter("DeviceGetUtilizationRates", handle)
        if gpu.mig:
            raise pynvml.NVMLError_NotSupported
        return pynvml.c_nvmlUtilization_t(gpu.utilization, 0)

    def nvmlDeviceGetMigMode(self, device: Any) -> list[int]:
        """Tell the current and the pending mode."""
        (gpu,) = self.enter("DeviceGetMigMode", device)
        if gpu.mig is None:
            raise pynvml.NVMLError_NotSupported
        return [int(gpu.mig), int(gpu.mig)]

    def nvmlDeviceGetRemappedRows(self, device: Any) -> tuple[int, int, int, int]:
        (gpu,) = self.enter("DeviceGetRemappedRows", device)
        return gpu.remapped_rows

    def nvmlDeviceGetNumaNodeId(self, handle: Any) -> int:
        """Tell the node that is the GPU's own memory."""
        (gpu,) = self.enter("DeviceGetNumaNodeId", handle)
        if gpu.own_numa is None:
            raise pynvml.NVMLError_NotSupported
        return gpu.own_numa

    def nvmlDeviceGetFieldValues(self, handle: Any, fieldIds: Sequence[Any]) -> Any:
        """Succeed, whatever becomes of each field."""
        (gpu,) = self.enter("DeviceGetFieldValues", handle)
        return field_values(gpu, fieldIds)

    # -- links and places -------------------------------------------------------------------------------------------

    def nvmlDeviceGetNvLinkState(self, device: Any, link: int) -> int:
        return int(self._link("DeviceGetNvLinkState", device, link).active)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: Any, link: int) -> Any:
        """Refuse for a link that is off."""
        return _pci_info(self._active_link("DeviceGetNvLinkRemotePciInfo", device, link).remote)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: int) -> int:
        """Refuse for a link that is off."""
        return self._active_link("DeviceGetNvLinkRemoteDeviceType", handle, link).kind

    def _link(self, name: str, handle: Any, link: int) -> FakeLink:
        (gpu,) = self.enter(name, handle)
        if not gpu.links:
            raise pynvml.NVMLError_NotSupported
        if not 0 <= whole(link) < len(gpu.links):
            raise pynvml.NVMLError_InvalidArgument
        return gpu.links[link]

    def _active_link(self, name: str, handle: Any, link: int) -> FakeLink:
        found = self._link(name, handle, link)
        if not found.active:
            raise pynvml.NVMLError_InvalidArgument
        return found

    def nvmlDeviceGetTopologyCommonAncestor(self, device1: Any, device2: Any) -> int:
        one, other = self.enter("DeviceGetTopologyCommonAncestor", device1, device2)
        return int(_LEVELS[one.levels.get(other.bdf, PcieLevel.SYS)])

    def nvmlDeviceGetP2PStatus(self, device1: Any, device2: Any, p2pIndex: int) -> int:
        """Allow everything between linked GPUs, nothing between others."""
        one, other = self.enter("DeviceGetP2PStatus", device1, device2)
        whole(p2pIndex)
        linked = any(link.peer in (None, other) for link in one.active_links)
        return int(pynvml.NVML_P2P_STATUS_OK if linked else pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)

    def nvmlDeviceGetCpuAffinity(self, handle: Any, cpuSetSize: int) -> Any:
        """Leave out without an error what does not fit."""
        (gpu,) = self.enter("DeviceGetCpuAffinity", handle)
        return _words(gpu.cpus, cpuSetSize)

    def nvmlDeviceGetMemoryAffinity(self, handle: Any, nodeSetSize: int, scope: int) -> Any:
        """Leave out without an error what does not fit."""
        (gpu,) = self.enter("DeviceGetMemoryAffinity", handle)
        whole(scope)
        return _words(gpu.memory_nodes, nodeSetSize)

    def nvmlDeviceGetGpuFabricInfoV(self, device: Any, gpuFabricInfo: Any) -> int:
        """Fill the struct behind the pointer."""
        (gpu,) = self.enter("DeviceGetGpuFabricInfoV", device)
        if gpu.fabric is None:
            raise pynvml.NVMLError_NotSupported
        fabric_into(gpu.fabric, gpuFabricInfo)
        return int(pynvml.NVML_SUCCESS)


def _words(ids: Iterable[int], size: int) -> Any:
    words = (ctypes.c_ulonglong * whole(size))()
    for number in ids:
        if number < 64 * size:
            words[number // 64] |= 1 << number % 64
    return words


def _pci_info(bus_id: str) -> Any:
    domain, bus, device = (int(part, 16) for part in bus_id.partition(".")[0].split(":"))
    legacy = f"{domain & 0xFFFF:04X}:{bus:02X}:{device:02X}.0"
    return pynvml.nvmlPciInfo_t(legacy.encode(), domain, bus, device, 0, 0, bus_id.encode())


def _process_list(processes: Iterable[FakeProcess]) -> list[Any]:
    names = ("pid", "usedGpuMemory", "gpuInstanceId", "computeInstanceId")
    return [
        pynvml.nvmlFriendlyObject(dict(zip(names, (process.pid, process.used_bytes, 0, 0), strict=True)))
        for process in processes
    ]
