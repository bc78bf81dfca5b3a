"""What the status document says of the devices."""

import json
from dataclasses import replace

from swapd.admin.status import status_document
from swapd.aio.turns import at_once
from swapd.core.ids import Bytes, GpuSet, ModelName
from swapd.core.topology import GpuHealth
from swapd.core.view import FreeView, NodeView
from tests.fakes.control import extras
from tests.fakes.gpu_nodes import CAPACITY, gpu, gpu_node, sick, topology
from tests.fakes.node_views import GIB, node_view

Json = dict[str, object]


def document(view: NodeView) -> Json:
    """Build the document and send it through JSON, as a reader gets it."""
    made = at_once(status_document(view, extras()))
    read: Json = json.loads(json.dumps(made))
    assert read == made
    return read


def test_a_gpu_is_told_with_memory_health_and_neighbours() -> None:
    worn = gpu(1, health=GpuHealth.DEGRADED, nvlinks=6, why="6 of 18 links")
    memory = {
        "reserved_bytes": Bytes(20 * GIB),
        "quarantined_bytes": Bytes(GIB),
        "free_bytes": Bytes(50 * GIB),
        "foreign_bytes": Bytes(3 * GIB),
        "models": (ModelName("m01"),),
    }
    view = gpu_node(topology=topology(gpu(0), worn, gpu(2)), gpus={1: memory})
    assert document(view)["devices"][1] == {  # type: ignore[index]  # a list
        "index": 1,
        "uuid": "GPU-00000001-1111-2222-3333-444455556666",
        "name": "NVIDIA H100 80GB HBM3",
        "health": "degraded",
        "health_why": "6 of 18 links",
        "memory_bytes": CAPACITY,
        "reserved_bytes": 20 * GIB,
        "quarantined_bytes": GIB,
        "free_bytes": 50 * GIB,
        "foreign_bytes": 3 * GIB,
        "models": ["m01"],
        "bdf": "0000:27:00.0",
        "numa": 0,
        "pcie_switch": "0000:16:00.0",
        "nvlinks": 6,
        "nvlinks_expected": 18,
        "links": [6, 0, 6],
        "pcie": ["PIX", "PIX", "NODE"],
    }


def test_a_virtual_device_says_of_nothing_that_it_is_zero_because_it_is_unknown() -> None:
    shown = document(node_view())
    device = shown["devices"][0]  # type: ignore[index]  # a list
    unknown = {key: value for key, value in device.items() if value in (None, [])}
    assert list(unknown) == [
        "name", "health_why", "free_bytes", "foreign_bytes", "models", "bdf", "numa", "pcie_switch", "links", "pcie",
    ]  # fmt: skip
    assert (device["uuid"], device["memory_bytes"], device["health"]) == ("virtual-0", 2 * GIB, "healthy")
    assert shown["driver"] == {
        "state": "virtual",
        "version": None,
        "trouble": None,
        "expected_gpus": None,
        "generation": 0,
        "complaints": [],
    }
    assert shown["host_memory"] == {"capacity_bytes": None, "reserved_bytes": 0}


def test_the_drivers_trouble_and_the_nodes_complaints_are_told() -> None:
    shape = sick(topology(expected=8, complaints=("7 of 8 GPUs are here",)), trouble="NVML answers no call")
    assert document(gpu_node(topology=shape))["driver"] == {
        "state": "failed",
        "version": "570.86.15",
        "trouble": "NVML answers no call",
        "expected_gpus": 8,
        "generation": 3,
        "complaints": ["7 of 8 GPUs are here"],
    }


def test_memory_that_was_read_before_the_driver_failed_is_not_told_as_if_it_were_true() -> None:
    shown = document(gpu_node(topology=sick(topology())))["devices"]
    assert {(one["free_bytes"], one["foreign_bytes"]) for one in shown} == {(None, None)}  # type: ignore[attr-defined]


def test_nvlink_domains_are_told_as_lists_of_gpus() -> None:
    free = FreeView(GpuSet(0b1011), 2, GpuSet(0b11), GpuSet(0b11), (GpuSet(0b11),), (GpuSet(0b1100),))
    assert document(gpu_node(free=free))["nvlink"] == {
        "largest_free_block": 2,
        "largest_free_block_gpus": [0, 1],
        "whole_domains": [[0, 1]],
        "fragmented_domains": [[2, 3]],
    }


def test_host_memory_is_told_where_it_is_accounted() -> None:
    shown = document(gpu_node(host_booked_bytes=Bytes(GIB)))
    assert shown["host_memory"] == {"capacity_bytes": 1024 * GIB, "reserved_bytes": GIB}


def test_a_topology_whose_levels_are_unknown_still_tells_its_links() -> None:
    shape = replace(topology(gpu(0), gpu(1)), levels=())
    shown = document(gpu_node(topology=shape))["devices"]
    assert [(one["links"], one["pcie"]) for one in shown] == [([0, 18], []), ([18, 0], [])]  # type: ignore[attr-defined]
