"""Asks NVML: one typed object over the bindings, the only place that knows their shapes.

Rules that hold here:

* Every argument is converted before it crosses: the bindings declare no argument types, a wrong one is a segfault.
* Every answer is converted after it has crossed, and every exception of the bindings becomes an ``NvmlError``.
* Nothing is remembered: no handle, no state. Exactly one owner calls ``init`` and ``shutdown``, which NVML counts per
  process; after a ``shutdown`` every handle is stale and is resolved again, by uuid.

It does not know threads or deadlines: each call may block for minutes.
"""

import ctypes
import enum
from collections.abc import Callable, Sequence
from typing import Any, Final

import pynvml

from swapd.core.ids import Bytes
from swapd.core.topology import Fabric, PcieLevel
from swapd.gpus.errors import (
    BY_CODE,
    ImplausibleError,
    InvalidArgumentError,
    MismatchError,
    NotSupportedError,
    NvmlError,
    NvmlTimeoutError,
    OutdatedError,
)
from swapd.gpus.fabric import fabric_of
from swapd.gpus.readings import (
    MAX_PID,
    Device,
    DriverEvent,
    EventSet,
    GpuProcess,
    MemoryReading,
    RemappedRows,
    RemoteKind,
    bits,
    canonical_bdf,
)

MAX_LINKS: Final[int] = pynvml.NVML_NVLINK_MAX_LINKS
"""NVLinks a GPU can have at most; asking for one that it has not is answered by an error, and not always the same."""

_LEVELS: Final[dict[int, PcieLevel]] = {
    pynvml.NVML_TOPOLOGY_INTERNAL: PcieLevel.BOARD,
    pynvml.NVML_TOPOLOGY_SINGLE: PcieLevel.PIX,
    pynvml.NVML_TOPOLOGY_MULTIPLE: PcieLevel.PXB,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: PcieLevel.PHB,
    pynvml.NVML_TOPOLOGY_NODE: PcieLevel.NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: PcieLevel.SYS,
}
_REMOTES: Final[dict[int, RemoteKind]] = {
    pynvml.NVML_NVLINK_DEVICE_TYPE_GPU: RemoteKind.GPU,
    pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU: RemoteKind.NPU,
    pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH: RemoteKind.SWITCH,
}
_UNION: Final[dict[int, str]] = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}


class Field(enum.IntEnum):
    """Field values that are read."""

    #: of one link that all links share, one way, MB/s
    LINK_SPEED_COMMON = pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
    #: of the link that is the field's scope, one way, MB/s
    LINK_SPEED = pynvml.NVML_FI_DEV_NVLINK_GET_SPEED
    #: uncorrectable ECC errors since the last reset, of memory and caches
    ECC_UNCORRECTABLE = pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL
    #: what the driver wants done about the GPU (``nvmlDeviceGpuRecoveryAction_t``); 0: nothing
    RECOVERY_ACTION = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION


class PeerCapability(enum.IntEnum):
    """What may be asked of a pair of GPUs; the bindings' own constant for READ is a tuple by mistake."""

    READ = 0
    NVLINK = pynvml.NVML_P2P_CAPS_INDEX_NVLINK


def _ignore(_: NvmlError) -> None:
    pass


