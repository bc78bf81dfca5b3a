"""Prefetch and cache: what they order, and how the progress of a fetch is shown."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

from swapd.admin.cache import CacheInfo, CopyInfo
from swapd.admin.control import Result
from swapd.cli import client, prefetch
from swapd.cli.prefetch import Bars, Lines, describe
from swapd.core.ids import SECOND, Bytes, Duration, Instant, ModelName
from swapd.core.reasons import Rejection
from swapd.core.view import FetchView
from tests.cli.command import node
from tests.fakes.node_views import instance_view, model_view, node_view

M01, ORG = ModelName("m01"), ModelName("org/model-7b")
MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "admin.sock"


def fetch(**changes: Any) -> dict[str, Any]:
    document = {
        "model": "m01",
        "running": True,
        "age_s": 1.0,
        "done_bytes": 8 * MIB,
        "total_bytes": 20 * MIB,
        "bytes_per_s": MIB,
        "remaining_s": 12.0,
        "waits": None,
    }
    return document | changes


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "fetching m01 40 % of 20.0 MiB, about 12s left"),
        ({"total_bytes": None, "done_bytes": 0}, "fetching m01, about 12s left"),
        ({"running": False, "total_bytes": None}, "fetching m01, in the queue"),
        ({"waits": "the disk is full"}, "fetching m01 40 % of 20.0 MiB, the disk is full"),
        ({"model": "a\x1b[1m"}, "fetching a�[1m 40 % of 20.0 MiB, about 12s left"),
    ],
)
def test_a_fetch_is_told_in_a_line(changes: dict[str, Any], line: str) -> None:
    assert describe(fetch(**changes)) == line


def test_where_no_bar_can_be_drawn_each_tenth_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    for done in (0, 1, 2, 3, 8, 9):
        lines([fetch(done_bytes=done * MIB)])
    assert [line.split()[2] for line in capsys.readouterr().err.splitlines()] == ["0", "10", "40"]


def test_on_a_terminal_each_fetch_has_a_bar_that_is_full_when_it_has_ended() -> None:
    screen = io.StringIO()
    progress = Progress(console=Console(file=screen, force_terminal=True))
    bars = Bars(progress)
    bars([fetch(total_bytes=None, done_bytes=0), fetch(model="m02", running=False)])
    bars([fetch(), fetch(model="m02")])
    bars([fetch(model="m02")])
    assert [(task.description, task.completed, task.total) for task in progress.tasks] == [
        ("m01", 20 * MIB, 20 * MIB),
        ("m02", 8 * MIB, 20 * MIB),
    ]


async def test_prefetch_waits_for_all_and_tells_how_each_ended(path: Path) -> None:
    async with node(path) as daemon:
        daemon.control.results = {
            M01: Result(ok=True, detail="m01 is cached"),
            ORG: Result(ok=False, detail="the source refuses", reason=Rejection.LOAD_FAILED),
        }
        done = await daemon.swapd("prefetch", "tiny", "org/model-7b")
        assert (done.exit_code, done.stdout, done.stderr) == (1, "m01 is cached\n", "the source refuses\n")
        assert daemon.control.asked == [("prefetch", M01, True), ("prefetch", ORG, True)]
        done = await daemon.swapd("prefetch", "m01")
        assert (done.exit_code, done.stdout) == (0, "m01 is cached\n")
        done = await daemon.swapd("prefetch", "m01", "nope")
        assert (done.exit_code, done.stderr) == (1, "no model and no alias is named 'nope'; see swapd status\n")


async def test_prefetch_shows_how_far_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "_LOOK_S", 0.01)
    looked, cache = asyncio.Event(), client.cache
    async with node(path) as daemon:
        loop = asyncio.get_running_loop()
        coming = FetchView(Instant(0), True, Bytes(8 * MIB), Bytes(20 * MIB), 1.0, Duration(12 * SECOND), "")  # noqa: FBT003
        daemon.control.view = node_view(model_view("m01", fetch=coming))
        daemon.control.gate = asyncio.Event()

        def look(admin: Path | None) -> Any:
            document = cache(admin)
            loop.call_soon_threadsafe(looked.set)
            return document

        monkeypatch.setattr(client, "cache", look)
        order = asyncio.ensure_future(daemon.swapd("prefetch", "m01"))
        await looked.wait()
        daemon.control.gate.set()
        assert "fetching m01 40 % of 20.0 MiB, about 12s left\n" in (await order).stderr


async def test_ctrl_c_ends_the_waiting_and_not_the_fetch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "_LOOK_S", 0.01)

    def interrupted(_: Path | None) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "cache", interrupted)
    async with node(path) as daemon:
        daemon.control.gate = asyncio.Event()
        done = await daemon.swapd("prefetch", "m01")
        assert (done.exit_code, done.stderr) == (130, "the fetch goes on; swapd cache shows how far it is\n")
        daemon.control.gate.set()


async def test_the_copies_are_listed_with_what_keeps_them(path: Path) -> None:
    copies = (
        CopyInfo("/c/a", "hf://o/m01", "abc", 2, Bytes(4 * MIB), (M01,), damaged=False),
        CopyInfo("/c/b", "s3://b/old", "def", 1, Bytes(MIB), (), damaged=True),
        CopyInfo("/c/c", "s3://b/older", "ghi", 1, Bytes(MIB), (), damaged=False),
    )
    async with node(path) as daemon:
        daemon.control.view = node_view(model_view("m01", instance=instance_view("m01"), pinned=True))
        daemon.control.kept_weights = CacheInfo("/c", Bytes(6 * MIB), Bytes(200 * MIB), Bytes(MIB), copies)
        shown = (await daemon.swapd("cache")).stdout
        assert shown.splitlines()[0] == "/c  6.0 MiB of 200.0 MiB, 1.0 MiB of it not the cache's own"
        assert [line.split("  ")[0] for line in shown.splitlines()[3:]] == ["m01", "–", "–"]
        for word in ("in use, pinned", "damaged", "not needed", "hf://o/m01"):
            assert word in shown
        document = json.loads((await daemon.swapd("cache", "--json")).stdout)
        assert document == json.loads((await daemon.swapd("cache", "ls", "--json")).stdout)
        assert [copy["path"] for copy in document["copies"]] == ["/c/a", "/c/b", "/c/c"]


async def test_a_node_that_needs_no_cache_says_so(path: Path) -> None:
    async with node(path) as daemon:
        assert (await daemon.swapd("cache")).stdout == "no model has a weights.source: nothing is cached\n"


async def test_all_copies_are_verified_unless_some_are_named(path: Path) -> None:
    async with node(path) as daemon:
        copies = tuple(CopyInfo("/c", "x", "y", 1, Bytes(1), models, damaged=False) for models in ((M01,), (), (ORG,)))
        daemon.control.kept_weights = CacheInfo("/c", Bytes(6), Bytes(200), Bytes(1), copies)
        assert (await daemon.swapd("cache", "verify")).exit_code == 0
        assert (await daemon.swapd("cache", "verify", "tiny")).exit_code == 0
        assert daemon.control.asked == [("verify", M01), ("verify", ORG), ("verify", M01)]


async def test_where_nothing_is_cached_there_is_nothing_to_verify(path: Path) -> None:
    async with node(path) as daemon:
        done = await daemon.swapd("cache", "verify")
        assert (done.exit_code, done.output) == (0, "no weights of any model are cached\n")


async def test_a_copy_that_has_to_stay_does_not_keep_back_the_others(path: Path) -> None:
    async with node(path) as daemon:
        daemon.control.result = Result(ok=False, detail="m01 is in use or pinned")
        done = await daemon.swapd("cache", "rm", "m01", "org/model-7b")
        assert (done.exit_code, done.stderr) == (1, "m01 is in use or pinned\n" * 2)
        assert daemon.control.asked == [("remove", M01), ("remove", ORG)]


@pytest.mark.parametrize("name", ["ls", "verify", "rm"])
async def test_the_help_of_each_tells_purpose_and_exit_codes(path: Path, name: str) -> None:
    async with node(path) as daemon:
        shown = (await daemon.swapd("cache", name, "--help")).stdout
        assert "Example:  swapd cache" in shown
        assert "Exit codes: 0 " in shown
