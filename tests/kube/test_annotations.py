"""What a placer is told of the node: complete, compact, and equal for equal states."""

import json
from dataclasses import replace
from typing import Any

import pytest

from swapd.core.ids import Bytes, GpuSet, ModelName
from swapd.core.reasons import State, Verdict
from swapd.core.topology import DriverState, Fabric, FabricHealth, FabricState, GpuHealth
from swapd.core.view import FreeView, NodeView
from swapd.kube.annotations import annotations
from tests.fakes.gpu_nodes import CAPACITY, gpu, gpu_node, sick, topology
from tests.fakes.node_views import GIB, at, instance_view, model_view, node_view


def written(view: NodeView, *not_ready: str) -> dict[str, dict[str, Any]]:
    """Encode a node and send it through JSON, as a reader gets it."""
    made = annotations(view, not_ready=not_ready)
    read: dict[str, dict[str, Any]] = json.loads(json.dumps(made))
    assert read == made
    return read


def compact(view: NodeView) -> int:
    return sum(len(key) + len(json.dumps(value, separators=(",", ":"))) for key, value in written(view).items())


# ── topology ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_gpu_is_told_with_its_place_in_pcie_numa_and_nvlink() -> None:
    shown = written(gpu_node())["topology"]
    assert (shown["v"], shown["generation"], shown["driver"], shown["degraded"]) == (1, 3, "570.86.15", [])
    assert shown["gpus"][5] == {
        "uuid": "GPU-00000005-1111-2222-3333-444455556666",
        "bdf": "0000:67:00.0",
        "model": "NVIDIA H100 80GB HBM3",
        "bytes": CAPACITY,
        "numa": 1,
        "pcie_root": "pci0000:65",
        "pcie_switch": "0000:36:00.0",
        "nvlink": "switch",
        "peers": {"18": "0xdf"},
        "fabric": {"clique": "c0ffee00-1111-2222-3333-444455556666.0", "state": "completed", "health": "healthy"},
    }


def test_peers_are_grouped_by_the_number_of_links_to_them() -> None:
    links = ((0, 2, 1, 1), (2, 0, 0, 1), (1, 0, 0, 2), (1, 1, 2, 0))
    shape = topology(*(gpu(i, switched=False) for i in range(4)), links=links)
    shown = written(gpu_node(topology=shape))["topology"]["gpus"]
    assert [one["peers"] for one in shown] == [
        {"1": "0xc", "2": "0x2"},
        {"1": "0x8", "2": "0x1"},
        {"1": "0x1", "2": "0x8"},
        {"1": "0x3", "2": "0x4"},
    ]
    assert {one["nvlink"] for one in shown} == {"direct"}


def test_what_is_not_known_is_left_out_and_never_zero() -> None:
    bare = gpu(1, uuid="", memory_bytes=Bytes(0), name="", bdf="", numa=-1, pcie_root="", pcie_switch="", nvlinks=0,
               fabric=None, health=GpuHealth.LOST)  # fmt: skip
    shown = written(gpu_node(topology=topology(gpu(0, nvlinks=0, fabric=None), bare, driver_version="")))["topology"]
    assert shown["gpus"][1] == {"numa": -1}
    assert "driver" not in shown
    assert {"nvlink", "peers", "fabric"} & shown["gpus"][0].keys() == set()


def test_a_fabric_without_a_clique_is_told_with_its_state() -> None:
    waiting = Fabric(FabricState.IN_PROGRESS, health=FabricHealth.UNSUPPORTED)
    shown = written(gpu_node(topology=topology(gpu(0, fabric=waiting))))["topology"]
    assert shown["gpus"][0]["fabric"] == {"state": "in_progress", "health": "unsupported"}


def test_degraded_gpus_are_listed() -> None:
    healths = {2: GpuHealth.DEGRADED, 3: GpuHealth.LOST, 5: GpuHealth.DEGRADED}
    shape = topology(*(gpu(i, health=healths.get(i, GpuHealth.HEALTHY)) for i in range(8)))
    assert written(gpu_node(topology=shape))["topology"]["degraded"] == [2, 5]