class Nvml:
    """NVML behind its bindings (or a fake of them); see the module for its rules. Every method raises ``NvmlError``."""

    def __init__(self, library: Any = pynvml, *, on_error: Callable[[NvmlError], None] = _ignore) -> None:
        """Take the bindings; ``on_error`` hears of every failed call, expected ones too, on the calling thread."""
        self._library = library
        self._on_error = on_error

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._library, f"nvml{name}")(*arguments)
        except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError, UnicodeDecodeError) as caught:
            error = _translated(name, caught)
        self._on_error(error)
        raise error

    # -- the driver as a whole --------------------------------------------------------------------------------------

    def init(self) -> None:
        """Begin; counted by NVML, so each needs its ``shutdown``."""
        self._call("Init")

    def shutdown(self) -> None:
        """End: every handle is stale, and no device file is open any more once the count is 0."""
        self._call("Shutdown")

    def driver_version(self) -> str:
        """Return the kernel driver's version."""
        return str(self._call("SystemGetDriverVersion"))

    def count(self) -> int:
        """Count the GPUs the driver knew when it was begun; one that is lost still counts."""
        return int(self._call("DeviceGetCount"))

    # -- identity ---------------------------------------------------------------------------------------------------

    def device(self, index: int) -> Device:
        """Return the handle at a position of NVML's own order, which may change at a reboot."""
        return _device(self._call("DeviceGetHandleByIndex", int(index)))

    def device_by_uuid(self, uuid: str) -> Device:
        """Return the handle of a GPU."""
        return _device(self._call("DeviceGetHandleByUUID", str(uuid)))

    def uuid(self, device: Device) -> str:
        """Return the full uuid; answers for a lost GPU too."""
        return str(self._call("DeviceGetUUID", device.raw))

    def name(self, device: Device) -> str:
        """Return the product name; answers for a lost GPU too."""
        return str(self._call("DeviceGetName", device.raw))

    def index(self, device: Device) -> int:
        """Return the position in NVML's own order."""
        return int(self._call("DeviceGetIndex", device.raw))

    def minor(self, device: Device) -> int:
        """Return the minor number of the device file."""
        return int(self._call("DeviceGetMinorNumber", device.raw))

    def bdf(self, device: Device) -> str:
        """Return the canonical PCI address; empty: it cannot be read as one."""
        info = self._call("DeviceGetPciInfo", device.raw)
        return _bdf(info, "busId") or _bdf(info, "busIdLegacy")

    def compute_capability(self, device: Device) -> tuple[int, int]:
        """Return the CUDA compute capability, major and minor."""
        major, minor = self._call("DeviceGetCudaComputeCapability", device.raw)
        return int(major), int(minor)

    # -- memory, load, faults ---------------------------------------------------------------------------------------

    def memory(self, device: Device) -> MemoryReading:
        """Read the memory; unified memory (nothing at all in total) is ``NotSupportedError``.

        ``used`` is not offered: version 1 counts the driver's reserve as used, version 2 does not.
        """
        try:
            info = self._call("DeviceGetMemoryInfo", device.raw, pynvml.nvmlMemory_v2)
            reserved = int(info.reserved)
        except OutdatedError:
            info, reserved = self._call("DeviceGetMemoryInfo", device.raw), 0
        total, free = int(info.total), int(info.free)
        if total == 0:
            raise NotSupportedError("DeviceGetMemoryInfo", pynvml.NVML_ERROR_NOT_SUPPORTED, "TotalIsZero")
        if free > total or reserved >= total:
            raise ImplausibleError("DeviceGetMemoryInfo", pynvml.NVML_SUCCESS, "ImplausibleMemory")
        return MemoryReading(Bytes(total), Bytes(free), Bytes(reserved))

    def compute_processes(self, device: Device, total_bytes: Bytes) -> tuple[GpuProcess, ...]:
        """List the processes with a compute context; see ``graphics_processes``."""
        return self._processes("DeviceGetComputeRunningProcesses", device, total_bytes)

    def graphics_processes(self, device: Device, total_bytes: Bytes) -> tuple[GpuProcess, ...]:
        """List the processes with a graphics context. Raises ``ImplausibleError`` when the list cannot be trusted.

        An empty list is no proof of an idle GPU: a lost one has none either, and some drivers hide them.
        """
        return self._processes("DeviceGetGraphicsRunningProcesses", device, total_bytes)

    def _processes(self, call: str, device: Device, total_bytes: Bytes) -> tuple[GpuProcess, ...]:
        """Convert a list; one impossible entry means that the driver fills another layout than we read."""
        found = []
        for entry in self._call(call, device.raw):
            pid, used = entry.pid, entry.usedGpuMemory
            if pid is None or not 0 < pid <= MAX_PID or (used is not None and used > total_bytes):
                error = ImplausibleError(call, pynvml.NVML_SUCCESS, "ImplausibleProcess")
                self._on_error(error)
                raise error
            found.append(GpuProcess(int(pid), None if used is None else Bytes(int(used))))
        return tuple(found)

    def utilization(self, device: Device) -> int:
        """Return the share of time in which a kernel ran, percent."""
        return int(self._call("DeviceGetUtilizationRates", device.raw).gpu)

    def mig(self, device: Device) -> bool:
        """Tell whether the GPU is partitioned now."""
        try:
            current, _ = self._call("DeviceGetMigMode", device.raw)
        except NotSupportedError:
            return False
        return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)

    def remapped_rows(self, device: Device) -> RemappedRows:
        """Return how many rows of memory were replaced, and whether that is done."""
        correctable, uncorrectable, pending, failed = self._call("DeviceGetRemappedRows", device.raw)
        return RemappedRows(int(correctable), int(uncorrectable), bool(pending), bool(failed))

    def own_numa_node(self, device: Device) -> int:
        """Return the NUMA node that **is** the GPU's memory; never the host's node near it."""
        return int(self._call("DeviceGetNumaNodeId", device.raw))

    # -- links and places -------------------------------------------------------------------------------------------

    def link_active(self, device: Device, link: int) -> bool:
        """Tell whether an NVLink is up; answers for a lost GPU too."""
        return bool(self._call("DeviceGetNvLinkState", device.raw, int(link)))

    def link_remote_bdf(self, device: Device, link: int) -> str:
        """Return the canonical PCI address at the other end; empty: not known (virtual machines)."""
        return _bdf(self._call("DeviceGetNvLinkRemotePciInfo", device.raw, int(link)), "busId")

    def link_remote_kind(self, device: Device, link: int) -> RemoteKind:
        """Return what is at the other end."""
        kind = int(self._call("DeviceGetNvLinkRemoteDeviceType", device.raw, int(link)))
        return _REMOTES.get(kind, RemoteKind.UNKNOWN)

    def field_values(self, device: Device, fields: Sequence[tuple[Field, int]]) -> tuple[int | None, ...]:
        """Read fields, each with its scope (a link, or 0); ``None`` for one that the GPU does not have."""
        values = self._call("DeviceGetFieldValues", device.raw, [(int(field), int(scope)) for field, scope in fields])
        return tuple(_field_value(value) for value in values)

    def common_ancestor(self, one: Device, other: Device) -> PcieLevel:
        """Return how two GPUs meet on PCIe."""
        level = int(self._call("DeviceGetTopologyCommonAncestor", one.raw, other.raw))
        return _LEVELS.get(level, PcieLevel.SYS)

    def peers(self, one: Device, other: Device, capability: PeerCapability) -> bool:
        """Tell whether the driver lets two GPUs reach each other's memory; information, never a gate."""
        return int(self._call("DeviceGetP2PStatus", one.raw, other.raw, int(capability))) == 0

    def cpus(self, device: Device, words: int) -> tuple[int, ...]:
        """Return the CPUs near a GPU, ascending; ids of ``64 * words`` and above are silently left out."""
        return bits(self._call("DeviceGetCpuAffinity", device.raw, int(words)))

    def memory_nodes(self, device: Device, words: int) -> tuple[int, ...]:
        """Return the NUMA nodes near a GPU, ascending, those without CPUs too; see ``cpus`` for ``words``."""
        scope = pynvml.NVML_AFFINITY_SCOPE_NODE
        return bits(self._call("DeviceGetMemoryAffinity", device.raw, int(words), scope))

    def fabric(self, device: Device) -> Fabric:
        """Return the GPU's place in the NVLink fabric (Hopper and later)."""
        info = pynvml.c_nvmlGpuFabricInfo_v3_t()
        try:
            self._call("DeviceGetGpuFabricInfoV", device.raw, ctypes.byref(info))
        except (OutdatedError, InvalidArgumentError):
            info = pynvml.c_nvmlGpuFabricInfo_v2_t()
            self._call("DeviceGetGpuFabricInfoV", device.raw, ctypes.byref(info))
        return fabric_of(info)

    # -- events -----------------------------------------------------------------------------------------------------

    def event_set(self) -> EventSet:
        """Make an empty set; needs its ``free``."""
        return EventSet(self._call("EventSetCreate"))

    def register(self, device: Device, events: EventSet) -> None:
        """Add a GPU's Xid errors to a set."""
        self._call("DeviceRegisterEvents", device.raw, pynvml.nvmlEventTypeXidCriticalError, events.raw)

    def wait(self, events: EventSet, timeout_ms: int) -> DriverEvent | None:
        """Block for the next event; ``None``: none came in time. Each is delivered once."""
        try:
            data = self._call("EventSetWait_v2", events.raw, int(timeout_ms))
        except NvmlTimeoutError:
            return None
        xid = data.eventType == pynvml.nvmlEventTypeXidCriticalError
        return DriverEvent(_device(data.device), int(data.eventData) if xid else None)

    def free(self, events: EventSet) -> None:
        """Give a set back; nobody may be waiting for it."""
        self._call("EventSetFree", events.raw)


