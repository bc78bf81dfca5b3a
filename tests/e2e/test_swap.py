"""A request for a model that is not resident is held, room is made, the model loads, and the answer streams."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.fakes.daemon import chat, eventually, running, tiny_models, total, until
from tests.fakes.scripted import engine_requests, in_flight, model_status, scripted_model


async def test_the_idle_model_is_evicted_for_the_one_that_is_asked_for_and_the_answer_streams(tmp_path: Path) -> None:
    devices = {"virtual": {"count": 1, "memory": "2GiB"}}
    async with running(
        tmp_path, models=tiny_models(tmp_path, ["m01", "m02"]), devices=devices, scheduling={"protect": 0}
    ) as daemon:
        async with daemon.client() as http:
            async with http.post("/v1/chat/completions", json=chat("m01")) as first:
                assert first.status == 200
                assert first.headers["x-swapd-cold-start"] == "1"
                assert "load" in first.headers["server-timing"]
            async with http.post("/v1/chat/completions", json=chat("m01")) as again:
                assert "x-swapd-cold-start" not in again.headers
            async with http.post("/v1/chat/completions", json=chat("m02", stream=True)) as second:
                assert second.headers["content-type"].startswith("text/event-stream")
                assert second.headers["x-accel-buffering"] == "no"
                text = (await second.read()).decode()
        words = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        answer = "".join(choice["delta"].get("content") or "" for word in words for choice in word["choices"])
        assert answer.strip() == "I am m02 ."
        assert text.rstrip().endswith("data: [DONE]")
        assert (await model_status(daemon, "m01"))["state"] == "absent"
        assert (await model_status(daemon, "m02"))["state"] == "ready"
        metrics = await daemon.metrics()
        assert total(metrics, "swapd_evictions_total", model="m01", reason="evicted") == 1


async def test_fifty_clients_of_one_cold_model_cost_one_load(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model("--load-s", "0.5")}) as daemon:
        async with daemon.client() as http:

            async def ask() -> int:
                async with http.post("/v1/chat/completions", json=chat("a")) as answer:
                    return answer.status

            assert set(await asyncio.gather(*(ask() for _ in range(50)))) == {200}
        metrics = await daemon.metrics()
        assert total(metrics, "swapd_model_loads_total", model="a") == 1
        assert total(metrics, "swapd_requests_total", model="a", code="200") == 50


async def test_the_body_reaches_the_engine_byte_for_byte(tmp_path: Path) -> None:
    body = b'{ "messages" : [], "x": 1e2, "model":"a" ,"stream":false, "\\u00e9": "\xc3\xa9" }\n'
    async with running(tmp_path, models={"a": scripted_model()}) as daemon:
        async with (
            daemon.client() as http,
            http.post("/v1/chat/completions?b=%2F&a=1", data=body, headers={"content-type": "application/json"}) as got,
        ):
            assert got.status == 200
        seen = (await engine_requests(daemon, "a"))[-1]
        assert seen["body"].encode() == body


async def test_an_alias_and_the_name_share_one_engine_and_both_are_listed_with_their_state(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model(aliases=["tiny-one"]), "b": scripted_model()}) as daemon:
        async with daemon.client() as http:
            for name in ("tiny-one", "a", "tiny-one"):
                async with http.post("/v1/chat/completions", json=chat(name)) as answer:
                    assert answer.status == 200
            async with http.get("/v1/models") as listing:
                states = {model["id"]: model["state"] for model in (await listing.json())["data"]}
            async with http.get("/v1/models/tiny-one") as one:
                assert (await one.json())["state"] == "ready"
        assert states == {"a": "ready", "tiny-one": "ready", "b": "absent"}
        assert total(await daemon.metrics(), "swapd_model_loads_total") == 1


async def test_clients_that_leave_before_anything_could_start_leave_nothing_behind(tmp_path: Path) -> None:
    models = {"busy": scripted_model(script="chunks=400 interval=0.05"), "b": scripted_model()}
    devices = {"virtual": {"count": 1, "memory": "2GiB"}}
    async with running(tmp_path, models=models, devices=devices) as daemon, daemon.client() as http:
        async with http.post("/v1/chat/completions", json=chat("busy", stream=True)) as stream:
            await stream.content.readany()
            waiting = [asyncio.ensure_future(http.post("/v1/chat/completions", json=chat("b"))) for _ in range(5)]

            async def queued(number: int) -> bool:
                return total(await daemon.metrics(), "swapd_queue_requests", model="b") == number

            await eventually(lambda: queued(5), "all wait")
            for request in waiting:
                request.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await eventually(lambda: queued(0), "none waits")
        await until(lambda: '"outcome": "cancelled"' in daemon.log() or "cancelled" in daemon.log(), "logged")
        metrics = await daemon.metrics()
        assert total(metrics, "swapd_model_loads_total", model="b") == 0
        assert total(metrics, "swapd_requests_total", model="b", code="499") == 5


@pytest.mark.parametrize("kind", ["stream", "plain"])
async def test_a_client_that_leaves_mid_answer_closes_the_engines_connection(tmp_path: Path, kind: str) -> None:
    script = "endless interval=0.02" if kind == "stream" else "silent"
    # the silent engine would never answer a warm-up either
    async with running(tmp_path, models={"a": scripted_model(script=script, warmup="none")}) as daemon:
        async with daemon.client() as http:
            request = asyncio.ensure_future(http.post("/v1/chat/completions", json=chat("a", stream=kind == "stream")))
            if kind == "stream":
                (await request).close()
            else:

                async def sent() -> bool:
                    return await in_flight(daemon, "a") == 1

                await eventually(sent, "the request is with the engine")
                request.cancel()

            async def aborted() -> bool:
                return bool((await engine_requests(daemon, "a"))[-1]["aborted"])

            await eventually(aborted, "the engine sees the close")
        assert total(await daemon.metrics(), "swapd_inflight_requests", model="a") == 0