def test_virtual_devices_are_told_without_what_they_do_not_have() -> None:
    shown = written(node_view())["topology"]
    assert shown["gpus"] == [{"uuid": f"virtual-{i}", "bytes": 2 * GIB, "numa": -1} for i in range(2)]


# ── free ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_masks_refer_to_the_generation_of_the_topology() -> None:
    healths = {1: GpuHealth.LOST, 2: GpuHealth.FAILED, 3: GpuHealth.MIG, 4: GpuHealth.DEGRADED}
    shape = topology(*(gpu(i, health=healths.get(i, GpuHealth.HEALTHY)) for i in range(8)), generation=17)
    free = FreeView(GpuSet(0xF0), 2, GpuSet(0x30), GpuSet(0x70), (), (GpuSet(0xFF),))
    shown = written(gpu_node(topology=shape, free=free))
    assert shown["models"]["generation"] == shown["topology"]["generation"] == 17
    expected = {
        "v": 1,
        "generation": 17,
        "free": "0xf0",
        "lost": "0x6",
        "mig": "0x8",
        "largest_nvlink_block": 2,
        "largest_nvlink_mask": "0x30",
        "largest_clique": 3,
        "largest_clique_mask": "0x70",
    }
    assert {key: value for key, value in shown["free"].items() if key != "free_bytes"} == expected


def test_free_bytes_are_what_the_accounts_leave_of_gpus_that_take_models() -> None:
    shape = topology(gpu(0), gpu(1), gpu(2, health=GpuHealth.LOST), gpu(3, health=GpuHealth.MIG))
    gpus = {
        0: {"reserved_bytes": Bytes(30 * GIB), "foreign_bytes": Bytes(2 * GIB), "free_bytes": Bytes(79 * GIB)},
        1: {"reserved_bytes": Bytes(90 * GIB)},
    }
    assert written(gpu_node(topology=shape, gpus=gpus))["free"]["free_bytes"] == [48 * GIB, 0, 0, 0]


def test_nothing_is_free_while_the_driver_cannot_be_asked() -> None:
    shown = written(gpu_node(topology=sick(topology())))["free"]
    masks = [shown[key] for key in ("free", "largest_nvlink_mask", "largest_clique_mask")]
    assert (masks, shown["largest_nvlink_block"], shown["free_bytes"]) == (["0x0"] * 3, 0, [0] * 8)


def test_readings_that_drift_do_not_change_what_is_told() -> None:
    def told(foreign: int, free: int) -> dict[str, dict[str, Any]]:
        readings = {"foreign_bytes": Bytes(foreign), "free_bytes": Bytes(free)}
        return written(gpu_node(gpus={0: readings}))

    assert told(700 << 20, 70 * GIB) == told(755 << 20, 69 * GIB)
    assert told(700 << 20, 70 * GIB) != told(4 * GIB, 70 * GIB)


# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_models_are_told_by_what_they_do_here() -> None:
    def one(name: str, number: int, state: State, **changes: Any) -> Any:
        return model_view(name, instance=instance_view(name, number, state=state, gpus=GpuSet(1 << number)), **changes)

    view = gpu_node(
        one("m01", 7, State.READY, pinned=True),
        one("m02", 2, State.DRAINING),
        one("m03", 3, State.LOADING),
        one("m04", 4, State.RESERVED),
        one("m05", 5, State.UNLOADING, verdict=Verdict.THRASHING),
        model_view("m06", verdict=Verdict.MARGINAL, cached_bytes=Bytes(5)),
        model_view("m07", verdict=Verdict.THRASHING, configured=False, cached_bytes=Bytes(6)),
    )
    shown = written(view)["models"]
    assert shown["resident"] == [
        {"name": "m01", "gpus": "0x80", "bytes": GIB, "pinned": True},
        {"name": "m02", "gpus": "0x4", "bytes": GIB},
    ]
    assert [one["name"] for one in shown["loading"]] == ["m03", "m04"]
    assert (shown["cached"], shown["thrashing"]) == ([{"name": "m06", "bytes": 5}], ["m05"])


