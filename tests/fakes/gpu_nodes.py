"""Builds nodes with real-looking GPUs: eight H100 on NVSwitches, four of them per NUMA node."""

from dataclasses import replace
from typing import Any

from swapd.core.ids import Bytes, GpuSet
from swapd.core.topology import DriverState, Fabric, FabricHealth, FabricState, Gpu, NodeTopology, PcieLevel
from swapd.core.view import FreeView, GpuView, ModelView, NodeView
from tests.fakes.node_views import GIB, gpu_view, node_view

CAPACITY = Bytes(80 * GIB)


def gpu(index: int, **changes: Any) -> Gpu:
    fields: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-{index:08x}-1111-2222-3333-444455556666",
        "memory_bytes": CAPACITY,
        "name": "NVIDIA H100 80GB HBM3",
        "bdf": f"0000:{0x17 + 0x10 * index:02x}:00.0",
        "minor": index,
        "numa": index // 4,
        "pcie_root": f"pci0000:{0x15 + 0x10 * index:02x}",
        "pcie_switch": f"0000:{0x16 + 0x10 * (index // 2):02x}:00.0",
        "compute_capability": (9, 0),
        "measured": True,
        "switched": True,
        "nvlinks": 18,
        "nvlinks_expected": 18,
        "nvlink_mbps": 26_562,
        "fabric": Fabric(
            FabricState.COMPLETED, clique="c0ffee00-1111-2222-3333-444455556666.0", health=FabricHealth.HEALTHY
        ),
    }
    return Gpu(**(fields | changes))


def topology(*gpus: Gpu, **changes: Any) -> NodeTopology:
    """Describe GPUs of which every two that have links are joined by them."""
    chosen = gpus or tuple(map(gpu, range(8)))
    fields: dict[str, Any] = {
        "gpus": chosen,
        "links": tuple(tuple(0 if a is b else min(a.nvlinks, b.nvlinks) for b in chosen) for a in chosen),
        "levels": tuple(tuple(_level(a, b) for b in chosen) for a in chosen),
        "host_bytes": Bytes(1024 * GIB),
        "expected": len(chosen),
        "driver": DriverState.UP,
        "driver_version": "570.86.15",
        "generation": 3,
    }
    return NodeTopology(**(fields | changes))


def gpu_node(*models: ModelView, gpus: dict[int, dict[str, Any]] | None = None, **changes: Any) -> NodeView:
    """Build the node; ``gpus`` changes single GPUs of the view, and ``topology`` replaces the eight H100.

    All GPUs are one NVLink domain, and the upper half of them is free, unless told otherwise.
    """
    shape: NodeTopology = changes.get("topology") or topology()
    everything, lower = shape.all_gpus, (1 << len(shape.gpus) // 2) - 1
    free = GpuSet(everything ^ lower)
    fields: dict[str, Any] = {
        "topology": shape,
        "gpus": tuple(_view(one, (gpus or {}).get(one.index, {})) for one in shape.gpus),
        "free": FreeView(free, free.bit_count(), free, free, (), (everything,)),
    }
    return node_view(*models, **(fields | changes))


def sick(shape: NodeTopology, **changes: Any) -> NodeTopology:
    """Return the topology as it is while the driver cannot be asked."""
    return replace(shape, **({"driver": DriverState.FAILED, "trouble": "NVML answers no call"} | changes))


def _view(one: Gpu, changes: dict[str, Any]) -> GpuView:
    fields: dict[str, Any] = {
        "uuid": one.uuid,
        "memory_bytes": one.memory_bytes,
        "health": one.health,
        "free_bytes": one.memory_bytes if one.measured else None,
    }
    return gpu_view(one.index, **(fields | changes))


def _level(a: Gpu, b: Gpu) -> PcieLevel:
    if a.pcie_switch == b.pcie_switch:
        return PcieLevel.PIX
    return PcieLevel.NODE if a.numa == b.numa else PcieLevel.SYS
