"""Decides which sets of GPUs a model may take, and what would have to leave each GPU first.

Rules that hold here:

* Sets are tried best topology first, then lowest mask, and the first of equals wins. Virtual devices have no links, so
  every set of the right size is legal and the order is by mask alone.
* A model on several GPUs that is indifferent to NVLink takes the worst sets first, and leaves the good ones to others.
* An exclusive model wants its GPUs empty. A sharing one wants bytes, and neighbours that share as well.
* What others than our instances hold on a GPU is not there for anybody, and no eviction frees it.
* Memory of an instance that is unloading comes back by itself: it is nobody's victim, but the newcomer waits for it.
  So it does for what was released and is still shown as taken.
* Leaked memory does not come back, and nothing that is not a candidate is ever asked to leave.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from swapd.core.boards import Boards
from swapd.core.catalog import NvlinkUse
from swapd.core.ids import GpuSet, InstanceId
from swapd.core.node import GpuRecord, Node
from swapd.core.reasons import State
from swapd.core.state import Instance, Need
from swapd.core.suitable import suitable


@lru_cache(maxsize=64)
def _ranked_sets(boards: Boards, size: int, use: NvlinkUse) -> tuple[tuple[GpuSet, int], ...]:
    ranked = boards.sets(size)
    if size == 1:
        return ranked
    if use is NvlinkUse.IGNORE:
        return tuple(sorted(((gpus, -rank) for gpus, rank in ranked), key=lambda found: (found[1], found[0])))
    if use is NvlinkUse.REQUIRED:
        rings: dict[int, bool] = {}
        for gpus, rank in ranked:
            if rank not in rings:
                rings[rank] = boards.ring(gpus) > 0
        return tuple((gpus, rank) for gpus, rank in ranked if rings[rank])
    return ranked


def legal_sets(boards: Boards, need: Need) -> tuple[tuple[GpuSet, int], ...]:
    """Return the sets of GPUs that are considered for a need, the most wanted first, each with its class."""
    return _ranked_sets(boards, need.gpus, need.nvlink)


def suited(node: Node, need: Need) -> GpuSet:
    """Return the GPUs that suit a need by their nature and health, whoever is on them."""
    asks = need.gpu_name, need.min_compute_capability, need.gpus > 1
    known = node.suited.get(asks)
    if known is None:
        known = suitable(node.topology, need, require_fabric=node.settings.require_fabric)
        node.suited[asks] = known
    return known


@dataclass(slots=True)
class GpuOption:
    """What taking one GPU would mean for a newcomer."""

    #: candidates that must leave, whatever else happens
    victims: tuple[Instance, ...] = ()
    #: sharing candidates of which some must leave …
    sharers: tuple[Instance, ...] = ()
    #: … until this many bytes are free
    missing_bytes: int = 0
    #: somebody is unloading here already, or what was released is still shown as taken and is needed
    waits: bool = False

    @property
    def clear(self) -> bool:
        """The newcomer could start at once."""
        return not (self.victims or self.missing_bytes or self.waits)


def option(gpu: GpuRecord, need: Need, candidates: Mapping[InstanceId, float]) -> GpuOption | None:
    """Return what must leave ``gpu`` for a model with this need, or ``None`` if it cannot be had.

    Of the need it depends on nothing but the bytes and whether it shares: see ``eviction.Known``.
    """
    free = gpu.memory_bytes - gpu.foreign_bytes - need.bytes_per_gpu
    if free < 0:
        return None
    late = 0 if gpu.lingering_until is None else gpu.lingering_bytes
    found = GpuOption(waits=free < late)
    if not gpu.instances:
        return found
    exclusive = need.exclusive
    evictable = 0
    for resident in gpu.instances.values():
        if resident.state is State.UNLOADING:
            found.waits = True
            continue
        stays = resident.id not in candidates
        if exclusive or resident.exclusive:
            if stays:
                return None
            found.victims += (resident,)
            continue
        charge = resident.charge(gpu.index) if resident.leaked else resident.bytes_per_gpu
        free -= charge
        if not stays:
            evictable += charge
            found.sharers += (resident,)
    if free + evictable < 0:
        return None
    found.waits |= free < late
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


def holds(gpus: list[GpuRecord], instance: Instance) -> bool:
    """Say whether the room promised to an instance is still there once all who are unloading are gone.

    It is not where memory has leaked, where a neighbour proved to take more than was booked for it, or where a GPU
    became smaller; of two who do not fit together any more, the one who booked first keeps its place.
    """
    for gpu in gpus:
        others = [other for other in gpu.instances.values() if _is_before(other, instance)]
        if any(instance.exclusive or other.exclusive for other in others):
            return False
        if instance.bytes_per_gpu + sum(other.charge(gpu.index) for other in others) > gpu.memory_bytes:
            return False
    return True


def _is_before(other: Instance, instance: Instance) -> bool:
    if other is instance or other.state is State.UNLOADING:
        return False
    return other.state is not State.RESERVED or other.id < instance.id
