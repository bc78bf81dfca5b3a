"""Reads a list of GPUs as people write it for CUDA, and finds the GPUs that it means.

Order matters and is kept. An entry that does not mean exactly one GPU is an error: CUDA itself would silently hide all
GPUs behind it.
"""

from collections.abc import Sequence

from swapd.core.topology import Gpu


class VisibleError(ValueError):
    """An entry means no GPU, or several; the message says which."""


def visible(text: str, gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """Return the indices of GPUs named by uuid or its beginning, ``GPU-8f…,GPU-1c…``. Raises ``VisibleError``.

    Numbers are refused: CUDA's order is not NVML's, and either changes at a reboot. So are parts of a GPU (``MIG-…``).
    """
    found = tuple(_one(entry.strip(), gpus) for entry in text.split(",") if entry.strip())
    for place, index in enumerate(found):
        if index in found[:place]:
            raise VisibleError(f"GPU {gpus[index].uuid} is named twice")
    return found


def _one(entry: str, gpus: Sequence[Gpu]) -> int:
    if not entry.startswith("GPU-"):
        raise VisibleError(f"{entry!r} is not the uuid of a whole GPU: write GPU-…")
    matches = [gpu.index for gpu in gpus if gpu.uuid.lower().startswith(entry.lower())]
    if len(matches) != 1:
        raise VisibleError(f"{entry!r} means {'several GPUs' if matches else 'no GPU of this node'}")
    return matches[0]
