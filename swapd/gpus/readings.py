"""Holds what NVML answers once it is converted: plain values, sizes in bytes, addresses in one spelling."""

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from swapd.core.ids import Bytes

MAX_PID: Final = 4_194_304
"""Linux gives out no greater process id (``PID_MAX_LIMIT``)."""
_BDF: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


@dataclass(frozen=True, slots=True)
class Device:
    """A handle of a GPU, valid until the next ``shutdown``; equal to another one of the same GPU."""

    #: the only identity that can still be told once the GPU is lost
    address: int
    #: what the library wants back
    raw: Any = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class EventSet:
    """A handle of a set of GPUs whose events can be waited for."""

    raw: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """A GPU's memory at one moment."""

    #: all of it, the driver's reserve included
    total_bytes: Bytes
    free_bytes: Bytes
    #: kept by the driver for itself; 0 with drivers that do not tell
    reserved_bytes: Bytes

    @property
    def capacity_bytes(self) -> Bytes:
        """What processes can use: the total less the driver's reserve."""
        return Bytes(self.total_bytes - self.reserved_bytes)


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process with a context on a GPU; its id is the host's, whatever namespace we are in."""

    pid: int
    #: ``None``: not told (containers)
    used_bytes: Bytes | None


@dataclass(frozen=True, slots=True)
class DriverEvent:
    """Something the driver told of its own accord."""

    #: compare it with the handles at hand: no call on it need succeed
    device: Device
    #: ``None``: another kind of event
    xid: int | None


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """Rows of GPU memory that were replaced by spare ones."""

    correctable: int
    uncorrectable: int
    #: a reset is needed before the replacement takes effect
    pending: bool
    #: a replacement has failed: the GPU wants to be exchanged
    failed: bool


class RemoteKind(enum.Enum):
    """What is at the other end of an NVLink."""

    GPU = enum.auto()
    NPU = enum.auto()
    SWITCH = enum.auto()
    UNKNOWN = enum.auto()


def canonical_bdf(text: str) -> str:
    """Spell a PCI address as ``0000:1a:00.0``; empty for what is none, as for ``FFFFFFFF:FF:FF.0``.

    NVML uses both eight and four digits for the domain, and both cases.
    """
    match = _BDF.fullmatch(text.strip().lower())
    if match is None:
        return ""
    domain, bus, device, function = match.groups()
    number = int(domain, 16)
    return "" if number == 0xFFFFFFFF else f"{number:04x}:{bus}:{device}.{function}"


def bits(words: Iterable[int]) -> tuple[int, ...]:
    """List the positions of the bits that are set in 64-bit words, lowest first."""
    return tuple(64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1)
