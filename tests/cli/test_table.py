"""The status table: right and readable at every width, whatever the names and errors contain."""

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

from swapd.admin.status import ConfigInfo, status_document
from swapd.aio.turns import at_once
from swapd.cli.table import age, print_status, size, wide
from swapd.core.ids import SECOND, Bytes, Duration, GpuSet, ModelName
from swapd.core.reasons import Stage, State, Verdict, WaitingFor
from swapd.core.topology import DriverState, GpuHealth
from swapd.core.view import FetchView, NodeView, ReservationView
from tests.cli.command import node
from tests.fakes.control import extras
from tests.fakes.gpu_nodes import gpu, gpu_node, sick, topology
from tests.fakes.node_views import GIB, at, gpu_view, instance_view, model_view, node_view


def shown(view: NodeView, width: int = 160, *, terminal: bool = False, **changes: object) -> str:
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=terminal, markup=False, highlight=False, emoji=False, color_system=None
    )
    document = json.loads(json.dumps(at_once(status_document(view, extras(**changes)))))
    print_status(console, document)
    return out.getvalue()


def row(text: str, name: str) -> str:
    line = next(line for line in text.splitlines() if line.startswith(name))
    return " ".join(line.split())


BUSY = node_view(
    model_view(
        "m01",
        instance=instance_view("m01", gpus=GpuSet(0b11), in_flight=3, last_used=at(99)),
        in_flight=3,
        queued={WaitingFor.ENGINE_SLOT: 2},
        oldest_waiter=at(95),
        pinned=True,
        verdict=Verdict.OK,
        load_estimate=Duration(40 * SECOND),
    ),
    model_view(
        "m02",
        instance=instance_view("m02", 2, state=State.LOADING, stage=Stage.WARMUP, since=at(88), outdated=True),
        queued={WaitingFor.LOAD: 3, WaitingFor.ROOM: 1},
        oldest_waiter=at(35),
        verdict=Verdict.THRASHING,
        partner=ModelName("m01"),
        load_fraction=0.42,
    ),
    model_view("m03", cooling_until=at(120), consecutive_failures=2, last_error="exited with status 1: no such file"),
    model_view("m04", configured=False, instance=instance_view("m04", 4, state=State.DRAINING, since=at(99.5))),
    model_view("m05"),
    gpus=(gpu_view(0, reserved_bytes=Bytes(GIB), models=(ModelName("m01"), ModelName("m02"))), gpu_view(1)),
    story=((at(10), "m01 loaded"), (at(98), "m02 evicted m09: it was idle for 3m")),
)


def test_the_row_of_a_model_tells_state_devices_requests_and_verdict() -> None:
    text = shown(BUSY)
    assert row(text, "m01") == "m01 ready 1m30s 0,1 3 2 engine slot (5s) 1s 40s pinned ok"
    assert row(text, "m02") == (
        "m02 loading (warmup) 12s, outdated 0 – 1 room, 3 load (1m05s) 10s 2s – thrashing with m01, 42% loading"
    )
    assert row(text, "m03") == "m03 failed, again in 20s – – – – 2s – –"
    assert row(text, "m04") == "m04 (removed) draining 500ms 0 – – 10s 2s – –"
    assert row(text, "m05") == "m05 absent – – – – 2s – –"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "fetching 40 %, 12s left"),
        ({"total": Bytes(0)}, "fetching"),
        ({"running": False, "total": Bytes(0)}, "to be fetched"),
        ({"waits": "the disk is full"}, "40 % fetched, stands still"),
    ],
)
def test_a_model_whose_weights_are_on_their_way_tells_how_far_they_are(changes: dict[str, Any], state: str) -> None:
    fetch = FetchView(
        since=at(90),
        running=True,
        done=Bytes(40),
        total=Bytes(100),
        rate=5.0,
        remaining=Duration(12 * SECOND),
        waits="",
    )
    text = shown(
        node_view(model_view("m01", fetch=replace(fetch, **changes)), model_view("m02", cached_bytes=Bytes(1)))
    )
    assert row(text, "m01") == f"m01 {state} – – – – 2s – –"
    assert row(text, "m02") == "m02 cached – – – – 2s – –"
    assert ("the fetch of m01 waits: the disk is full" in text) is ("waits" in changes)