# ── state ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sound_node_is_ready_and_needs_no_reasons() -> None:
    assert written(gpu_node())["state"] == {"v": 1, "state": "ready", "ready": True, "reasons": []}


def test_a_draining_node_says_so_whatever_else_is_wrong() -> None:
    view = gpu_node(draining=True, topology=sick(topology()))
    shown = written(view, "the node is draining")["state"]
    assert shown == {
        "v": 1,
        "state": "draining",
        "ready": False,
        "reasons": ["the node is draining", "NVML answers no call"],
    }


@pytest.mark.parametrize("ready", [True, False])
def test_a_node_without_its_driver_is_degraded_and_may_still_take_requests(ready: bool) -> None:
    trouble = "NVML answers no call"
    shown = written(gpu_node(topology=sick(topology())), *([] if ready else [trouble]))["state"]
    assert shown == {"v": 1, "state": "degraded", "ready": ready, "reasons": [trouble]}


def test_every_broken_gpu_is_among_the_reasons_once() -> None:
    gpus = (
        gpu(0, health=GpuHealth.LOST, why="lost: GPU is lost"),
        gpu(1, health=GpuHealth.DEGRADED, why="6 of 18 links"),
        gpu(2, health=GpuHealth.FAILED),
        gpu(3, health=GpuHealth.MIG, why="partitioned"),
    )
    view = gpu_node(topology=topology(*gpus, complaints=("GPU 1 has 6 of 18 links",)))
    assert written(view)["state"]["reasons"] == [
        "GPU 1 has 6 of 18 links",
        "GPU 0: lost: GPU is lost",
        "GPU 2: failed",
    ]


def test_an_operator_who_has_the_gpus_leaves_the_node_degraded() -> None:
    shape = sick(
        topology(), driver=DriverState.RELEASED, trouble="the GPUs are released; swapd release-gpus --take-back"
    )
    assert written(gpu_node(topology=shape))["state"]["state"] == "degraded"


# ── size and rate ────────────────────────────────────────────────────────────────────────────────────────────────────


def crowded(gpus: int) -> NodeView:
    """Build a node with eight residents and forty more models in its cache, some of which thrash."""
    names = [f"organisation/some-model-name-{i:02}-instruct" for i in range(48)]
    residents = [
        model_view(name, instance=instance_view(name, i, gpus=GpuSet(1 << i)), pinned=True)
        for i, name in enumerate(names[:8])
    ]
    others = [model_view(name, cached_bytes=Bytes(160 * GIB)) for name in names[8:]]
    others[:8] = [replace(model, verdict=Verdict.THRASHING) for model in others[:8]]
    return gpu_node(*residents, *others, topology=topology(*map(gpu, range(gpus))))


def test_a_full_node_fits_into_eight_kibibytes() -> None:
    assert compact(crowded(8)) < 8 * 1024
    assert compact(crowded(16)) < 12 * 1024


def test_time_and_traffic_alone_change_nothing() -> None:
    """Ages, counts of requests and load figures are not for annotations: each change would be a write."""
    view = crowded(8)
    models = tuple(
        replace(model, in_flight=9, frequency=5.0, load_ratio=0.3, story=((at(1), "why"),)) for model in view.models
    )
    instances = tuple(replace(one, last_used=at(99), in_flight=9, since=at(50)) for one in view.instances)
    later = replace(view, at=at(10_000), models=models, instances=instances, load_fraction=0.2, stale_facts=9)
    assert written(later) == written(view)


def test_the_order_of_instances_does_not_matter() -> None:
    view = crowded(8)
    assert written(replace(view, instances=tuple(reversed(view.instances)))) == written(view)


def test_a_model_that_has_left_the_configuration_is_told_as_long_as_it_serves() -> None:
    leaving = model_view("m01", configured=False, instance=instance_view("m01", state=State.DRAINING))
    assert written(gpu_node(leaving))["models"]["resident"][0]["name"] == ModelName("m01")
