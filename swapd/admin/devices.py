"""Writes what the status document says of the devices: driver, host memory, NVLink domains, each GPU; pure.

The rules for readers are those of ``status``. ``links`` and ``pcie`` of a device are lists in the order of the devices:
how many NVLinks lead to each of them, and how it is reached over PCIe; both are empty where nothing is known of either.
"""

from swapd.core.ids import gpu_indices
from swapd.core.topology import DriverState, Gpu, NodeTopology
from swapd.core.view import FreeView, GpuView, NodeView

Json = dict[str, object]


def devices_part(view: NodeView) -> Json:
    """Return the keys ``driver``, ``host_memory``, ``nvlink`` and ``devices`` of the document."""
    topology = view.topology
    return {
        "driver": _driver(topology),
        "host_memory": {"capacity_bytes": topology.host_bytes, "reserved_bytes": view.host_booked_bytes},
        "nvlink": _nvlink(view.free),
        "devices": [_device(gpu, topology.gpus[gpu.index], topology) for gpu in view.gpus],
    }


def _driver(topology: NodeTopology) -> Json:
    return {
        "state": topology.driver.value,
        "version": topology.driver_version or None,
        "trouble": topology.trouble or None,
        "expected_gpus": topology.expected or None,
        "generation": topology.generation,
        "complaints": list(topology.complaints),
    }


def _nvlink(free: FreeView) -> Json:
    return {
        "largest_free_block": free.largest_nvlink_block,
        "largest_free_block_gpus": list(gpu_indices(free.largest_nvlink_set)),
        "whole_domains": [list(gpu_indices(domain)) for domain in free.whole_domains],
        "fragmented_domains": [list(gpu_indices(domain)) for domain in free.fragmented_domains],
    }


def _device(gpu: GpuView, described: Gpu, topology: NodeTopology) -> Json:
    measured = gpu.free_bytes is not None and topology.driver is DriverState.UP  # else it was true once
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": described.name or None,
        "health": gpu.health.value,
        "health_why": described.why or None,
        "memory_bytes": gpu.memory_bytes,
        "reserved_bytes": gpu.reserved_bytes,
        "quarantined_bytes": gpu.quarantined_bytes,
        "free_bytes": gpu.free_bytes if measured else None,
        "foreign_bytes": gpu.foreign_bytes if measured else None,
        "models": list(gpu.models),
        "bdf": described.bdf or None,
        "numa": described.numa if described.numa >= 0 else None,
        "pcie_switch": described.pcie_switch or None,
        "nvlinks": described.nvlinks,
        "nvlinks_expected": described.nvlinks_expected,
        "links": list(topology.links[gpu.index]) if topology.links else [],
        "pcie": [level.name for level in topology.levels[gpu.index]] if topology.levels else [],
    }
