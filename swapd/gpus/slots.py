"""Gives every GPU its place on the node: a place keeps its GPU for the life of the process.

NVML's own order changes when a GPU leaves. So a GPU is found again by its uuid; one that is not found, or cannot be
read, keeps its place as a placeholder with what was last known of it; one never seen is appended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from swapd.core.topology import Gpu, GpuHealth
from swapd.gpus.scan import Found

GONE = "not among the GPUs that NVML lists: read the kernel log (Xid 79), or look what was left out of the container"


def placed(found: Sequence[Found], known: Sequence[Gpu]) -> list[Found]:
    """Return one entry per place, ordered by place; each GPU's index is its place."""
    readable: dict[str, Found] = {}
    unreadable: list[Found] = []
    for one in found:
        if not one.gpu.uuid:
            unreadable.append(one)
        else:
            readable.setdefault(one.gpu.uuid, one)
    places = [readable.pop(gpu.uuid, None) if gpu.uuid else None for gpu in known]
    nameless = [place for place, gpu in enumerate(known) if not gpu.uuid]
    for place, uuid in _named(nameless, readable):
        places[place] = readable.pop(uuid)
    for place, gpu in enumerate(known):
        if places[place] is None:
            places[place] = _missing(gpu, unreadable.pop(0) if unreadable else None)
    late = sorted([*readable.values(), *unreadable], key=lambda one: one.gpu.index)
    every = [one for one in places if one is not None] + late
    return [replace(one, gpu=replace(one.gpu, index=place)) for place, one in enumerate(every)]


def _named(nameless: Sequence[int], readable: Mapping[str, Found]) -> list[tuple[int, str]]:
    """Give new GPUs to places whose GPU was never readable: the one that NVML counts there, else the next."""
    exact = {one.gpu.index: uuid for uuid, one in readable.items() if one.gpu.index in nameless}
    others = [uuid for uuid in readable if uuid not in exact.values()]
    free = [place for place in nameless if place not in exact]
    return [*exact.items(), *zip(free, others, strict=False)]


def _missing(gpu: Gpu, unreadable: Found | None) -> Found:
    """Return the placeholder of a GPU that was not found; which of those unreadable it is cannot be told."""
    why = unreadable.gpu.why if unreadable else GONE
    return Found(replace(gpu, health=GpuHealth.LOST, why=why), error=unreadable.error if unreadable else None)
