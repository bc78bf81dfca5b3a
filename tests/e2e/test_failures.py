"""What clients and operators see when engines fail."""

import asyncio
import io
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.daemon import chat, eventually, running, total, until
from tests.fakes.scripted import engine_requests, in_flight, model_status, process_of, scripted_model


async def test_all_who_wait_for_a_load_that_fails_get_its_one_reason_with_the_engines_last_words(
    tmp_path: Path,
) -> None:
    broken = scripted_model("--exit-after-s", "0.3", "--load-s", "60", "--say", "CUDA error: out of memory")
    async with running(tmp_path, models={"a": broken}) as daemon:
        async with daemon.client() as http:

            async def ask() -> tuple[int, str, str, str]:
                async with http.post("/v1/chat/completions", json=chat("a")) as answer:
                    error = (await answer.json())["error"]
                    return (
                        answer.status,
                        answer.headers["x-swapd-reason"],
                        error["code"],
                        error["message"],
                    )

            first, *others = await asyncio.gather(*(ask() for _ in range(3)))
            assert others == [first, first]
            assert first[:3] == (503, "load_failed", "model_load_failed")
            assert "exited with status 1" in first[3]
            assert "CUDA error: out of memory" in first[3]
            async with http.post("/v1/chat/completions", json=chat("a")) as answer:
                assert answer.headers["x-swapd-reason"] == "cooling_down"
                assert 1 <= int(answer.headers["retry-after"]) <= 120
        assert total(await daemon.metrics(), "swapd_model_loads_total", model="a", result="failed") == 1
        status = await model_status(daemon, "a")
        assert "CUDA error: out of memory" in status["last_error"]
        await until(lambda: len(daemon.processes()) == 1, "only the daemon itself is left")


async def test_an_operators_load_tries_again_at_once_in_the_cool_down(tmp_path: Path) -> None:
    flag = tmp_path / "works"
    command = ["sh", "-c", f'test -e {flag} || {{ echo not yet; exit 3; }}; exec "$@"', "sh"]
    model = scripted_model()
    model["command"] = [*command, *model["command"]]
    async with running(tmp_path, models={"a": model}) as daemon:
        async with daemon.client() as http, http.post("/v1/chat/completions", json=chat("a")) as answer:
            assert answer.status == 503
        flag.touch()
        await daemon.cli("load", "a")
        assert (await model_status(daemon, "a"))["state"] == "ready"


async def test_an_engine_that_dies_mid_stream_is_told_to_the_client_and_never_ends_cleanly(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model(script="chunks=9 die_after=3")}) as daemon:
        async with daemon.client() as http, http.post("/v1/chat/completions", json=chat("a", stream=True)) as answer:
            assert answer.status == 200
            received = b""
            with pytest.raises(aiohttp.ClientPayloadError):
                async for piece in answer.content.iter_any():
                    received += piece
        assert b"[DONE]" not in received
        assert b'"upstream_failed"' in received.split(b"data: ")[-1]
        metrics = await daemon.metrics()
        assert total(metrics, "swapd_streams_broken_total", model="a") == 1


async def test_an_engine_that_is_gone_before_the_first_byte_costs_one_retry_on_a_fresh_instance(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model()}) as daemon, daemon.client() as http:
        await daemon.cli("load", "a")
        pid = (await process_of(daemon, "a"))["pid"]
        headers = {"x-fake": "delay=2"}
        asked = asyncio.ensure_future(http.post("/v1/chat/completions", json=chat("a"), headers=headers))

        async def sent() -> bool:
            return await in_flight(daemon, "a") == 1

        await eventually(sent, "the request is with the engine")
        next(process for process in daemon.processes() if process.pid == pid).kill()
        assert (await asked).status == 200
        assert (await process_of(daemon, "a"))["pid"] != pid


async def test_a_healthy_engine_that_breaks_a_request_twice_is_an_upstream_failure_and_stays(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model()}) as daemon, daemon.client() as http:
        await daemon.cli("load", "a")
        pid = (await process_of(daemon, "a"))["pid"]
        async with http.post("/v1/chat/completions", json=chat("a"), headers={"x-fake": "reset"}) as answer:
            assert answer.status == 502
            assert answer.headers["x-swapd-reason"] == "upstream_failed"
        assert sum("chat" in request["path"] for request in await engine_requests(daemon, "a")) == 3
        assert (await process_of(daemon, "a"))["pid"] == pid


async def test_a_resident_engine_that_is_killed_is_replaced_and_the_next_request_is_served(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model("--worker")}) as daemon, daemon.client() as http:
        async with http.post("/v1/chat/completions", json=chat("a")) as answer:
            assert answer.status == 200
        pid = (await process_of(daemon, "a"))["pid"]
        next(process for process in daemon.processes() if process.pid == pid).kill()
        async with http.post("/v1/chat/completions", json=chat("a")) as answer:
            assert answer.status == 200
        assert (await process_of(daemon, "a"))["pid"] != pid
        metrics = await daemon.metrics()
        assert total(metrics, "swapd_model_server_restarts_total", model="a", reason="exited") == 1


async def test_a_load_that_hangs_ends_at_its_deadline(tmp_path: Path) -> None:
    hung = scripted_model("--health", "hang", load_timeout="1s", health={"timeout": "200ms"})
    async with running(tmp_path, models={"a": hung}) as daemon:
        async with daemon.client() as http, http.post("/v1/chat/completions", json=chat("a")) as answer:
            assert answer.status == 503
            assert answer.headers["x-swapd-reason"] == "load_failed"
        await until(lambda: len(daemon.processes()) == 1, "the hung engine is gone")


async def test_a_silent_load_ends_after_the_stall_window_and_a_talking_one_does_not(tmp_path: Path) -> None:
    models = {
        "silent": scripted_model("--load-s", "600", load_stall="3s"),
        "talking": scripted_model("--load-s", "8", "--load-talk", load_stall="3s"),
    }
    async with running(tmp_path, models=models) as daemon, daemon.client() as http:

        async def ask(name: str) -> tuple[int, str | None]:
            async with http.post("/v1/chat/completions", json=chat(name)) as answer:
                return answer.status, answer.headers.get("x-swapd-reason")

        assert await asyncio.gather(ask("silent"), ask("talking")) == [(503, "load_failed"), (200, None)]


async def test_a_body_that_is_too_large_is_refused_and_the_daemon_goes_on(tmp_path: Path) -> None:
    models = {"a": scripted_model()}
    async with running(tmp_path, models=models, http={"max_body": "1MiB"}) as daemon, daemon.client() as http:
        async with http.post("/v1/chat/completions", data=io.BytesIO(b"x" * (2 << 20))) as answer:
            assert answer.status == 413
            assert (await answer.json())["error"]["code"] == "request_too_large"
        async with http.post("/v1/chat/completions", json=chat("a")) as answer:
            assert answer.status == 200
