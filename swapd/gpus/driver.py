"""Says what state the driver is in after an error, what an operator is told, and which errors count; pure."""

import threading
from collections.abc import Mapping
from typing import Final

from swapd.core.topology import DriverState
from swapd.gpus.errors import (
    DriverNotLoadedError,
    InvalidArgumentError,
    LibraryAbsentError,
    MismatchError,
    NoGpuError,
    NotSupportedError,
    NvmlError,
    NvmlTimeoutError,
)

_GO_ON: Final = "models that are loaded go on serving, no other can be loaded"

_SENTENCES: Final[Mapping[DriverState, str]] = {
    DriverState.VIRTUAL: "",
    DriverState.STARTING: "",
    DriverState.UP: "",
    DriverState.ABSENT: "no GPU is to be seen ({error}): install the NVIDIA driver, or give the container its library "
    "and devices; swapd goes on looking",
    DriverState.NOT_LOADED: "the NVIDIA kernel driver is not loaded ({error}): load it; swapd goes on looking",
    DriverState.MISMATCH: "the NVIDIA library and kernel driver do not match ({error}), as after an upgrade: reload "
    f"the driver or reboot, or restart swapd if the library is the older one; {_GO_ON}",
    DriverState.STALLED: f"NVML has not answered in time, look at the kernel log: {_GO_ON} until it does",
    DriverState.FAILED: "every GPU answers with an error ({error}); a container that has lost its devices must be made "
    f"anew; {_GO_ON}",
    DriverState.RELEASED: "the GPUs are let go for an operator: no model is loaded until they are taken back (swapd "
    "release-gpus --take-back)",
}


def state_after(error: NvmlError) -> DriverState:
    """Return the state of a driver that has answered this to something it should always answer."""
    match error:
        case LibraryAbsentError() | NoGpuError():
            return DriverState.ABSENT
        case DriverNotLoadedError():
            return DriverState.NOT_LOADED
        case MismatchError():
            return DriverState.MISMATCH
        case _:
            return DriverState.FAILED


def trouble(state: DriverState, error: NvmlError | None = None) -> str:
    """Say what is wrong and what to do; empty: nothing."""
    return _SENTENCES[state].format(error=error or "no answer")


class Errors:
    """Counts the calls that failed; filled by both threads, read by the loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = {}

    def note(self, error: NvmlError) -> None:
        """Count an error, unless it is an answer: something that a GPU does not have, or that nothing has happened."""
        if isinstance(error, NotSupportedError | NvmlTimeoutError):
            return
        if isinstance(error, InvalidArgumentError) and error.call.startswith("DeviceGetNvLink"):
            return  # a link beyond the last one
        key = (error.call, error.name)
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1

    def counts(self) -> dict[tuple[str, str], int]:
        """Return a copy, by function and name of the error."""
        with self._lock:
            return dict(self._counts)
