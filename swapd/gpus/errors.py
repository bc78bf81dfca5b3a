"""Names what can go wrong between swapd and NVML, as few classes as there are different things to do about it.

Each error keeps NVML's own number and name for metrics and logs. Whoever asks NVML catches ``NvmlError`` and nothing
else: the facade lets no exception of the bindings through.
"""

from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class NvmlError(Exception):
    """A call that failed for a reason without a class of its own below."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"NVML answered {name} ({code}) to {call}")
        #: the function without its ``nvml`` prefix
        self.call: Final = call
        #: NVML's number (``nvmlReturn_t``)
        self.code: Final = code
        #: NVML's name in the bindings' spelling, ``GpuIsLost``
        self.name: Final = name


class LostError(NvmlError):
    """The GPU has left the bus, or answers nothing before it is reset."""


class NotSupportedError(NvmlError):
    """This GPU, driver or platform does not have it: an answer, not a fault."""


class OutdatedError(NotSupportedError):
    """The driver is older than the bindings: it lacks the function, or this version of its struct."""


class InvalidArgumentError(NvmlError):
    """A link beyond the last one, or a handle from before the last ``init``."""


class NoPermissionError(NvmlError):
    """Not allowed; also the memory of a GPU that is partitioned."""


class UnknownError(NvmlError):
    """The driver does not say; from every GPU at once: the container has lost its devices."""


class NvmlTimeoutError(NvmlError):
    """The driver gave up waiting."""


class ImplausibleError(NvmlError):
    """The call succeeded with an answer that cannot be true, so none of it is used."""


class LibraryAbsentError(NvmlError):
    """There is no ``libnvidia-ml.so.1``."""


class NoGpuError(NvmlError):
    """Library and driver are there and know of no GPU."""


class UninitializedError(NvmlError):
    """There was no ``init``, or it is shut down."""


class DriverNotLoadedError(NvmlError):
    """The library is there, the kernel driver is not."""


class MismatchError(NvmlError):
    """Library, kernel driver and bindings are not of one version."""


class DriverError(Exception):
    """The driver cannot be asked, whatever the GPUs are; none of them is known to be lost for that."""

    def __init__(self, error: NvmlError) -> None:
        super().__init__(str(error))
        #: what NVML answered, to the question it should always answer or to each GPU's
        self.error: Final = error


BY_CODE: Final[dict[int, type[NvmlError]]] = {
    1: UninitializedError,
    2: InvalidArgumentError,
    3: NotSupportedError,
    4: NoPermissionError,
    9: DriverNotLoadedError,
    10: NvmlTimeoutError,
    12: LibraryAbsentError,
    13: OutdatedError,
    15: LostError,
    16: LostError,
    18: MismatchError,
    25: OutdatedError,
    28: NoGpuError,
    999: UnknownError,
}
"""The class of an ``nvmlReturn_t``; those not listed are plain ``NvmlError``."""


def optional(call: Callable[[], T], *, otherwise: U) -> T | U:
    """Return what a call answers, or what stands for its absence; ``LostError`` alone goes through."""
    try:
        return call()
    except LostError:
        raise
    except NvmlError:
        return otherwise
