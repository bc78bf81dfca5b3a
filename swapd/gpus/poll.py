"""Asks every GPU once for its memory, its processes and what speaks against its health; blocks, on NVML's own thread.

Rules that hold here:

* One GPU that fails hides no other, and one call that fails takes nothing else from its GPU: what could not be read is
  ``None``.
* Whether a GPU answers at all is told by its memory, or by its PCI address where it has no memory to tell of. A lost
  one still answers many other calls, and lists no process.
* What it means is decided elsewhere: ``health`` and ``memory``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from swapd.core.ids import Bytes, Instant
from swapd.gpus.errors import LostError, NoPermissionError, NotSupportedError, NvmlError, optional
from swapd.gpus.health import Answer, Signs
from swapd.gpus.nvml import Field, Nvml
from swapd.gpus.readings import Device, GpuProcess, MemoryReading

_FIELDS = ((Field.RECOVERY_ACTION, 0), (Field.ECC_UNCORRECTABLE, 0))


@dataclass(frozen=True, slots=True)
class Questions:
    """What a poll asks beyond memory."""

    #: what speaks against the GPUs' health
    health: bool
    #: which processes are on them
    processes: bool


@dataclass(frozen=True, slots=True)
class Polled:
    """What one GPU answered."""

    signs: Signs
    #: ``None``: it has none to tell of (unified, partitioned), or did not answer
    memory: MemoryReading | None = None
    #: compute and graphics; a process may stand in it twice. ``None``: not asked, or not to be trusted
    processes: tuple[GpuProcess, ...] | None = None
    #: why it was not read
    error: NvmlError | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """What the node answered."""

    #: when the first call began
    taken: Instant
    #: GPUs the driver knows, lost ones included; an error: it did not say
    count: int | NvmlError
    #: by index of the GPU; one without a handle is not in it
    gpus: Mapping[int, Polled]


def poll(nvml: Nvml, devices: Mapping[int, Device], questions: Questions, now: Callable[[], Instant]) -> Poll:
    """Ask the driver and every GPU; ``devices`` by index of the GPU. Raises nothing."""
    taken = now()
    count: int | NvmlError
    try:
        count = nvml.count()
    except NvmlError as error:
        count = error
    return Poll(taken, count, {gpu: _polled(nvml, device, questions) for gpu, device in devices.items()})


def _polled(nvml: Nvml, device: Device, questions: Questions) -> Polled:
    try:
        memory = _memory(nvml, device)
        signs = _signs(nvml, device) if questions.health else Signs(Answer.READ)
        processes = _processes(nvml, device, memory.total_bytes) if memory and questions.processes else None
    except LostError as error:
        return Polled(Signs(Answer.LOST, str(error)), error=error)
    except NvmlError as error:
        return Polled(Signs(Answer.ERROR, str(error)), error=error)
    return Polled(signs, memory, processes)


def _memory(nvml: Nvml, device: Device) -> MemoryReading | None:
    """Read the memory; ``None`` if the GPU has none to tell of and is there all the same."""
    try:
        return nvml.memory(device)
    except (NotSupportedError, NoPermissionError):
        _ = nvml.bdf(device)
        return None


def _signs(nvml: Nvml, device: Device) -> Signs:
    rows = optional(lambda: nvml.remapped_rows(device), otherwise=None)
    values = optional(lambda: nvml.field_values(device, _FIELDS), otherwise=(None, None))
    signs = Signs(Answer.READ, recovery=values[0], uncorrectable=values[1])
    return signs if rows is None else replace(signs, remap_pending=rows.pending or rows.failed)


def _processes(nvml: Nvml, device: Device, total_bytes: Bytes) -> tuple[GpuProcess, ...] | None:
    """List the processes with either kind of context; ``None`` unless both lists could be read."""
    compute = optional(lambda: nvml.compute_processes(device, total_bytes), otherwise=None)
    graphics = optional(lambda: nvml.graphics_processes(device, total_bytes), otherwise=None)
    return None if compute is None or graphics is None else compute + graphics
