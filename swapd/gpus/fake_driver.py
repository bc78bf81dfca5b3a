"""Keeps what a fake NVML remembers: Inits, handles, event sets; counts its calls and applies the script to each.

A handle is an address that changes with every Init, as the real library's may; one from before it is an invalid
argument. See ``fake`` for the functions that answer.
"""
# ruff: noqa: D102, N802, N803 - names and documentation are those of the bindings

import ctypes
import threading
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, Final

import pynvml

from swapd.gpus.fake_faults import Faults
from swapd.gpus.fake_gpu import FakeGpu

#: what still answers for a GPU that is off the bus
_HEALTHY_WHEN_LOST: Final = frozenset(
    {
        "DeviceGetUUID",
        "DeviceGetName",
        "DeviceGetIndex",
        "DeviceGetMinorNumber",
        "DeviceGetNvLinkState",
        "DeviceGetComputeRunningProcesses",
        "DeviceGetGraphicsRunningProcesses",
    }
)


class FakeDriver:
    """The driver's memory, and the functions that change it; ``FakeLibrary`` adds those that ask about a GPU."""

    def __init__(self, gpus: Iterable[FakeGpu], *, driver_version: str = "580.82.07") -> None:
        #: attached GPUs in NVML's order: one that is removed is gone at once, one that is added is seen after an Init
        self.gpus = list(gpus)
        self.faults = Faults()
        self.driver_version = driver_version
        #: how often each function was called, without the ``nvml`` prefix
        self.calls: Counter[str] = Counter()
        #: Inits that have not been shut down
        self.inits = 0
        #: threads that called Init or Shutdown
        self.owners: set[int] = set()
        self._epoch = 0
        self._handles: dict[int, FakeGpu] = {}
        self._changed = threading.Condition()
        self._sets: dict[int, deque[tuple[FakeGpu, int, int]]] = {}
        self._registered: dict[int, list[FakeGpu]] = {}
        self._made_sets = 0

    # -- for the script ---------------------------------------------------------------------------------------------

    @property
    def descriptors(self) -> tuple[str, ...]:
        """The device files that the real library would hold open now."""
        if self.inits == 0:
            return ()
        return ("/dev/nvidiactl", *(f"/dev/nvidia{gpu.minor}" for gpu in self._handles.values()))

    def xid(self, gpu: FakeGpu, number: int) -> None:
        """Report an Xid of a GPU to every set in which it is registered, once."""
        self.event(gpu, pynvml.nvmlEventTypeXidCriticalError, number)

    def event(self, gpu: FakeGpu, kind: int, data: int) -> None:
        """Report an event of any kind."""
        with self._changed:
            for address, waiting in self._sets.items():
                if gpu in self._registered[address]:
                    waiting.append((gpu, kind, data))
            self._changed.notify_all()

    # -- what every call passes -------------------------------------------------------------------------------------

    def enter(self, name: str, *handles: Any) -> list[FakeGpu]:
        """Count a call, apply the script, and return the GPUs that the handles mean."""
        self.calls[name] += 1
        for handle in handles:
            if not isinstance(handle, pynvml.c_nvmlDevice_t):
                raise TypeError(f"nvml{name} would crash: {handle!r} is no handle")
        addresses = [ctypes.cast(handle, ctypes.c_void_p).value or 0 for handle in handles]
        gpus = [self._handles[address] for address in addresses if address in self._handles]
        self.faults.apply(name, tuple(gpus))
        if self.inits == 0:
            raise pynvml.NVMLError_Uninitialized
        if len(gpus) < len(handles):
            raise pynvml.NVMLError_InvalidArgument
        for gpu in gpus:
            self._check_bus(name, gpu)
        return gpus

    def _check_bus(self, name: str, gpu: FakeGpu) -> None:
        if gpu.mute or gpu not in self.gpus or (gpu.lost and name not in _HEALTHY_WHEN_LOST):
            raise pynvml.NVMLError_GpuIsLost

    def present(self) -> list[FakeGpu]:
        return [gpu for gpu in self._handles.values() if gpu in self.gpus]

    def _handle(self, gpu: FakeGpu) -> Any:
        address = next(address for address, known in self._handles.items() if known is gpu)
        return ctypes.cast(ctypes.c_void_p(address), pynvml.c_nvmlDevice_t)

    # -- the driver as a whole --------------------------------------------------------------------------------------

    def nvmlInit(self) -> None:
        """Begin."""
        self.calls["Init"] += 1
        self.owners.add(threading.get_ident())
        self.faults.apply("Init", ())
        self.inits += 1
        if self.inits == 1:
            self._epoch += 1
            self._handles = {(self._epoch << 20) + (place + 1 << 8): gpu for place, gpu in enumerate(self.gpus)}

    def nvmlShutdown(self) -> None:
        """End one Init; the last one makes every handle stale and wakes whoever waits for events."""
        self.owners.add(threading.get_ident())
        self.enter("Shutdown")
        self.inits -= 1
        if self.inits == 0:
            with self._changed:
                self._handles, self._sets, self._registered = {}, {}, {}
                self._changed.notify_all()

    def nvmlSystemGetDriverVersion(self) -> str:
        self.enter("SystemGetDriverVersion")
        return self.driver_version

    def nvmlDeviceGetCount(self) -> int:
        """Count what was there at the Init and has not been taken away; lost GPUs too."""
        self.enter("DeviceGetCount")
        return len(self.present())

    # -- handles ----------------------------------------------------------------------------------------------------

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        present = self.present()
        gpu = present[whole(index)] if 0 <= index < len(present) else None
        return self._resolved("DeviceGetHandleByIndex", gpu, pynvml.NVMLError_InvalidArgument)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        gpu = next((gpu for gpu in self.present() if gpu.uuid == uuid), None)
        return self._resolved("DeviceGetHandleByUUID", gpu, pynvml.NVMLError_NotFound)

    def _resolved(self, name: str, gpu: FakeGpu | None, otherwise: type[Exception]) -> Any:
        if gpu is None:
            self.enter(name)
            raise otherwise
        handle = self._handle(gpu)
        self.enter(name, handle)
        return handle

    # -- events -----------------------------------------------------------------------------------------------------

    def nvmlEventSetCreate(self) -> Any:
        self.enter("EventSetCreate")
        with self._changed:
            self._made_sets += 1
            address = 0x7000_0000 + (self._made_sets << 8)
            self._sets[address], self._registered[address] = deque(), []
        return ctypes.cast(ctypes.c_void_p(address), pynvml.c_nvmlEventSet_t)

    def nvmlDeviceRegisterEvents(self, handle: Any, eventTypes: int, eventSet: Any) -> None:
        (gpu,) = self.enter("DeviceRegisterEvents", handle)
        whole(eventTypes)
        with self._changed:
            self._registered[self._set_address(eventSet)].append(gpu)

    def nvmlEventSetWait_v2(self, eventSet: Any, timeoutms: int) -> Any:
        """Block for the next event, or time out."""
        self.enter("EventSetWait_v2")
        with self._changed:
            address = self._set_address(eventSet)
            self._changed.wait_for(lambda: self._sets.get(address) != deque(), whole(timeoutms) / 1000)
            if address not in self._sets:
                raise pynvml.NVMLError_Uninitialized
            if not self._sets[address]:
                raise pynvml.NVMLError_Timeout
            gpu, kind, data = self._sets[address].popleft()
            return pynvml.c_nvmlEventData_t(self._handle(gpu), kind, data, 0, 0)

    def nvmlEventSetFree(self, eventSet: Any) -> None:
        self.enter("EventSetFree")
        with self._changed:
            address = self._set_address(eventSet)
            del self._sets[address], self._registered[address]

    def _set_address(self, event_set: Any) -> int:
        if not isinstance(event_set, pynvml.c_nvmlEventSet_t):
            raise TypeError(f"NVML would crash: {event_set!r} is no event set")
        address = ctypes.cast(event_set, ctypes.c_void_p).value or 0
        if address not in self._sets:
            raise pynvml.NVMLError_InvalidArgument
        return address


def whole(number: int) -> int:
    """Refuse what the bindings would pass on and the library would misread."""
    if type(number) is not int:
        raise TypeError(f"NVML would crash: {number!r} is no int")
    return number
