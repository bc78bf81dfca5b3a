"""Decides which GPUs suit a model by their nature and health.

Rules that hold here:

* Nothing but the topology and the model counts: who is on the GPUs, and what others hold there, is not known here.
* What is not known is no match: a GPU that does not tell its product or its compute capability suits no model that
  asks for one.
"""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from swapd.core.ids import GpuSet
from swapd.core.state import Need
from swapd.core.topology import FabricState, Gpu, NodeTopology


def suitable(topology: NodeTopology, need: Need, *, require_fabric: bool) -> GpuSet:
    """Return the GPUs that a model with this need may be placed on, however much memory they have."""
    fabric = require_fabric and need.gpus > 1
    return mask(
        gpu
        for gpu in topology.gpus
        if gpu.placeable and is_named(gpu, need) and is_able(gpu, need) and not (fabric and is_unregistered(gpu))
    )


def is_named(gpu: Gpu, need: Need) -> bool:
    """Say whether the product name of a GPU matches the pattern, in either case of letters."""
    return not need.gpu_name or fnmatchcase(gpu.name.lower(), need.gpu_name.lower())


def is_able(gpu: Gpu, need: Need) -> bool:
    """Say whether a GPU has the compute capability."""
    least, able = need.min_compute_capability, gpu.compute_capability
    return least is None or (able is not None and able >= least)


def is_unregistered(gpu: Gpu) -> bool:
    """Say whether a GPU has an NVLink fabric that it is not registered with, or not yet."""
    return gpu.fabric is not None and gpu.fabric.state in (FabricState.NOT_STARTED, FabricState.IN_PROGRESS)


def mask(gpus: Iterable[Gpu]) -> GpuSet:
    """Return the set of these GPUs."""
    return GpuSet(sum(1 << gpu.index for gpu in gpus))
