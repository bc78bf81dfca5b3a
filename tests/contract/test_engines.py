"""The fakes and the real llama.cpp server keep the same promises, each started by the plan of its own adapter."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from swapd.core.events import EngineGone, InstanceExited, InstanceReady, LoadFailed, StopSignalled
from swapd.core.ids import InstanceId, ModelName
from swapd.core.reasons import LoadFailure
from swapd.engines.base import Warmup
from tests.fakes.engine_bench import DEADLINE_S, SCRIPTED, Bench, bench, until

DEMO = Path(__file__).resolve().parents[2] / "docs" / "demo"
FAKE_VLLM = SCRIPTED.with_name("engine_vllm.py")
KINDS = ["scripted", "vllm", "llama"]
CHAT: dict[str, Any] = {"model": "m01", "messages": [{"role": "user", "content": "who?"}], "max_tokens": 8}


@dataclass(slots=True)
class Server:
    """One server that is up."""

    room: Bench
    http: aiohttp.ClientSession
    options: dict[str, Any] = field(default_factory=dict)

    async def chat(self, **changes: Any) -> dict[str, Any]:
        async with self.http.post("/v1/chat/completions", json={**CHAT, **changes}) as answer:
            assert answer.status == 200
            body = await answer.json()
            assert isinstance(body, dict)
            return body

    async def page(self, path: str) -> str:
        async with self.http.get(path) as answer:
            return await answer.text()


def options(kind: str, weights: Path, *switches: str) -> dict[str, Any]:
    """Say how each kind is started."""
    common: dict[str, Any] = {"name": ModelName("m01"), "weights": str(weights), "args": switches, "concurrency": 2}
    match kind:
        case "llama":
            return {**common, "engine": "llama-server", "command": (sys.executable, str(DEMO / "llama_cpp_serve.py"))}
        case "vllm":
            return {**common, "engine": "vllm", "command": (sys.executable, str(FAKE_VLLM)), "aliases": ("other",)}
        case _:
            command = (sys.executable, str(SCRIPTED), "--port", "{port}", "--name", "{name}")
            return {**common, "engine": "command", "command": command}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of one name; the second one's answers have no end."""
    folder = tmp_path_factory.mktemp("weights")
    make = [sys.executable, str(DEMO / "tiny_gguf.py")]
    subprocess.run([*make, folder / "m01.gguf", "--name", "m01"], check=True)
    subprocess.run([*make, folder / "loop.gguf", "--name", "m01", "--loop"], check=True)
    return folder


@asynccontextmanager
async def serving(tmp_path: Path, wanted: dict[str, Any]) -> AsyncIterator[Server]:
    async with bench(tmp_path) as room:
        await room.ready(1, **wanted)
        url = f"http://127.0.0.1:{room.port(1)}"
        # llama.cpp may close a connection after a stream: a pooled one would fail at its next use
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(60)) as http:
            yield Server(room, http, wanted)


