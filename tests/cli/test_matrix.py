"""The topology on a terminal: the matrix, the GPUs, the domains; readable at every width."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from swapd.admin.status import status_document
from swapd.aio.turns import at_once
from swapd.cli.matrix import gpu_list, print_topology
from swapd.core.ids import Bytes, GpuSet, ModelName
from swapd.core.topology import DriverState, GpuHealth, NodeTopology
from swapd.core.view import FreeView, NodeView
from tests.cli.command import node
from tests.fakes.control import extras
from tests.fakes.gpu_nodes import gpu, gpu_node, sick, topology
from tests.fakes.node_views import GIB, node_view


def shown(view: NodeView, width: int = 140) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, markup=False, highlight=False, emoji=False, color_system=None)
    print_topology(console, json.loads(json.dumps(at_once(status_document(view, extras())))))
    return out.getvalue()


def lines(view: NodeView, width: int = 140) -> list[str]:
    return [line.rstrip() for line in shown(view, width).splitlines()]


def mesh() -> NodeTopology:
    """Describe four GPUs in two bridged pairs, two of them under one PCIe switch."""
    links = ((0, 4, 0, 0), (4, 0, 0, 0), (0, 0, 0, 12), (0, 0, 12, 0))
    return topology(*(gpu(i, switched=False, numa=i // 3) for i in range(4)), links=links)


def test_the_matrix_reads_like_the_vendors_with_aligned_cells() -> None:
    assert lines(gpu_node(topology=mesh()))[2:9] == [
        "        GPU0  GPU1  GPU2  GPU3",
        "GPU0       X   NV4  NODE   SYS",
        "GPU1     NV4     X  NODE   SYS",
        "GPU2    NODE  NODE     X  NV12",
        "GPU3     SYS   SYS  NV12     X",
        "",
        "NVk: k NVLinks  NODE: within a NUMA node  SYS: across NUMA nodes, or not known",
    ]


def test_a_matrix_that_is_too_wide_is_told_in_parts_that_name_their_rows() -> None:
    text = lines(gpu_node(topology=topology(*map(gpu, range(16)))), 60)
    heads = [line for line in text if line.startswith("      ") and " GPU" in line]
    assert [line.split() for line in heads] == [
        [f"GPU{i}" for i in range(7)], [f"GPU{i}" for i in range(7, 14)], ["GPU14", "GPU15"]
    ]  # fmt: skip
    rows = [line for line in text if line.startswith("GPU15 ")]
    assert [len(line.split()) - 1 for line in rows] == [7, 7, 2]


def test_nothing_is_drawn_of_what_is_not_known() -> None:
    unknown = replace(mesh(), links=(), levels=())
    assert [line for line in lines(gpu_node(topology=unknown)) if line.startswith(("        GPU", "NVk"))] == []
    without_levels = lines(gpu_node(topology=replace(mesh(), levels=())))
    assert "GPU0       X   NV4     –     –" in without_levels


def test_a_gpu_is_told_with_memory_place_links_health_and_models() -> None:
    worn = gpu(1, nvlinks=6, health=GpuHealth.DEGRADED, why="6 of 18 links")
    bare = gpu(
        2, name="", numa=-1, pcie_switch="", nvlinks=0, nvlinks_expected=0, memory_bytes=Bytes(0), measured=False
    )
    memory = {
        "reserved_bytes": Bytes(40 * GIB),
        "free_bytes": Bytes(30 * GIB),
        "foreign_bytes": Bytes(5 * GIB),
        "models": (ModelName("m01"), ModelName("m02")),
    }
    rows = [" ".join(line.split()) for line in lines(gpu_node(topology=topology(gpu(0), worn, bare), gpus={0: memory}))]
    head = rows.index("GPU device total reserved used foreign NUMA PCIe switch NVLinks health models")
    assert rows[head + 1 : head + 4] == [
        "0 NVIDIA H100 80GB HBM3 80.0 GiB 40.0 GiB 50.0 GiB 5.0 GiB 0 0000:16:00.0 18 healthy m01, m02",
        "1 NVIDIA H100 80GB HBM3 80.0 GiB 0 B 0 B 0 B 0 0000:16:00.0 6 of 18 degraded –",
        f"2 {bare.uuid} – 0 B – – – – – healthy –",
    ]
    assert rows[1] == "GPU 1: 6 of 18 links"


def test_domains_are_told_with_what_is_free_in_them() -> None:
    broken = gpu(3, health=GpuHealth.LOST, why="lost")
    free = FreeView(GpuSet(0b111), 2, GpuSet(0b11), GpuSet(0b11), (GpuSet(0b11),), (GpuSet(0b11111100),))
    view = gpu_node(
        topology=topology(*(broken if i == 3 else gpu(i) for i in range(8))),
        gpus={i: {"models": (ModelName("m01"),)} for i in range(4, 8)},
        free=free,
    )
    assert lines(view)[-5:] == [
        "NVLink domains: 1 whole, 1 fragmented",
        "  GPUs 0-1: free 0-1",
        "  GPUs 2-7: free 2, out of use 3, taken 4-7",
        "Largest free NVLink block: 2 GPUs (0-1)",
        "Host memory: 0 B of 1.0 TiB reserved",
    ]


@pytest.mark.parametrize(("block", "words"), [(1, "single GPUs only"), (0, "no GPU is free")])
def test_a_block_of_one_or_none_is_told_in_words(block: int, words: str) -> None:
    free = FreeView(GpuSet(block), block, GpuSet(block), GpuSet(block), (), (GpuSet(0b11),))
    assert f"Largest free NVLink block: {words}" in lines(gpu_node(free=free))


def test_a_node_without_nvlink_says_so_and_virtual_devices_do_not_mention_it() -> None:
    alone = gpu_node(
        topology=topology(gpu(0), gpu(1), links=()), free=FreeView(GpuSet(3), 1, GpuSet(1), GpuSet(1), (), ())
    )
    assert "No two GPUs are joined by NVLink" in lines(alone)
    virtual = lines(node_view())
    assert virtual[0] == "2 GPUs, virtual"
    assert [line for line in virtual if "joined by NVLink" in line or "NVLink block" in line] == []


def test_driver_and_complaints_stand_at_the_top() -> None:
    shape = sick(topology(expected=9, complaints=("8 of 9 GPUs are here",)), driver=DriverState.STALLED)
    assert lines(gpu_node(topology=shape))[:3] == [
        "8 GPUs of 9  driver 570.86.15  generation 3",
        "GPU driver stalled, nothing new is loaded: NVML answers no call",
        "8 of 9 GPUs are here",
    ]


@pytest.mark.parametrize(
    ("gpus", "text"), [([], "–"), ([3], "3"), ([0, 1, 2, 3, 5], "0-3,5"), ([0, 2, 3], "0,2-3"), (range(8), "0-7")]
)
def test_gpus_are_listed_as_short_as_it_goes(gpus: Any, text: str) -> None:
    assert gpu_list(gpus) == text


@settings(deadline=None, max_examples=40)
@given(name=st.text(min_size=1, max_size=40), count=st.integers(0, 17), width=st.integers(24, 200))
def test_no_width_and_no_name_breaks_the_page(name: str, count: int, width: int) -> None:
    shape = topology(gpu(0, name=name, health=GpuHealth.FAILED, why=name), *map(gpu, range(1, count)))
    view = gpu_node(
        topology=replace(shape, complaints=(name,), trouble=name, driver=DriverState.FAILED),
        gpus={0: {"models": (ModelName(name),)}},
        free=FreeView(GpuSet(0), 0, GpuSet(0), GpuSet(0), (), (GpuSet(1),)),
    )
    text = shown(view, width)
    assert [c for c in text if not c.isprintable() and c != "\n"] == []
    assert max(cell_len(line) for line in text.split("\n")) <= width


async def test_topology_prints_the_page_or_one_json_object(tmp_path: Path) -> None:
    async with node(tmp_path / "admin.sock") as daemon:
        daemon.control.view = gpu_node()
        page = await daemon.swapd("topology")
        assert page.exit_code == 0
        assert "GPU7    NV18  NV18" in page.output
        assert "\x1b" not in page.output
        document = await daemon.swapd("topology", "--json")
        assert json.loads(document.output) == await daemon.control.topology()
        assert len(json.loads(document.output)["topology"]["gpus"]) == 8


def test_a_node_whose_gpus_are_not_known_yet_is_shown_too() -> None:
    nothing = FreeView(GpuSet(0), 0, GpuSet(0), GpuSet(0), (), ())
    shape = NodeTopology((), driver=DriverState.STARTING, expected=8)
    text = lines(node_view(gpus=(), topology=shape, free=nothing))
    assert text[:2] == ["0 GPUs of 8  generation 0", "GPU driver starting, nothing new is loaded"]
