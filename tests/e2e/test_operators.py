"""Operators load, unload, pin and drain through the admin socket, and status, events and metrics agree with it."""

import asyncio
import json
from pathlib import Path

import aiohttp

from tests.fakes.daemon import chat, eventually, running, total
from tests.fakes.scripted import model_status, process_of, scripted_model

ONE_DEVICE = {"virtual": {"count": 1, "memory": "2GiB"}}


async def test_load_makes_a_model_resident_without_a_request_and_unload_takes_it_away(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model(aliases=["x"])}) as daemon:
        assert "a" in await daemon.cli("load", "x")
        assert (await model_status(daemon, "a"))["state"] == "ready"
        await daemon.cli("unload", "x")
        assert (await model_status(daemon, "a"))["state"] == "absent"
        assert len(daemon.processes()) == 1


async def test_a_pinned_model_stays_and_the_stray_request_is_refused_with_the_reason(tmp_path: Path) -> None:
    models = {"a": scripted_model(), "b": scripted_model()}
    async with running(tmp_path, models=models, devices=ONE_DEVICE) as daemon, daemon.client() as http:
        await daemon.cli("load", "a")
        await daemon.cli("pin", "a")
        async with http.post("/v1/chat/completions", json=chat("b")) as answer:
            assert answer.status == 503
            assert answer.headers["x-swapd-reason"] == "all_pinned"
            assert (await answer.json())["error"]["code"] == "no_capacity"
        await daemon.cli("unpin", "a")
        async with http.post("/v1/chat/completions", json=chat("b")) as answer:
            assert answer.status == 200


async def test_in_manual_mode_only_operators_load(tmp_path: Path) -> None:
    async with (
        running(tmp_path, models={"a": scripted_model()}, scheduling={"mode": "manual"}) as daemon,
        daemon.client() as http,
    ):
        async with http.post("/v1/chat/completions", json=chat("a")) as answer:
            assert answer.status == 409
            assert answer.headers["x-swapd-reason"] == "manual_mode"
        await daemon.cli("load", "a")
        async with http.post("/v1/chat/completions", json=chat("a")) as answer:
            assert answer.status == 200


async def test_an_unload_lets_running_requests_end_and_later_ones_are_served_too(tmp_path: Path) -> None:
    models = {"a": scripted_model(script="chunks=20 interval=0.05")}
    async with running(tmp_path, models=models) as daemon, daemon.client() as http:
        async with http.post("/v1/chat/completions", json=chat("a", stream=True)) as stream:
            await stream.content.readany()
            pid = (await process_of(daemon, "a"))["pid"]
            unload = asyncio.ensure_future(daemon.cli("unload", "a"))

            async def leaving() -> bool:
                return bool((await model_status(daemon, "a"))["state"] != "ready")

            await eventually(leaving, "the model drains")
            late = asyncio.ensure_future(http.post("/v1/chat/completions", json=chat("a")))
            assert (await stream.content.read()).rstrip().endswith(b"data: [DONE]")
        await unload
        assert (await late).status == 200
        assert (await process_of(daemon, "a"))["pid"] != pid


async def test_an_unload_with_a_timeout_cuts_what_never_ends_and_the_client_can_tell(tmp_path: Path) -> None:
    models = {"a": scripted_model(script="endless interval=0.02", warmup="none")}
    async with running(tmp_path, models=models) as daemon, daemon.client() as http:
        async with http.post("/v1/chat/completions", json=chat("a", stream=True)) as stream:
            await stream.content.readany()
            await daemon.cli("unload", "a", "--timeout", "200ms")
            received, clean = b"", True
            try:
                async for piece in stream.content.iter_any():
                    received += piece
            except aiohttp.ClientPayloadError:
                clean = False
        assert not clean
        assert b"[DONE]" not in received
        assert total(await daemon.metrics(), "swapd_requests_cut_total", model="a") == 1


async def test_a_drained_node_is_unready_refuses_loads_and_comes_back(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model()}) as daemon, daemon.client() as http:
        await daemon.cli("load", "a")
        await daemon.cli("drain", "--timeout", "10s")
        async with aiohttp.ClientSession() as ops, ops.get(f"{daemon.metrics_url}/readyz") as ready:
            assert ready.status == 503
        async with http.post("/v1/chat/completions", json=chat("a")) as answer:
            assert answer.status == 503
            assert answer.headers["x-swapd-reason"] == "draining"
        assert len(daemon.processes()) == 1
        await daemon.cli("undrain")
        async with http.post("/v1/chat/completions", json=chat("a")) as answer:
            assert answer.status == 200


async def test_status_and_event_stream_agree_that_a_model_is_ready(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model()}) as daemon:
        admin = aiohttp.UnixConnector(str(daemon.socket_path))
        async with aiohttp.ClientSession("http://admin", connector=admin) as http, http.get("/v1/events") as events:
            loading = asyncio.ensure_future(daemon.cli("load", "a"))
            async for line in events.content:
                if json.loads(line).get("after") == "ready":
                    break
            assert (await model_status(daemon, "a"))["state"] == "ready"
            await loading


async def test_an_engines_own_metrics_are_passed_through_without_starting_or_keeping_it(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model()}) as daemon, aiohttp.ClientSession() as ops:
        async with ops.get(f"{daemon.metrics_url}/metrics/models/a") as answer:
            assert answer.status == 404
        assert (await model_status(daemon, "a"))["state"] == "absent"
        await daemon.cli("load", "a")
        async with ops.get(f"{daemon.metrics_url}/metrics/models/a") as answer:
            assert 'fake_requests_total{model="a"}' in await answer.text()


async def test_tokens_are_counted_exactly_plain_and_streamed(tmp_path: Path) -> None:
    models = {"a": scripted_model(script="chunks=7", warmup="none")}
    async with running(tmp_path, models=models) as daemon, daemon.client() as http:
        async with http.post("/v1/chat/completions", json=chat("a")) as plain:
            usage = (await plain.json())["usage"]
        body = chat("a", stream=True, stream_options={"include_usage": True})
        async with http.post("/v1/chat/completions", json=body) as stream:
            await stream.read()
        metrics = await daemon.metrics()
        assert total(metrics, "swapd_model_completion_tokens_total", model="a") == 2 * usage["completion_tokens"]
        assert total(metrics, "swapd_model_prompt_tokens_total", model="a") == 2 * usage["prompt_tokens"]