def _translated(call: str, caught: Exception) -> NvmlError:
    """Return our error for one of the bindings', whose ``str`` would ask the library again."""
    if isinstance(caught, pynvml.NVMLLibraryMismatchError):  # no NVMLError: a missing function behind a wrapper
        return MismatchError(call, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "LibraryMismatch")
    if isinstance(caught, pynvml.NVMLError):
        code = int(caught.value)
        name = type(caught).__name__.removeprefix("NVMLError_")
        return BY_CODE.get(code, NvmlError)(call, code, name)
    return ImplausibleError(call, pynvml.NVML_SUCCESS, "ImplausibleText")


def _device(raw: Any) -> Device:
    return Device(ctypes.cast(raw, ctypes.c_void_p).value or 0, raw)


def _bdf(info: Any, attribute: str) -> str:
    """Read a PCI address out of a struct, which decodes it on access."""
    try:
        return canonical_bdf(str(getattr(info, attribute)))
    except UnicodeDecodeError:
        return ""


def _field_value(value: Any) -> int | None:
    """Return one field's value: the call as a whole succeeds while single fields fail."""
    attribute = _UNION.get(int(value.valueType))
    if value.nvmlReturn != pynvml.NVML_SUCCESS or attribute is None:
        return None
    return int(getattr(value.value, attribute))
