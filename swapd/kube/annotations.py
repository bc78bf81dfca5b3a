"""Writes the facts of the node as the JSON objects of its annotations; pure. One form of several that may be.

========== ============ ==============================================================================================
key        changes      holds
========== ============ ==============================================================================================
topology   rarely       the GPUs in the order that every mask means, and how they are joined
free       per placement what the node could still take without evicting anybody
models     per swap     who is here, who is coming, who does not pay
state      rarely       ready, draining or degraded, and why
========== ============ ==============================================================================================

Rules that hold here:

* Each object carries the version ``v`` of its form; objects with masks also the ``generation`` of the topology that
  the masks refer to, because GPUs may have another order after a reboot.
* A mask is a string of hexadecimal digits after ``0x`` (JSON numbers are exact only up to 53 bits); bit i is GPU i of
  the list in ``topology``.
* Memory is in bytes. What is not known is left out; a NUMA node that is not known is -1.
* ``peers`` holds the masks of a GPU's NVLink peers by the number of links to each of them.
* ``lost`` means that nothing can be placed there: off the bus, unreadable or broken.
* ``bytes`` of a model are those on each of its GPUs, in ``cached`` those of its weights on the disk. A model can be
  resident and cached; of one whose weights are fetched, an absent copy means that it has to be fetched first.
* No timestamps, no counters: equal states give equal objects. Lists are in the order of GPUs or names.
"""

from collections.abc import Sequence
from typing import Final

from swapd.core.ids import GpuSet
from swapd.core.topology import Fabric, Gpu, GpuHealth, NodeTopology
from swapd.core.view import InstanceView, ModelView, NodeView
from swapd.kube import facts

Json = dict[str, object]

VERSION: Final = 1


def annotations(view: NodeView, *, not_ready: Sequence[str]) -> dict[str, Json]:
    """Return the objects by key, without the domain.

    ``not_ready`` says why the node takes no requests, one sentence each; ``()``: it takes them.
    """
    return {
        "topology": _topology(view.topology),
        "free": _free(view),
        "models": _models(view),
        "state": _state(view, not_ready),
    }


def _topology(topology: NodeTopology) -> Json:
    driver: Json = {"driver": topology.driver_version} if topology.driver_version else {}
    return {
        "v": VERSION,
        "generation": topology.generation,
        **driver,
        "gpus": [_gpu(gpu, topology) for gpu in topology.gpus],
        "degraded": [gpu.index for gpu in topology.gpus if gpu.health is GpuHealth.DEGRADED],
    }


def _gpu(gpu: Gpu, topology: NodeTopology) -> Json:
    peers = _peers(gpu.index, topology)
    described: Json = {
        "uuid": gpu.uuid,
        "bdf": gpu.bdf,
        "model": gpu.name,
        "bytes": int(gpu.memory_bytes) or None,
        "numa": gpu.numa,
        "pcie_root": gpu.pcie_root,
        "pcie_switch": gpu.pcie_switch,
        "nvlink": ("switch" if gpu.switched else "direct") if peers else None,
        "peers": peers or None,
        "fabric": None if gpu.fabric is None else _fabric(gpu.fabric),
    }
    return _known(described)


def _fabric(fabric: Fabric) -> Json:
    return _known({"clique": fabric.clique, "state": fabric.state.value, "health": fabric.health.value})


def _peers(index: int, topology: NodeTopology) -> dict[str, str]:
    """Return the masks of a GPU's peers by the number of links to each of them, fewest first."""
    masks: dict[int, int] = {}
    for other, count in enumerate(topology.links[index] if topology.links else ()):
        if count and other != index:
            masks[count] = masks.get(count, 0) | 1 << other
    return {str(count): _mask(GpuSet(masks[count])) for count in sorted(masks)}


def _free(view: NodeView) -> Json:
    free = facts.free(view)
    return {
        "v": VERSION,
        "generation": view.topology.generation,
        "free": _mask(free.gpus),
        "lost": _mask(facts.of_health(view, GpuHealth.LOST, GpuHealth.FAILED)),
        "mig": _mask(facts.of_health(view, GpuHealth.MIG)),
        "largest_nvlink_block": free.largest_nvlink_block,
        "largest_nvlink_mask": _mask(free.largest_nvlink_set),
        "largest_clique": free.largest_clique.bit_count(),
        "largest_clique_mask": _mask(free.largest_clique),
        "free_bytes": list(facts.free_bytes(view)),
    }


def _models(view: NodeView) -> Json:
    by_name = {model.model: model for model in view.models}
    return {
        "v": VERSION,
        "generation": view.topology.generation,
        "resident": [_instance(one, by_name.get(one.model)) for one in facts.resident(view)],
        "loading": [_instance(one, by_name.get(one.model)) for one in facts.loading(view)],
        "cached": [
            {"name": model.model, "bytes": model.cached_bytes}
            for model in view.models
            if model.configured and model.cached_bytes is not None
        ],
        "thrashing": list(facts.thrashing(view)),
    }


def _instance(instance: InstanceView, model: ModelView | None) -> Json:
    pinned: Json = {"pinned": True} if model is not None and model.pinned else {}
    return {"name": instance.model, "gpus": _mask(instance.gpus), "bytes": instance.bytes_per_gpu} | pinned


def _state(view: NodeView, not_ready: Sequence[str]) -> Json:
    condition, reasons = facts.condition(view, not_ready)
    return {"v": VERSION, "state": condition.value, "ready": not not_ready, "reasons": list(reasons)}


def _mask(gpus: GpuSet) -> str:
    return f"{gpus:#x}"


def _known(document: Json) -> Json:
    """Leave out what is not known, or does not exist."""
    return {key: value for key, value in document.items() if value not in (None, "")}
