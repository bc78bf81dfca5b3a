"""Every second of a cold start is told: on the command line, in headers, streams, metrics, the log, after a restart."""

import json
from pathlib import Path
from typing import Any

import aiohttp

from tests.fakes.daemon import Daemon, chat, running, total
from tests.fakes.scripted import scripted_model

ONE_GPU = {"virtual": {"count": 1, "memory": "2GiB"}}
#: comes in about two seconds: long enough to be told how far it is, and shorter than it takes to make room
WEIGHTS = b"w" * 2_000_000


def node(directory: Path) -> dict[str, Any]:
    """Describe a node on which two models take turns; the weights of one come slowly from a source."""
    source = directory / "m01.bin"
    source.write_bytes(WEIGHTS)
    fetched = {**scripted_model(script="delay=0.2"), "weights": {"source": source.as_uri()}}
    return {
        "models": {"m01": fetched, "m02": scripted_model("--term-s", "0.3")},
        "devices": ONE_GPU,
        "cache": {"path": str(directory / "cache"), "bandwidth": "1MB/s"},
        "scheduling": {"protect": 0},
        "http": {"sse_keepalive": "1s"},
    }


async def cold_start(http: aiohttp.ClientSession, model: str, *, stream: bool = False) -> tuple[dict[str, float], str]:
    """Ask a model that is not resident; return what ``server-timing`` says, and the answer."""
    async with http.post("/v1/chat/completions", json=chat(model, stream=stream)) as answer:
        text = await answer.text()
        assert answer.status == 200, text
        if stream:
            return {}, text
        assert answer.headers["x-swapd-cold-start"] == "1"
        parts = [part.split(";dur=") for part in answer.headers["server-timing"].split(", ")]
        return {name: float(duration) for name, duration in parts}, text


async def timeline(daemon: Daemon, model: str) -> list[dict[str, Any]]:
    loads: list[dict[str, Any]] = json.loads(await daemon.cli("timeline", model, "--json"))["loads"]
    return loads


def bars(load: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Return begin and end of each stage; of one that came twice, those of both together."""
    spans: dict[str, tuple[float, float]] = {}
    for stage in load["stages"]:
        begin, end = spans.get(stage["stage"], (stage["begin_s"], stage["end_s"]))
        spans[stage["stage"]] = min(begin, stage["begin_s"]), max(end, stage["end_s"])
    return spans


def line(daemon: Daemon, event: str, **fields: object) -> dict[str, Any]:
    """Return the last line of the daemon's log with these fields."""
    lines = [json.loads(text) for text in daemon.log().splitlines()]
    return next(one for one in reversed(lines) if {"event": event, **fields}.items() <= one.items())


async def test_a_fetch_beside_the_leaving_of_a_victim_is_told_everywhere(tmp_path: Path) -> None:
    async with running(tmp_path, **node(tmp_path)) as daemon:
        async with daemon.client() as http:
            await cold_start(http, "m02")
            told, _ = await cold_start(http, "m01")
            async with http.get("/v1/models/m01") as answer:
                listed = (await answer.json())["swapd"]
        [load] = await timeline(daemon, "m01")
        spans = bars(load)
        assert (load["source"], load["result"], load["victims"]) == ("remote", "ready", ["m02"])
        assert {"fetch", "stop", "release", "spawn", "load", "warmup", "first_byte"} <= spans.keys()
        assert spans["stop"][0] < spans["fetch"][1] <= spans["load"][0]
        assert load["total_s"] == spans["first_byte"][1]
        # the parts of the wait are those of the timeline, in another order
        assert {"queue", "fetch", "stop", "release", "spawn", "load", "warmup"} <= told.keys()
        assert (listed["state"], listed["max_wait_s"], list(listed["cold_start_s"])) == ("resident", 300, ["remote"])
        drawn = await daemon.cli("timeline", "m01")
        assert "m01  ready" in drawn
        assert "weights fetched from their source" in drawn
        logged = line(daemon, "load_finished", model="m01")
        assert logged["timeline"] == [stage for stage in load["stages"] if stage["stage"] != "first_byte"]
        assert line(daemon, "request", model="m01")["stages"].keys() >= {"fetch", "load", "first_byte"}
        metrics = await daemon.metrics()
        assert total(metrics, "swapd_model_loads_total", model="m01", source="remote", result="ready") == 1
        assert total(metrics, "swapd_load_stage_duration_seconds_count", stage="fetch") == 1
        assert total(metrics, "swapd_load_stage_duration_seconds_count", stage="first_byte") == 2
        assert total(metrics, "swapd_cold_start_promise_total", model="m01", kept="true") == 1
        assert total(metrics, "swapd_cache_fetched_bytes_total") == len(WEIGHTS)


async def test_a_stream_that_waits_for_weights_is_told_how_far_they_are(tmp_path: Path) -> None:
    async with running(tmp_path, **node(tmp_path)) as daemon, daemon.client() as http:
        _, text = await cold_start(http, "m01", stream=True)
    comments = [text_line for text_line in text.splitlines() if text_line.startswith(":")]
    assert any(comment.startswith(": waiting for ") for comment in comments)
    assert text.rstrip().endswith("data: [DONE]")


async def test_what_cold_starts_took_is_known_after_a_restart(tmp_path: Path) -> None:
    plan = node(tmp_path)
    for sources in ({"remote"}, {"remote", "local"}):
        async with running(tmp_path, **plan) as daemon:
            async with daemon.client() as http:
                await cold_start(http, "m01")
                async with http.get("/v1/models/m01") as answer:
                    known = (await answer.json())["swapd"]["cold_start_s"]
            assert {"remote" if source == "remote" else "local" for source in known} == sources
            assert len(await timeline(daemon, "m01")) == 1
