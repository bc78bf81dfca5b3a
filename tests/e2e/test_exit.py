"""The daemon's end: readiness first, running answers to their end, engines after them, nothing left."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest
import yaml

from tests.fakes.daemon import chat, eventually, running, swapd_executable, until
from tests.fakes.scripted import process_of, scripted_model


@contextlib.contextmanager
def unread_log(config: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon whose standard error is a pipe that is full from the start."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    try:
        with subprocess.Popen([swapd_executable(), "serve", str(config)], stderr=writer) as process:
            yield process
            process.kill()
    finally:
        os.close(reader)
        os.close(writer)


async def test_an_open_stream_completes_after_the_listener_has_closed(tmp_path: Path) -> None:
    script = "chunks=40 interval=0.05"
    async with running(tmp_path, models={"a": scripted_model(script=script)}) as daemon, daemon.client() as http:
        async with http.post("/v1/chat/completions", json=chat("a", stream=True)) as stream:
            await stream.content.readany()
            daemon.process.send_signal(signal.SIGTERM)
            host, port = daemon.config["http"]["listen"].split(":")

            def refused() -> bool:
                with contextlib.closing(socket.socket()) as probe:
                    return probe.connect_ex((host, int(port))) != 0

            await until(refused, "the listener is closed")
            async with aiohttp.ClientSession() as ops, ops.get(f"{daemon.metrics_url}/readyz") as ready:
                assert ready.status == 503
                assert "exiting" in await ready.text()
            assert (await stream.content.read()).rstrip().endswith(b"data: [DONE]")
        assert await daemon.wait() == 0
        assert daemon.processes() == []


async def test_waiting_requests_are_refused_and_a_load_is_ended_when_the_daemon_exits(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model("--load-s", "600")}) as daemon, daemon.client() as http:
        waiting = asyncio.ensure_future(http.post("/v1/chat/completions", json=chat("a")))

        async def loading() -> bool:
            return bool((await daemon.status())["loads_running"])

        await eventually(loading, "the load has begun")
        daemon.process.send_signal(signal.SIGTERM)
        answer = await waiting
        assert answer.status == 503
        assert answer.headers["x-swapd-reason"] == "draining"
        assert await daemon.wait() == 0
        assert daemon.processes() == []


async def test_an_answer_that_outlasts_the_drain_timeout_is_broken_off_visibly_at_exit(tmp_path: Path) -> None:
    endless = scripted_model(script="endless interval=0.02", warmup="none")
    async with (
        running(tmp_path, models={"a": endless}, scheduling={"drain_timeout": "300ms"}) as daemon,
        daemon.client() as http,
    ):
        async with http.post("/v1/chat/completions", json=chat("a", stream=True)) as stream:
            await stream.content.readany()
            daemon.process.send_signal(signal.SIGTERM)
            with pytest.raises(aiohttp.ClientPayloadError):
                await stream.content.read()
        assert await daemon.wait() == 0


async def test_a_log_that_nobody_reads_does_not_hold_up_the_exit(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model()}) as first:
        config = {**first.config, "http": {"listen": "127.0.0.1:0"}, "metrics": {"listen": "127.0.0.1:0"}}
        config["state"] = {"path": str(tmp_path / "second.sqlite")}
        config["admin"] = {"socket": str(first.socket_path.with_name("second.sock"))}
        (tmp_path / "second.yaml").write_text(yaml.safe_dump(config))
        with unread_log(tmp_path / "second.yaml") as process:
            await until(Path(config["admin"]["socket"]).exists, "the second daemon serves")
            process.send_signal(signal.SIGTERM)
            await until(lambda: process.poll() is not None, "it ends although its log is stuck")


async def test_a_second_interrupt_kills_engines_that_take_their_time(tmp_path: Path) -> None:
    slow = scripted_model("--term-s", "600", stop={"grace": "10m"})
    async with running(tmp_path, models={"a": slow}) as daemon:
        await daemon.cli("load", "a")
        daemon.process.send_signal(signal.SIGINT)
        await until(lambda: "stopping" in daemon.log(), "the engine was asked to stop")
        assert await daemon.stop(signal.SIGINT) == 130
        assert daemon.processes() == []


async def test_a_forced_end_breaks_running_streams_visibly(tmp_path: Path) -> None:
    endless = scripted_model("--term-s", "600", script="endless interval=0.02", warmup="none", stop={"grace": "10m"})
    async with running(tmp_path, models={"a": endless}) as daemon, daemon.client() as http:
        async with http.post("/v1/chat/completions", json=chat("a", stream=True)) as stream:
            await stream.content.readany()
            daemon.process.send_signal(signal.SIGTERM)
            await until(lambda: "exiting" in daemon.log(), "the daemon has begun to leave")
            daemon.process.send_signal(signal.SIGTERM)
            received = b""
            with pytest.raises(aiohttp.ClientPayloadError):
                async for piece in stream.content.iter_any():
                    received += piece
        assert b'"upstream_failed"' in received.split(b"data: ")[-1]
        assert await daemon.wait() == 130
        assert daemon.processes() == []


async def test_engines_that_need_their_grace_are_not_killed_at_exit(tmp_path: Path) -> None:
    slow = scripted_model("--term-s", "1.5", stop={"grace": "60s"})
    async with running(tmp_path, models={"a": slow}) as daemon:
        await daemon.cli("load", "a")
        assert await daemon.stop() == 0
        assert "killing" not in daemon.log()


async def test_with_keep_the_engines_outlive_the_daemon(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model()}, engines={"on_exit": "keep"}) as daemon:
        await daemon.cli("load", "a")
        pid = (await process_of(daemon, "a"))["pid"]
        assert await daemon.stop() == 0
        assert psutil.Process(pid).is_running()
        os.killpg(pid, signal.SIGKILL)


async def test_a_port_in_use_is_one_sentence_and_status_one(tmp_path: Path) -> None:
    async with running(tmp_path, models={"a": scripted_model()}) as daemon:
        second = tmp_path / "second"
        second.mkdir()
        config = {**daemon.config, "admin": {"socket": str(second / "a.sock")}, "state": {"path": str(second / "s")}}
        config["metrics"] = {"listen": "127.0.0.1:0"}
        path = second / "swapd.yaml"
        path.write_text(yaml.safe_dump(config))
        process = await asyncio.create_subprocess_exec(
            swapd_executable(), "serve", str(path), stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
        assert process.returncode == 1
        assert f"http.listen: {daemon.config['http']['listen']} cannot be opened" in said.decode()
        assert "Traceback" not in said.decode()