def test_devices_errors_and_decisions_follow() -> None:
    text = shown(BUSY)
    assert "  0  virtual-0  1.0 GiB of 2.0 GiB  █████░░░░░  m01, m02" in text
    assert "m03 failed 2×: exited with status 1: no such file" in text
    assert "  1m30s ago  m01 loaded\n     2s ago  m02 evicted m09: it was idle for 3m\n" in text


@pytest.mark.parametrize(
    ("view", "changes", "words"),
    [
        (node_view(), {}, "swapd 1.2.3  READY  up 1m30s  mode auto"),
        (node_view(draining=True), {"not_ready": ("the node is draining",)}, "DRAINING"),
        (node_view(draining=True, drained=True), {"not_ready": ("the node is draining",)}, "DRAINED"),
        (node_view(), {"not_ready": ("the daemon is starting",)}, "NOT READY"),
        (node_view(), {"not_ready": ("the daemon is starting",)}, "not ready: the daemon is starting"),
        (node_view(), {}, "config /etc/swapd.yaml  in force since 1m00s"),
        (node_view(), {}, "http 127.0.0.1:8090"),
        (
            node_view(),
            {"config": ConfigInfo("/etc/swapd.yaml", ok=False, error="swapd.yaml:3: correct the key")},
            "the config file as it is now is REFUSED, the old one stays in force: swapd.yaml:3: correct the key",
        ),
        (
            node_view(reservation=ReservationView(ModelName("big"), GpuSet(0b11), at(70), (ModelName("m01"),))),
            {},
            "GPUs 0,1 are reserved for big since 30s; draining m01",
        ),
        (
            node_view(gpus=(gpu_view(0, quarantined_bytes=Bytes(GIB)),)),
            {},
            "0 B of 2.0 GiB, 1.0 GiB not released",
        ),
    ],
)
def test_what_is_wrong_is_said_in_words(view: NodeView, changes: dict[str, object], words: str) -> None:
    assert words in shown(view, **changes)


def test_gpus_are_told_with_what_the_driver_says_and_who_else_is_there() -> None:
    memory = {
        "reserved_bytes": Bytes(40 * GIB),
        "free_bytes": Bytes(35 * GIB),
        "foreign_bytes": Bytes(5 * GIB),
        "models": (ModelName("m01"),),
    }
    noise = {"free_bytes": Bytes(80 * GIB), "foreign_bytes": Bytes(5 << 20)}
    text = shown(gpu_node(gpus={0: memory, 1: noise, 2: {"free_bytes": None}}))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "0 NVIDIA H100 80GB HBM3 40.0 GiB of 80.0 GiB, 5.0 GiB foreign █████░░░░░ 35.0 GiB m01" in lines
    assert "1 NVIDIA H100 80GB HBM3 0 B of 80.0 GiB ░░░░░░░░░░ 80.0 GiB –" in lines
    assert "2 NVIDIA H100 80GB HBM3 0 B of 80.0 GiB ░░░░░░░░░░ – –" in lines


@pytest.mark.parametrize("width", [40, 80, 160])
def test_a_gpu_that_is_not_healthy_is_told_with_the_reason_at_every_width(width: int) -> None:
    healths = {
        1: {"health": GpuHealth.LOST, "why": "lost: GPU is lost"},
        2: {"health": GpuHealth.DEGRADED, "why": "6 of 18 NVLinks"},
        3: {"health": GpuHealth.MIG},
        4: {"health": GpuHealth.FAILED, "why": "Xid 79"},
    }
    text = shown(gpu_node(topology=topology(*(gpu(i, **healths.get(i, {})) for i in range(8)))), width)
    assert [line for line in text.splitlines() if line.startswith("GPU ") and ":" in line] == [
        "GPU 1: lost: GPU is lost",
        "GPU 2: 6 of 18 NVLinks",
        "GPU 3: mig",
        "GPU 4: Xid 79",
    ]
    words = " ".join(text.split())
    assert [f"0 B of 80.0 GiB, {health}" in words for health in ("lost", "degraded", "mig", "failed")] == [True] * 4


def test_driver_trouble_stands_at_the_top_and_its_reason_stands_there_once() -> None:
    trouble = "NVML answers no call; see dmesg"
    view = gpu_node(topology=sick(topology(), driver=DriverState.NOT_LOADED, trouble=trouble))
    assert shown(view).splitlines()[3] == f"GPU driver not loaded, nothing new is loaded: {trouble}"
    told = shown(view, not_ready=(trouble,)).splitlines()
    assert told[3:5] == [f"not ready: {trouble}", "GPU driver not loaded, nothing new is loaded"]


