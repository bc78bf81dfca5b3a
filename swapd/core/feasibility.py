"""Decides whether a model can be placed on this node at all, if everybody left who ever may.

Asked before anything is stopped: an infeasible load evicts nobody and its requests are refused at once. While the
driver was not heard of yet nothing is infeasible; while it is in trouble everything is.

What stands in the way is looked for from the most lasting thing to the most passing one: the devices themselves, what
others hold on them, memory that leaked, pinned models. ``all_pinned`` is said where nothing but pinned models is
resident; wherever pins and something else (unpinned neighbours, too few GPUs, leaked memory) stand together, the node
as it is has ``no_capacity``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from swapd.core.devices import RETRY_AFTER, trouble
from swapd.core.host_memory import given_up
from swapd.core.ids import SECOND, Bytes, Duration, GpuSet, InstanceId
from swapd.core.node import Node
from swapd.core.placement import option, suited
from swapd.core.reasons import Rejection, State
from swapd.core.sentences import size
from swapd.core.state import Instance, Model, Need
from swapd.core.topology import NodeTopology
from swapd.core.unplaceable import obstacle, wanted

#: when to ask again for what a lost GPU or a foreign process stands in the way of
LATER: Final = Duration(60 * SECOND)


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Why a model cannot be placed."""

    reason: Rejection
    detail: str
    retry_after: Duration | None
    #: not before the configuration changes
    permanent: bool


def infeasible(node: Node, model: Model) -> Infeasible | None:
    """Return why a model cannot be placed even if all unpinned instances left; ``None``: it can."""
    if not node.may_load:
        return Infeasible(Rejection.DEGRADED, trouble(node), RETRY_AFTER, permanent=False) if node.degraded else None
    need = model.need
    if _has_room(node, need, _leaving(node, pinned=False)):
        return None
    wants = wanted(model.spec, need)
    found = obstacle(_as_read(node), node.boards, need, require_fabric=node.settings.require_fabric)
    if found is not None:
        retry_after = LATER if found.passing else None
        return _no_capacity(f"{wants}; {found.detail}", retry_after, permanent=not found.passing)
    foreign = _foreign(node, need)
    if foreign:
        return _no_capacity(f"{wants}; other processes hold {foreign}, which no eviction frees", LATER)
    everybody = _leaving(node, pinned=True)
    if not _has_room(node, need, everybody):
        detail = f"{wants}; memory that was never released is in the way, free it or restart the node"
        return _no_capacity(detail, node.settings.release_timeout)
    pinned = dict.fromkeys(i.model.name for i in _movable(node) if i.model.pinned)
    detail = f"{wants}; pinned models are in the way ({', '.join(pinned)}), unpin one or use another node"
    unpinned = any(not i.model.pinned for i in _movable(node))
    reason = Rejection.NO_CAPACITY if unpinned else Rejection.ALL_PINNED
    return Infeasible(reason, detail, None, permanent=False)


def _as_read(node: Node) -> NodeTopology:
    """Return the topology with the memory that the driver's last word gives the GPUs."""
    gpus = tuple(replace(record.gpu, memory_bytes=record.memory_bytes) for record in node.gpus)
    return replace(node.topology, gpus=gpus)


def _no_capacity(detail: str, retry_after: Duration | None, *, permanent: bool = False) -> Infeasible:
    return Infeasible(Rejection.NO_CAPACITY, detail, retry_after, permanent)


def _movable(node: Node) -> Iterator[Instance]:
    return (instance for instance in node.instances.values() if instance.state is not State.LEAKED)


def _leaving(node: Node, *, pinned: bool) -> dict[InstanceId, float]:
    return {instance.id: 0.0 for instance in _movable(node) if pinned or not instance.model.pinned}


def _has_room(node: Node, need: Need, leaving: Mapping[InstanceId, float]) -> bool:
    """Say whether a model finds GPUs and host memory when these have left."""
    usable = 0
    for gpu in node.on(suited(node, need)):
        if option(gpu, need, leaving) is not None:
            usable |= 1 << gpu.index
    if not node.boards.choose(need.gpus, usable, use=need.nvlink):
        return False
    most = node.topology.host_bytes
    if most is None or not need.host_bytes:
        return True
    stays = (i for i in node.instances.values() if i.id not in leaving and i.state is not State.UNLOADING)
    return given_up(stays) + need.host_bytes <= most


def _foreign(node: Node, need: Need) -> str:
    """Return what others hold and where, if without our instances there would still be no room; else nothing."""
    gpus = node.on(suited(node, need))
    free = [gpu for gpu in gpus if gpu.memory_bytes - gpu.foreign_bytes >= need.bytes_per_gpu]
    if node.boards.choose(need.gpus, GpuSet(sum(1 << gpu.index for gpu in free)), use=need.nvlink):
        return ""
    held = [gpu for gpu in gpus if gpu not in free and gpu.foreign_bytes]
    return ", ".join(f"{size(Bytes(gpu.foreign_bytes))} on GPU {gpu.index}" for gpu in held)
