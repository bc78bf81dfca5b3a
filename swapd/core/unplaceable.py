"""Says why a model cannot be placed on a node, even when it is empty; ``swapd check`` and refusals use these sentences.

Rules that hold here:

* Causes are looked for in a fixed order, and the first one found is told.
* A GPU that was never readable may prove to be anything, and a lost or failed one may come back: what depends on them
  is passing. Everything else is for ever, that is, until the configuration or the devices change.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from swapd.core.boards import Boards, boards_for
from swapd.core.catalog import ModelSpec, NvlinkUse, SchedulingSettings
from swapd.core.ids import Bytes
from swapd.core.sentences import gpu_condition, gpu_list, number, size
from swapd.core.state import Need
from swapd.core.suitable import is_able, is_named, is_unregistered, mask
from swapd.core.topology import Gpu, NodeTopology


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a model cannot be placed on a node that is empty."""

    #: half a sentence
    detail: str
    #: it may go away while the daemon runs
    passing: bool = False


def why_unplaceable(topology: NodeTopology, spec: ModelSpec, settings: SchedulingSettings) -> str | None:
    """Return one sentence that says why a model cannot be placed on this node when it is empty; ``None``: it can."""
    need = Need.of(spec)
    boards = boards_for(topology, (need.gpus,))
    found = obstacle(topology, boards, need, require_fabric=settings.require_fabric)
    return None if found is None else f"{wanted(spec, need)}; {found.detail}"


def wanted(spec: ModelSpec, need: Need) -> str:
    """Return what a model needs, as the first half of a sentence."""
    configured = spec.footprint.bytes_per_gpu
    origin = "" if need.bytes_per_gpu == configured else f" (as measured; configured are {size(configured)})"
    return f"{spec.name} needs {number(need.gpus, 'GPU')} with {size(need.bytes_per_gpu)} each{origin}"


def obstacle(topology: NodeTopology, boards: Boards, need: Need, *, require_fabric: bool) -> Obstacle | None:
    """Return the first thing that stands in the way of a model on an empty node; ``None``: nothing does."""
    if not topology.gpus:
        return Obstacle("this node has no GPU", passing=True)
    unknown = [gpu for gpu in topology.gpus if not gpu.placeable and not gpu.memory_bytes]
    known = [gpu for gpu in topology.gpus if gpu.placeable or gpu.memory_bytes]
    fitting = [gpu for gpu in known if _fits(gpu, need)]
    return (
        _of_kind(known, need, len(unknown))
        or _of_size(topology, fitting, need, len(unknown))
        or _in_one_set(boards, fitting, need, len(unknown))
        or _now(boards, fitting, unknown, need, require_fabric=require_fabric)
    )


def _of_kind(known: Sequence[Gpu], need: Need, unknown: int) -> Obstacle | None:
    """Look for enough GPUs of the product and the capability that are asked for."""
    named = [gpu for gpu in known if is_named(gpu, need)]
    if len(named) + unknown < need.gpus and need.gpu_name:
        there = ", ".join(dict.fromkeys(gpu.name or "one without a name" for gpu in known))
        matches = "match" if len(named) > 1 else "matches"
        return Obstacle(f"{_only(named)} {matches} {need.gpu_name!r} (there are: {there})")
    able = [gpu for gpu in named if is_able(gpu, need)]
    if len(able) + unknown < need.gpus and need.min_compute_capability is not None:
        there = ", ".join(dict.fromkeys(_version(gpu.compute_capability) for gpu in named))
        has = "have" if len(able) > 1 else "has"
        least = _version(need.min_compute_capability)
        return Obstacle(f"{_only(able)} {has} compute capability {least} or more (there are: {there})")
    return None


def _of_size(topology: NodeTopology, fitting: Sequence[Gpu], need: Need, unknown: int) -> Obstacle | None:
    """Look for enough of them with enough memory, and for enough host memory."""
    if len(fitting) + unknown < need.gpus:
        return Obstacle(f"this node can never hold that: {_too_small(topology, fitting, need)}")
    most = topology.host_bytes
    if most is not None and need.host_bytes > most:
        return Obstacle(f"it also needs {size(need.host_bytes)} of host memory, and models may take {size(most)} here")
    return None


def _too_small(topology: NodeTopology, fitting: Sequence[Gpu], need: Need) -> str:
    if len(topology.gpus) < need.gpus:
        return f"it has {number(len(topology.gpus), 'GPU')}"
    if fitting:
        return f"{_only(fitting)} {'have' if len(fitting) > 1 else 'has'} so much memory"
    suited = [gpu.memory_bytes for gpu in topology.gpus if is_named(gpu, need) and is_able(gpu, need)]
    return f"the largest GPU for it has {size(Bytes(max(suited)))}"


def _in_one_set(boards: Boards, fitting: Sequence[Gpu], need: Need, unknown: int) -> Obstacle | None:
    """Look for a set that may be formed of them, whatever their health."""
    if boards.choose(need.gpus, mask(fitting), use=need.nvlink):
        return None
    counts: dict[str, int] = {}
    for gpu in fitting:
        counts[gpu.name] = counts.get(gpu.name, 0) + 1
    most = max(counts.values(), default=0)
    if most + unknown < need.gpus:
        there = " and ".join(f"{count} × {name or 'one without a name'}" for name, count in counts.items())
        return Obstacle(f"its GPUs must be of one product, and there are {there}")
    if most < need.gpus:
        return None
    passing = bool(unknown) or not all(gpu.placeable for gpu in fitting)
    if need.nvlink is NvlinkUse.REQUIRED:
        return Obstacle(f"no NVLink ring passes through {need.gpus} of the GPUs here", passing=passing)
    return Obstacle(f"no {need.gpus} of the GPUs here are close enough to each other", passing=passing)


def _now(
    boards: Boards, fitting: Sequence[Gpu], unknown: Sequence[Gpu], need: Need, *, require_fabric: bool
) -> Obstacle | None:
    """Look for a set of GPUs that may be used at present."""
    sound = mask(gpu for gpu in fitting if gpu.placeable)
    if not boards.choose(need.gpus, sound, use=need.nvlink):
        bad = sorted([*unknown, *(gpu for gpu in fitting if not gpu.placeable)], key=_index)
        return Obstacle(", ".join(gpu_condition(gpu) for gpu in bad), passing=True)
    if not require_fabric or need.gpus == 1:
        return None
    unregistered = mask(gpu for gpu in fitting if gpu.placeable and is_unregistered(gpu))
    if boards.choose(need.gpus, sound & ~unregistered, use=need.nvlink):
        return None
    where = gpu_list(unregistered)
    return Obstacle(f"the NVLink fabric is not registered on {where}, and require_fabric is set", passing=True)


def _fits(gpu: Gpu, need: Need) -> bool:
    return is_named(gpu, need) and is_able(gpu, need) and gpu.memory_bytes >= need.bytes_per_gpu


def _only(found: Sequence[Gpu]) -> str:
    return f"only {number(len(found), 'GPU')} here" if found else "no GPU here"


def _version(capability: tuple[int, int] | None) -> str:
    return "one that is not known" if capability is None else f"{capability[0]}.{capability[1]}"


def _index(gpu: Gpu) -> int:
    return gpu.index
