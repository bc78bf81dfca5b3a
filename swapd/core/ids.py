"""Names the core's identifiers and units: time is integer nanoseconds, memory integer bytes, a GPU set a bit mask."""

from collections.abc import Iterator
from typing import Final, NewType

ModelName = NewType("ModelName", str)
RequestId = NewType("RequestId", int)
"""One request (or one operator's load) on this node; never reused within a run."""
InstanceId = NewType("InstanceId", int)
"""One load of one model; never reused, also not across restarts (the shell seeds the first one)."""
Instant = NewType("Instant", int)
"""Nanoseconds on a monotonic clock."""
Duration = NewType("Duration", int)
"""Nanoseconds."""
Bytes = NewType("Bytes", int)
GpuSet = NewType("GpuSet", int)
"""GPU i of the node is bit i."""

NO_GPUS: Final = GpuSet(0)
MILLISECOND: Final = Duration(1_000_000)
SECOND: Final = Duration(1_000_000_000)


def seconds(value: float) -> Duration:
    """Return a duration in nanoseconds for a number of seconds."""
    return Duration(round(value * SECOND))


def gpu_indices(gpus: GpuSet) -> Iterator[int]:
    """Yield the indices in a GPU set, lowest first."""
    rest = int(gpus)
    while rest:
        low = rest & -rest
        yield low.bit_length() - 1
        rest ^= low
