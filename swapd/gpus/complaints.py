"""Says in sentences what is not as it should be with the node's GPUs, and what an operator can do."""

from collections.abc import Iterator, Sequence

from swapd.core.topology import Gpu, GpuHealth
from swapd.gpus.fabric import fabric_pending
from swapd.gpus.links import Joined
from swapd.gpus.scan import Found


def complaints(
    gpus: Sequence[Gpu], found: Sequence[Found], joined: Joined, *, listed: int, expected: int
) -> tuple[str, ...]:
    """Return one sentence for each thing; ``listed`` is how many GPUs NVML knows, lost ones included."""
    said = [f"GPU {gpu.index}{_identity(gpu)}: {gpu.why}" for gpu in gpus if gpu.health is not GpuHealth.HEALTHY]
    return (*_missing(listed, expected), *said, *_uneven(joined), *_unregistered(gpus), *_unread(found))


def _identity(gpu: Gpu) -> str:
    parts = [part for part in (gpu.uuid, gpu.bdf) if part]
    return f" ({', '.join(parts)})" if parts else ""


def _missing(listed: int, expected: int) -> Iterator[str]:
    if listed < expected:
        yield (
            f"NVML lists {listed} of {expected} GPUs: look for Xid 79 in the kernel log, for a GPU that is not seated, "
            "or for one left out of the container"
        )


def _uneven(joined: Joined) -> Iterator[str]:
    for one, two, there, back in joined.uneven:
        yield (
            f"GPU {one} sees {there} NVLinks to GPU {two}, which sees {back} back; the smaller number counts: look for "
            "Xid 74 in the kernel log and reset both"
        )


def _unregistered(gpus: Sequence[Gpu]) -> Iterator[str]:
    waiting = [f"GPU {gpu.index}" for gpu in gpus if gpu.fabric is not None and fabric_pending(gpu.fabric)]
    if waiting:
        yield (
            f"fabric_not_ready: NVLink fabric registration is not complete on {', '.join(waiting)}: see that "
            "nvidia-fabricmanager runs; until then CUDA may fail with error 802"
        )


def _unread(found: Sequence[Found]) -> Iterator[str]:
    for place, one in enumerate(found):
        if one.links is not None and one.links.unread:
            yield f"GPU {place}: the state of {one.links.unread} NVLinks could not be read, they count as down"
        if one.unmeasured:
            known = "its memory is taken as configured" if one.gpu.memory_bytes else "configure its memory to use it"
            yield f"GPU {place}: {one.unmeasured}: {known}"
