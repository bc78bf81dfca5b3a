"""A stop leaves nothing behind: no process, however it hid; no signal before its time; no fact told twice."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import psutil
import pytest

from swapd.core.events import EngineGone, InstanceExited, ProcessesGone, StageEntered, StopSignalled
from swapd.core.ids import InstanceId
from tests.fakes.engine_bench import SCRIPTED, bench, until

STOPPED = ["StopSignalled", "ProcessesGone", "EngineGone"]


async def test_an_idle_engine_stops_by_the_signal_alone(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.ready(1)
        room.stop(1)
        await room.fact(1, EngineGone)
        assert room.names(1)[-3:] == STOPPED
        assert room.instances.describe(InstanceId(1)) is None


async def test_an_engine_that_ignores_the_signal_lives_until_the_kill(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        pid = await room.ready(1, "--ignore-term")
        room.stop(1)
        await room.fact(1, StopSignalled)
        # nothing happens when a signal is ignored, so there is nothing to wait for but some time
        await asyncio.sleep(0.3)
        assert psutil.pid_exists(pid)
        room.kill(1)
        await room.fact(1, EngineGone)
        assert room.names(1)[-3:] == STOPPED
        assert not psutil.pid_exists(pid)
        await room.ready(2)


async def test_a_slow_leaver_gets_all_the_time_that_the_core_gives_it(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.ready(1, "--term-s", "1.0")
        child = room.instances._supervisors[InstanceId(1)].run.child
        room.stop(1)
        await room.fact(1, ProcessesGone)
        assert child is not None
        assert child.status == 0


async def test_a_frozen_engine_is_thawed_by_the_stop_and_killed_by_the_kill(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        os.kill(await room.ready(1), signal.SIGSTOP)
        room.stop(1)
        await room.fact(1, EngineGone)
        os.kill(await room.ready(2), signal.SIGSTOP)
        room.kill(2)
        await room.fact(2, EngineGone)


@pytest.mark.parametrize("order", ["stop", "kill"])
async def test_a_twice_forked_grandchild_in_its_own_session_does_not_survive(tmp_path: Path, order: str) -> None:
    async with bench(tmp_path) as room:
        await room.ready(1, "--stray")
        assert len(room.processes()) == 2
        getattr(room, order)(1)
        await room.fact(1, EngineGone)
        assert room.processes() == []


async def test_a_shell_that_waits_for_its_server_and_the_server_are_both_gone_after_a_stop(tmp_path: Path) -> None:
    script = f"'{sys.executable}' '{SCRIPTED}' --port {{port}} --name m01 & wait"
    async with bench(tmp_path) as room:
        await room.ready(1, command=("sh", "-c", script))
        assert len(room.processes()) == 2
        room.stop(1)
        await room.fact(1, EngineGone)
        assert room.processes() == []


async def test_workers_that_ignore_the_signal_are_killed_with_the_group(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.ready(1, "--worker")
        room.stop(1)
        await room.fact(1, StopSignalled)
        await until(lambda: len(room.processes()) == 1)
        assert room.seen(1, ProcessesGone) == []
        room.kill(1)
        await room.fact(1, EngineGone)


async def test_a_worker_left_by_a_stop_during_warm_up_is_killed_too(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        room.start(1, "--worker", "--script", "silent")
        await room.fact(1, StageEntered, nth=3)
        room.stop(1)
        await room.fact(1, StopSignalled)
        room.kill(1)
        await room.fact(1, EngineGone)
        assert room.processes() == []


async def test_a_leader_that_dies_while_its_children_live_is_an_exit_and_the_children_go_with_the_stop(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as room:
        pid = await room.ready(1, "--worker", "--say", "last words")
        os.kill(pid, signal.SIGKILL)
        exited = await room.fact(1, InstanceExited)
        assert exited.status == -signal.SIGKILL
        assert exited.detail.startswith("m01 was ended by SIGKILL after")
        assert "last words" in exited.detail
        assert len(room.processes()) == 1
        room.stop(1)
        await room.fact(1, StopSignalled)
        room.kill(1)
        await room.fact(1, EngineGone)


async def test_an_engine_that_dies_just_before_its_stop_is_cleaned_up_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        pid = await room.ready(1)
        os.kill(pid, signal.SIGKILL)
        room.stop(1)
        room.stop(1)
        room.kill(1)
        await room.fact(1, EngineGone)
        room.kill(1)
        names = room.names(1)
        assert (names.count("ProcessesGone"), names.count("EngineGone"), names.count("InstanceExited")) == (1, 1, 0)


async def test_no_signal_goes_out_while_the_stop_hook_runs(tmp_path: Path) -> None:
    go, rounds = tmp_path / "go", tmp_path / "rounds"
    hook = ("sh", "-c", f"while [ ! -e {go} ]; do echo x >> {rounds}; sleep 0.02; done")
    async with bench(tmp_path) as room:
        pid = await room.ready(1, stop_command=hook)
        room.stop(1)
        await until(lambda: rounds.exists() and rounds.read_text().count("x") >= 10)
        assert room.names(1)[-1] == "InstanceReady"
        assert psutil.Process(pid).is_running()
        go.touch()
        await room.fact(1, EngineGone)
        assert room.names(1)[-3:] == STOPPED


async def test_the_kill_does_not_wait_for_the_stop_hook(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    async with bench(tmp_path) as room:
        await room.ready(1, stop_command=("sh", "-c", f"echo $$ > {pid_file}; exec sleep 1000"))
        room.stop(1)
        await until(lambda: pid_file.exists() and pid_file.read_text())
        room.kill(1)
        await room.fact(1, EngineGone)
        assert room.names(1)[-3:] == ["InstanceReady", "ProcessesGone", "EngineGone"]
        await until(lambda: not psutil.pid_exists(int(pid_file.read_text())))


async def test_the_stop_hook_runs_on_every_way_out(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    hook = ("sh", "-c", f"echo {{port}} >> {ran}")
    async with bench(tmp_path) as room:
        await room.ready(1, stop_command=hook)
        await room.ready(2, stop_command=hook)
        await room.ready(3, stop_command=hook)
        ports = [room.port(instance) for instance in (1, 2, 3)]
        room.stop(1)
        await room.fact(1, EngineGone)
        room.kill(2)
        await room.fact(2, EngineGone)
    assert [int(line) for line in ran.read_text().split()] == ports


async def test_a_stop_hook_that_hangs_or_is_missing_does_not_stop_the_stop(tmp_path: Path) -> None:
    async with bench(tmp_path, hook_timeout=200_000_000) as room:
        await room.ready(1, stop_command=("sleep", "1000"))
        await room.ready(2, stop_command=("/nowhere/hook",))
        for instance in (1, 2):
            room.stop(instance)
            await room.fact(instance, EngineGone)


async def test_a_server_that_outlives_its_command_line_tool_is_noticed_and_its_memory_not_released(
    tmp_path: Path,
) -> None:
    """The tool runs in the foreground like a container's; the container is a server elsewhere."""
    container = socket.create_server(("127.0.0.1", 0))
    port = container.getsockname()[1]

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, sock=container)
    hooked = tmp_path / "hooked"
    async with bench(tmp_path) as room:
        room.give_port(port)
        tool = ("sh", "-c", "sleep 1000")
        await room.ready(1, command=tool, stop_command=("sh", "-c", f"echo x >> {hooked}"))
        room.stop(1)
        await room.fact(1, ProcessesGone)
        await until(lambda: hooked.exists() and hooked.read_text().count("x") == 2)
        assert room.seen(1, EngineGone) == []
        server.close()
        await server.wait_closed()
        await room.fact(1, EngineGone)


async def test_closing_in_order_gives_the_grace_and_then_kills(tmp_path: Path) -> None:
    async with bench(tmp_path, force=False) as room:
        await room.ready(1, stop_grace=200_000_000)
        await room.ready(2, "--ignore-term", "--stray", "--worker", stop_grace=200_000_000)
        room.start(3, "--health", "503", stop_grace=200_000_000)
        await room.fact(3, StageEntered, nth=2)
    assert room.names(1)[-1] == room.names(2)[-1] == room.names(3)[-1] == "EngineGone"


async def test_a_forced_close_overtakes_one_in_order(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.ready(1, "--ignore-term", stop_grace=3_600_000_000_000)
        patient = asyncio.ensure_future(room.instances.aclose())
        await room.fact(1, StopSignalled)
        await room.instances.aclose(force=True)
        await patient
        assert room.seen(1, EngineGone) != []


async def test_detached_engines_live_on(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        pid = await room.ready(1)
        await room.instances.detach()
        assert psutil.Process(pid).is_running()
        psutil.Process(pid).kill()
        psutil.Process(pid).wait(60)
        assert room.names(1)[-1] == "InstanceReady"
