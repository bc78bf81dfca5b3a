"""Decides whether a model can be placed on this node at all, if everybody left who ever may.

Asked before anything is stopped: an infeasible load evicts nobody and its requests are refused at once.

``all_pinned`` is said where nothing but pinned models is resident; wherever pins and something else (unpinned
neighbours, too few GPUs, leaked memory) stand together, the node as it is has ``no_capacity``.
"""

from dataclasses import dataclass

from swapd.core.catalog import Footprint
from swapd.core.ids import Duration, InstanceId
from swapd.core.node import Node
from swapd.core.placement import option
from swapd.core.reasons import Rejection, State
from swapd.core.sentences import number, size
from swapd.core.state import Model


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
    need = model.spec.footprint
    if _has_room(
        node, need, {i.id: 0.0 for i in node.instances.values() if _may_leave(i.state) and not i.model.pinned}
    ):
        return None
    wants = f"{model.name} needs {number(need.gpus, 'GPU')} with {size(need.bytes_per_gpu)} each"
    if not _fits_empty(node, need):
        return Infeasible(Rejection.NO_CAPACITY, f"{wants}; this node can never hold that", None, permanent=True)
    pinned = dict.fromkeys(i.model.name for i in node.instances.values() if i.model.pinned and _may_leave(i.state))
    if not _has_room(node, need, {i.id: 0.0 for i in node.instances.values() if _may_leave(i.state)}):
        detail = f"{wants}; memory that was never released is in the way, free it or restart the node"
        return Infeasible(Rejection.NO_CAPACITY, detail, node.settings.release_timeout, permanent=False)
    detail = f"{wants}; pinned models are in the way ({', '.join(pinned)}), unpin one or use another node"
    unpinned = any(not i.model.pinned and _may_leave(i.state) for i in node.instances.values())
    reason = Rejection.NO_CAPACITY if unpinned else Rejection.ALL_PINNED
    return Infeasible(reason, detail, None, permanent=False)


def _may_leave(state: State) -> bool:
    return state is not State.LEAKED


def _fits_empty(node: Node, need: Footprint) -> bool:
    return sum(1 for gpu in node.gpus if gpu.memory_bytes >= need.bytes_per_gpu) >= need.gpus


def _has_room(node: Node, need: Footprint, leaving: dict[InstanceId, float]) -> bool:
    usable = sum(1 for gpu in node.gpus if option(gpu, need, leaving) is not None)
    return usable >= need.gpus
