"""A ready engine that stops answering is noticed; a check tells the truth; an external server needs no process."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from swapd.core.events import (
    EngineGone,
    Event,
    InstanceExited,
    InstanceHealthy,
    InstanceReady,
    InstanceUnhealthy,
    LoadFailed,
    ProcessesGone,
)
from swapd.core.ids import InstanceId
from swapd.core.reasons import LoadFailure
from swapd.instances import stop, watch
from swapd.instances.http import NotAskedError
from tests.fakes.counted import Counted
from tests.fakes.engine_bench import SCRIPTED, bench, until

SOON = 50_000_000


def busy(what: str) -> list[str]:
    """Return the tasks of instances that do this."""
    return [name for task in asyncio.all_tasks() if (name := task.get_name()).startswith(f"{what} m")]


async def test_a_frozen_engine_is_reported_by_the_watch_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        pid = await room.ready(1, health_timeout=SOON)
        os.kill(pid, signal.SIGSTOP)
        unhealthy = await room.fact(1, InstanceUnhealthy)
        assert unhealthy.detail == "m01 did not answer GET /health within 0.05 s, 3 times in a row"
        await until(lambda: not busy("watch"))
        assert len(room.seen(1, InstanceUnhealthy)) == 1


async def test_one_late_answer_is_no_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probes = Counted(watch.problem)
    monkeypatch.setattr(watch, "problem", probes)
    async with bench(tmp_path, watch_failures=1_000) as room:
        pid = await room.ready(1, health_timeout=SOON)
        os.kill(pid, signal.SIGSTOP)
        await probes.more(3)
        os.kill(pid, signal.SIGCONT)
        room.instances.check(InstanceId(1))
        await room.fact(1, InstanceHealthy)
        assert room.seen(1, InstanceUnhealthy) == []


async def test_a_question_that_could_not_be_asked_is_held_against_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def out_of_descriptors(*_probe: object) -> str | None:
        nonlocal asked
        asked += 1
        raise NotAskedError("Too many open files")

    async with bench(tmp_path) as room:
        await room.ready(1)
        monkeypatch.setattr("swapd.instances.watch.problem", out_of_descriptors)
        await until(lambda: asked > 5)
        assert room.seen(1, InstanceUnhealthy) == []
        room.instances.check(InstanceId(1))
        await room.fact(1, InstanceHealthy)


async def test_only_failures_in_a_row_are_an_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([*("late", "late", None) * 3, "late", "late", "late"])

    async def scripted(*_probe: object) -> str | None:
        return next(answers, None)

    async with bench(tmp_path) as room:
        monkeypatch.setattr("swapd.instances.watch.problem", scripted)
        await room.ready(1)
        await room.fact(1, InstanceUnhealthy)
        assert next(answers, "used up") == "used up"


async def test_a_check_finds_a_frozen_engine(tmp_path: Path) -> None:
    async with bench(tmp_path, watch_failures=1_000) as room:
        pid = await room.ready(1, health_timeout=SOON)
        os.kill(pid, signal.SIGSTOP)
        room.instances.check(InstanceId(1))
        assert (await room.fact(1, InstanceUnhealthy)).detail == "m01 did not answer GET /health within 0.05 s"


async def test_a_check_of_an_engine_that_dies_is_answered_by_its_exit_alone(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        pid = await room.ready(1)
        room.instances.check(InstanceId(1))
        os.kill(pid, signal.SIGKILL)
        await room.fact(1, InstanceExited)
        await until(lambda: not busy("check"))
        answers = [name for name in room.names(1) if name not in {"StageEntered", "InstanceReady"}]
        assert answers in (["InstanceExited"], ["InstanceHealthy", "InstanceExited"])
        room.instances.check(InstanceId(1))
        assert not busy("check")
        assert room.names(1)[-1] == "InstanceExited"


async def test_the_kill_ordered_while_the_exit_is_being_told_ends_it(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:

        def kill(event: Event) -> None:
            if isinstance(event, InstanceExited):
                room.kill(1)

        room.on_fact = kill
        pid = await room.ready(1, "--worker")
        os.kill(pid, signal.SIGKILL)
        await room.fact(1, EngineGone)


async def test_orders_about_nobody_are_ignored(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        for order in (room.instances.stop, room.instances.kill, room.instances.check):
            order(InstanceId(99))
        assert room.instances.endpoint(InstanceId(99)) is None
        assert room.instances.log_tail(InstanceId(99), 5) == ()
        assert room.facts == []


async def test_an_external_server_is_started_and_stopped_by_hooks_and_never_signalled(tmp_path: Path) -> None:
    """The start hook leaves a server behind that is none of our children; the stop hook ends it by its pid file."""
    pid_file = tmp_path / "pid"
    start = f"'{sys.executable}' '{SCRIPTED}' --port {{port}} --name ext & echo $! > {pid_file}"
    end = f"kill $(cat {pid_file})"
    async with bench(tmp_path) as room:
        pid = await room.ready(
            1,
            engine="external",
            url="http://127.0.0.1:{port}",
            command=("sh", "-c", start),
            stop_command=("sh", "-c", end),
        )
        assert pid == 0
        server = psutil.Process(int(pid_file.read_text()))
        room.instances.check(InstanceId(1))
        await room.fact(1, InstanceHealthy)
        await room.stopped(1)
        await until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)
        assert room.names(1)[-3:] == ["StopSignalled", "ProcessesGone", "EngineGone"]


async def test_an_external_server_without_hooks_runs_on_and_keeps_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Counted(stop.accepts)
    monkeypatch.setattr(stop, "accepts", looks)
    async with bench(tmp_path) as room:
        port = room.instances._room.ports.take()
        command = [sys.executable, str(SCRIPTED), "--port", str(port)]
        with subprocess.Popen(command) as server:  # noqa: ASYNC220 - a server that is not ours
            await room.ready(1, engine="external", url=f"http://127.0.0.1:{port}", command=())
            room.stop(1)
            await room.fact(1, ProcessesGone)
            await looks.more(2)
            assert room.seen(1, EngineGone) == []
            assert server.poll() is None
            server.kill()
            await room.fact(1, EngineGone)


async def test_a_start_hook_that_fails_fails_the_load(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        hook = ("sh", "-c", "echo no such unit; exit 4")
        room.start(1, engine="external", url="http://127.0.0.1:9", command=hook)
        failed = await room.fact(1, LoadFailed)
        assert failed.failure is LoadFailure.EXITED
        assert "the start command of m01 exited with status 4" in failed.detail
        assert failed.detail.endswith("no such unit")


async def test_the_log_can_be_read_while_it_runs(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.ready(1, "--say", "one", "--say", "two", "--say", "three")
        assert room.instances.log_tail(InstanceId(1), 2) == ("two", "three")
        view = room.instances.describe(InstanceId(1))
        assert view is not None
        assert view.log.read_text().startswith("one\n")


async def test_two_loads_of_a_model_share_a_log_but_not_its_last_lines(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.ready(1, "--say", "first run", name="same")
        await room.stopped(1)
        await room.ready(2, "--say", "second run", name="same")
        assert room.instances.log_tail(InstanceId(2), 9) == ("second run",)
        assert (tmp_path / "logs" / "same.log").read_text() == "first run\nsecond run\n"


async def test_a_log_stays_bounded_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk = "import sys, time\nwhile True: print('x' * 1000, flush=True); time.sleep(0.001)"
    async with bench(tmp_path, log_bytes=20_000) as room:
        room.start(1, command=(sys.executable, "-c", talk))
        older = tmp_path / "logs" / "m01.log.1"
        await until(older.exists)
        output = room.instances._supervisors[InstanceId(1)].run.output
        looks = Counted(output.fresh)
        monkeypatch.setattr(output, "fresh", looks)
        await looks.more(10)
        assert (tmp_path / "logs" / "m01.log").stat().st_size < 2_000_000
        assert room.instances.log_tail(InstanceId(1), 3) == ("x" * 1000,) * 3
        await room.stopped(1)
        assert room.seen(1, InstanceReady) == []


async def test_a_daemon_reaps_dead_descendants_that_it_never_started(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    orphan = f"(setsid sh -c 'echo $$ > {marker}' &) ; exec sleep 1000"
    async with bench(tmp_path, sweep_period=SOON) as room:
        room.start(1, command=("sh", "-c", orphan))
        await until(lambda: marker.exists() and marker.read_text().strip())
        pid = int(marker.read_text())
        await until(lambda: not psutil.pid_exists(pid))


async def test_nothing_starts_after_the_close(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.instances.aclose()
        room.start(1)
        await asyncio.sleep(0)
        assert room.facts == []
