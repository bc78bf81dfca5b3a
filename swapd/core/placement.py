"""Decides which sets of GPUs a model may take, and what would have to leave each GPU first.

Rules that hold here:

* Sets are tried best topology first, then lowest mask, and the first of equals wins. Virtual devices have no links,
  so every set of the right size is legal and the order is by mask alone.
* An exclusive model wants its GPUs empty. A sharing one wants bytes, and neighbours that share as well.
* Memory of an instance that is unloading comes back by itself: it is nobody's victim, but the newcomer waits for it.
* Leaked memory does not come back, and nothing that is not a candidate is ever asked to leave.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from swapd.core.catalog import Footprint
from swapd.core.ids import GpuSet, InstanceId
from swapd.core.node import GpuRecord
from swapd.core.reasons import State
from swapd.core.state import Instance


@cache
def legal_sets(gpu_count: int, size: int) -> tuple[GpuSet, ...]:
    """Return every set of ``size`` among ``gpu_count`` GPUs, the most wanted first."""
    masks = (sum(1 << index for index in chosen) for chosen in combinations(range(gpu_count), size))
    return tuple(GpuSet(mask) for mask in sorted(masks))


@dataclass(slots=True)
class GpuOption:
    """What taking one GPU would mean for a newcomer."""

    #: candidates that must leave, whatever else happens
    victims: tuple[Instance, ...] = ()
    #: sharing candidates of which some must leave …
    sharers: tuple[Instance, ...] = ()
    #: … until this many bytes are free
    missing_bytes: int = 0
    #: somebody is unloading here already
    waits: bool = False

    @property
    def clear(self) -> bool:
        """The newcomer could start at once."""
        return not (self.victims or self.missing_bytes or self.waits)


def option(gpu: GpuRecord, need: Footprint, candidates: Mapping[InstanceId, float]) -> GpuOption | None:
    """Return what must leave ``gpu`` for a model with this footprint, or ``None`` if it cannot be had."""
    if need.bytes_per_gpu > gpu.memory_bytes:
        return None
    if not gpu.instances:
        return GpuOption()
    found = GpuOption()
    free = gpu.memory_bytes - need.bytes_per_gpu
    evictable = 0
    for resident in gpu.instances.values():
        if resident.state is State.UNLOADING:
            found.waits = True
            continue
        stays = resident.id not in candidates
        if need.exclusive or resident.exclusive:
            if stays:
                return None
            found.victims += (resident,)
            continue
        free -= resident.bytes_per_gpu
        if not stays:
            evictable += resident.bytes_per_gpu
            found.sharers += (resident,)
    if free + evictable < 0:
        return None
    found.missing_bytes = max(0, -free)
    return found


def fits_now(gpus: list[GpuRecord], instance: Instance) -> bool:
    """Say whether an instance that holds a reservation may load: its GPUs are quiet and nobody is ahead of it."""
    for gpu in gpus:
        for other in gpu.instances.values():
            if other.state is State.UNLOADING or other.state is State.LOADING:
                return False
            if other.state is State.RESERVED and other.id < instance.id:
                return False
    return True