def test_what_a_complaint_tells_of_a_gpu_is_not_told_twice() -> None:
    worn = gpu(1, health=GpuHealth.DEGRADED, why="6 of 18 NVLinks")
    text = shown(gpu_node(topology=topology(gpu(0), worn, complaints=("GPU 1 (0000:27:00.0): 6 of 18 NVLinks",))))
    assert text.count("6 of 18 NVLinks") == 1


def test_complaints_and_footprints_that_are_configured_wrong_are_told() -> None:
    model = model_view("m01", declared_bytes=Bytes(10 * GIB), measured_bytes=Bytes(14 * GIB))
    close = model_view("m02", declared_bytes=Bytes(10 * GIB), measured_bytes=Bytes(11 * GIB))
    text = shown(gpu_node(model, close, topology=topology(complaints=("7 of 8 GPUs are here",))))
    assert "\n7 of 8 GPUs are here\n" in text
    assert "m01 took 14.0 GiB per GPU when it was last ready, its memory is configured as 10.0 GiB" in text
    assert "m02 took" not in text


def test_a_narrow_terminal_still_tells_pins_and_thrashing() -> None:
    models = model_view("a", pinned=True), model_view("b", verdict=Verdict.THRASHING, partner=ModelName("c"))
    text = " ".join(shown(node_view(*models), 60).split())
    assert "pinned" in text
    assert "thrashing with c" in text


@pytest.mark.parametrize("width", [20, 40, 80, 120, 200])
def test_every_width_is_kept_and_loses_no_name(width: int) -> None:
    names = ("m01", "a-model-with-quite-a-long-name", "org/name[/]")
    text = shown(node_view(*map(model_view, names)), width)
    assert max(map(len, text.splitlines())) <= width
    folded = "".join(line.split("  ")[0].strip() for line in text.splitlines())
    assert [name for name in names if name not in folded] == []


def test_markup_emoji_and_escapes_in_names_and_errors_are_only_characters() -> None:
    name = "[red]m[/red]:smile:"
    evil = model_view(name, consecutive_failures=1, last_error="\x1b[2J\x1b]0;owned\x07 [bold]gone\r\nline two")
    text = shown(node_view(evil, story=((at(99), f"{name} \x1b[31mred"),)), terminal=True)
    assert name in text
    assert "[bold]gone" in text
    assert [character for character in "\x1b\x07\r" if character in text] == []


@settings(deadline=None, max_examples=50)
@given(name=st.text(min_size=1, max_size=40), error=st.text(max_size=200), width=st.integers(10, 200))
def test_no_name_and_no_error_can_break_the_table(name: str, error: str, width: int) -> None:
    view = node_view(
        model_view(name, consecutive_failures=1, last_error=error, partner=name, verdict=Verdict.THRASHING),
        gpus=(gpu_view(0, models=(ModelName(name),)),),
        reservation=ReservationView(ModelName(name), GpuSet(1), at(1), (ModelName(name),)),
        story=((at(1), error),),
    )
    text = shown(view, width, terminal=True)
    assert [c for c in text if not c.isprintable() and c != "\n"] == []
    assert max(cell_len(line) for line in text.split("\n")) <= width


def test_an_empty_node_is_shown_too() -> None:
    assert "READY" in shown(node_view(gpus=()))


def test_output_that_is_no_terminal_is_wide_and_plain() -> None:
    console = wide(Console(file=io.StringIO(), width=80))
    assert console.width == 140
    assert wide(Console(file=io.StringIO(), width=80, force_terminal=True)).width == 80


async def test_status_prints_the_table_or_the_whole_document(tmp_path: Path) -> None:
    async with node(tmp_path / "admin.sock") as daemon:
        table = await daemon.swapd("status")
        assert table.exit_code == 0
        assert "\x1b" not in table.output
        assert row(table.output, "m01").startswith("m01 ready 1m30s 0 ")
        document = await daemon.swapd("status", "--json")
        assert json.loads(document.output) == await daemon.control.status()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0ms"),
        (0.85, "850ms"),
        (12.9, "12s"),
        (60, "1m00s"),
        (185, "3m05s"),
        (7800, "2h10m"),
        (356_400, "4d03h"),
    ],
)
def test_ages_are_told_in_their_two_largest_units(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (80 * GIB, "80.0 GiB"), (1 << 40, "1.0 TiB")]
)
def test_sizes_are_told_in_binary_units(count: int, text: str) -> None:
    assert size(count) == text