@pytest.mark.parametrize("kind", KINDS)
async def test_it_says_its_name_and_counts_its_tokens(tmp_path: Path, weights: Path, kind: str) -> None:
    async with serving(tmp_path, options(kind, weights / "m01.gguf")) as server:
        body = await server.chat()
        assert body["choices"][0]["message"]["content"].strip().startswith("I am m01 .")
        usage = body["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0
        async with server.http.get("/v1/models") as answer:
            assert "m01" in [model["id"] for model in (await answer.json())["data"]]
        async with server.http.get("/metrics") as answer:
            assert answer.status == 200
        async with server.http.post("/v1/nowhere", json={}) as answer:
            assert answer.status == 404


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_is_events_then_usage_if_asked_for_then_done(tmp_path: Path, weights: Path, kind: str) -> None:
    async with serving(tmp_path, options(kind, weights / "m01.gguf")) as server:
        for asked in (True, False):
            asking = {"stream": True, "stream_options": {"include_usage": asked}}
            async with server.http.post("/v1/chat/completions", json={**CHAT, **asking}) as answer:
                assert answer.content_type == "text/event-stream"
                assert answer.headers["Transfer-Encoding"] == "chunked"
                events = [event for event in (await answer.text()).split("\n\n") if event]
            assert events[-1] == "data: [DONE]"
            chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
            text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
            assert text.strip().startswith("I am m01 .")
            with_usage = [chunk for chunk in chunks if chunk.get("usage")]
            assert with_usage == (chunks[-1:] if asked else [])
            assert all(chunk["choices"] == [] for chunk in with_usage)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_leaves_in_the_middle_does_no_harm(tmp_path: Path, weights: Path, kind: str) -> None:
    switches = {"vllm": ("--token-s", "0.01"), "scripted": ("--script", "interval=0.01")}.get(kind, ())
    async with serving(tmp_path, options(kind, weights / "loop.gguf", *switches)) as server:
        asking = {"stream": True, "max_tokens": 1_000}
        async with server.http.post("/v1/chat/completions", json={**CHAT, **asking}) as answer:
            await answer.content.readany()
        assert await server.chat()


@pytest.mark.parametrize("kind", KINDS)
async def test_idle_it_leaves_at_the_signal_with_status_0(tmp_path: Path, weights: Path, kind: str) -> None:
    async with serving(tmp_path, options(kind, weights / "m01.gguf")) as server:
        pid = server.room.pid(1)
        if kind == "llama":  # healthy some milliseconds before its signal handlers are in place
            await until(lambda: "ready" in "".join(server.room.instances.log_tail(InstanceId(1), 3)))
        os.kill(pid, signal.SIGTERM)
        exited = await server.room.fact(1, InstanceExited)
        assert exited.status == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_while_it_loads_it_is_not_healthy(tmp_path: Path, weights: Path, kind: str) -> None:
    delay = {"llama": "--delay", "vllm": "--load-s", "scripted": "--load-s"}[kind]
    wanted = options(kind, weights / "m01.gguf", delay, "0.5")
    async with bench(tmp_path) as room:
        room.start(1, **{**wanted, "warmup": Warmup.NONE})
        ready = await room.fact(1, InstanceReady)
        assert ready.at - room.facts[0].at > 400_000_000


@pytest.mark.parametrize("kind", ["vllm", "llama"])
async def test_a_missing_file_ends_it_with_status_1(tmp_path: Path, weights: Path, kind: str) -> None:
    async with bench(tmp_path) as room:
        room.start(1, **options(kind, weights / "gone.gguf"))
        failed = await room.fact(1, LoadFailed)
        assert failed.failure is LoadFailure.EXITED
        assert "m01 exited with status 1" in failed.detail


async def test_a_corrupt_file_ends_llama_with_status_1(tmp_path: Path, weights: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes((weights / "m01.gguf").read_bytes()[:100_000])
    async with bench(tmp_path) as room:
        room.start(1, **options("llama", cut))
        assert "m01 exited with status 1" in (await room.fact(1, LoadFailed)).detail


async def test_vllm_knows_its_names_and_no_other(tmp_path: Path, weights: Path) -> None:
    async with serving(tmp_path, options("vllm", weights / "m01.gguf")) as server:
        await server.chat(model="other")
        async with server.http.post("/v1/chat/completions", json={**CHAT, "model": "wrong"}) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["type"], error["param"]) == (404, "NotFoundError", "model")


async def test_vllm_lets_a_running_request_finish_within_its_shutdown_timeout(tmp_path: Path, weights: Path) -> None:
    async with serving(tmp_path, options("vllm", weights / "m01.gguf", "--token-s", "0.1")) as server:
        running = asyncio.ensure_future(server.chat())
        async with asyncio.timeout(DEADLINE_S):
            while 'num_requests_running{engine="0"} 1.0' not in await server.page("/metrics"):
                await asyncio.sleep(0.01)
        server.room.stop(1)
        assert (await running)["choices"][0]["finish_reason"] == "stop"
        await server.room.fact(1, EngineGone)


async def test_a_signal_that_vllm_loses_while_it_loads_is_made_good_by_the_kill(tmp_path: Path, weights: Path) -> None:
    async with bench(tmp_path) as room:
        room.start(1, **options("vllm", weights / "m01.gguf", "--load-s", "60"))
        await until(lambda: room.instances.log_tail(InstanceId(1), 1))
        room.stop(1)
        await room.fact(1, StopSignalled)
        # nothing happens when a signal is lost, so there is nothing to wait for but some time
        await asyncio.sleep(0.2)
        assert room.processes() != []
        room.kill(1)
        await room.fact(1, EngineGone)
        assert room.processes() == []


async def test_the_children_of_a_killed_vllm_hold_the_memory_until_they_are_gone_too(
    tmp_path: Path, weights: Path
) -> None:
    held = tmp_path / "gpu-memory"
    held.touch()

    def holders() -> list[int]:
        return [p.pid for p in psutil.process_iter() if any(f.path == str(held) for f in _files(p))]

    async with serving(tmp_path, options("vllm", weights / "m01.gguf", "--held", str(held))) as server:
        await until(lambda: len(holders()) == 2)
        os.kill(server.room.pid(1), signal.SIGKILL)
        await server.room.fact(1, InstanceExited)
        assert len(holders()) == 2
        server.room.stop(1)
        await server.room.fact(1, StopSignalled)
        server.room.kill(1)
        await server.room.fact(1, EngineGone)
        assert holders() == []


async def test_vllm_exits_with_status_0_after_the_death_of_its_engine_core(tmp_path: Path, weights: Path) -> None:
    async with serving(tmp_path, options("vllm", weights / "m01.gguf")) as server:
        core, *_ = psutil.Process(server.room.pid(1)).children()
        core.kill()
        exited = await server.room.fact(1, InstanceExited)
        assert exited.status == 0
        await server.room.stopped(1)


async def test_vllm_sleeps_healthy_and_answers_after_the_wake_up(tmp_path: Path, weights: Path) -> None:
    wanted = {**options("vllm", weights / "m01.gguf"), "env": {"VLLM_SERVER_DEV_MODE": "1"}}
    async with serving(tmp_path, wanted) as server:

        async def post(path: str) -> dict[str, Any]:
            async with server.http.post(path, json={"level": 2}) as answer:
                assert answer.status == 200
                body = await answer.json()
                assert isinstance(body, dict)
                return body

        assert await post("/sleep?mode=wait") == {"status": "sleeping", "level": 1}
        async with server.http.get("/health") as answer:
            assert answer.status == 200
        waiting = asyncio.ensure_future(server.chat())
        assert (await post("/wake_up?tags=weights"))["status"] == "sleeping"
        assert (await post("/wake_up?tags=weights"))["status"] == "sleeping"
        assert not waiting.done()
        assert (await post("/wake_up"))["status"] == "sleeping"  # a tag that is not asleep: nothing happens
        assert (await post("/wake_up?tags=kv_cache"))["status"] == "awake"
        assert (await waiting)["choices"][0]["finish_reason"] == "stop"


def _files(process: psutil.Process) -> list[Any]:
    try:
        return process.open_files()
    except psutil.Error:
        return []
