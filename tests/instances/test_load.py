"""A load is answered once: ready when a real answer came back, or failed with the reason and the log's last lines."""

import asyncio
import contextlib
import socket
import sys
from pathlib import Path

import pytest

from swapd.core.events import (
    EngineGone,
    Event,
    InstanceReady,
    LoadFailed,
    LoadProgressed,
    ProcessesGone,
    StageEntered,
)
from swapd.core.ids import InstanceId, seconds
from swapd.core.reasons import LoadFailure, Stage
from swapd.engines.base import EngineError, EnginePlan, Warmup, WarmupRequest
from swapd.instances import probe, warm
from swapd.instances.http import UnreachableError, request
from tests.fakes.counted import Counted
from tests.fakes.engine_bench import DEADLINE_S, bench, until


async def test_a_load_goes_through_its_stages_to_ready(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        room.start(1)
        await room.fact(1, InstanceReady)
        assert [fact.stage for fact in room.seen(1, StageEntered)] == [Stage.SPAWN, Stage.LOAD, Stage.WARMUP]
        assert room.names(1)[-1] == "InstanceReady"
        view = room.instances.describe(InstanceId(1))
        assert view is not None
        assert (view.pid, view.port) == (room.pid(1), room.port(1))


async def test_an_exit_during_the_load_fails_it_with_status_and_last_log_lines(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        room.start(1, "--health", "503", "--exit-after-s", "0.2", "--exit-status", "7", "--say", "CUDA out of memory")
        failed = await room.fact(1, LoadFailed)
        assert failed.failure is LoadFailure.EXITED
        assert "m01 exited with status 7 after" in failed.detail
        assert "CUDA out of memory" in failed.detail
        assert not failed.permanent
        room.stop(1)
        await room.fact(1, ProcessesGone)
        assert room.names(1)[2:] == ["LoadFailed", "StopSignalled", "ProcessesGone", "EngineGone"]


async def answering(port: int) -> None:
    """Wait until the server answers, whatever its health."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(UnreachableError):
                await request("127.0.0.1", port, method="GET", path="/__ping")
                return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("health", ["503", "hang"])
async def test_a_server_that_never_turns_healthy_is_probed_until_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, health: str
) -> None:
    probes = Counted(probe.problem)
    monkeypatch.setattr(probe, "problem", probes)
    async with bench(tmp_path) as room:
        room.start(1, "--health", health, health_timeout=20_000_000)
        await until(lambda: room.instances.endpoint(InstanceId(1)))
        await answering(room.port(1))
        await probes.more(5)
        await room.stopped(1)
        assert room.names(1) == ["StageEntered"] * 2 + ["StopSignalled", "ProcessesGone", "EngineGone"]


async def test_health_that_is_green_before_inference_works_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Counted(warm.request)
    monkeypatch.setattr(warm, "request", asked)
    async with bench(tmp_path, warmup_patience=seconds(DEADLINE_S)) as room:
        room.start(1, "--green-early", "3")
        await room.fact(1, InstanceReady)
        assert room.seen(1, StageEntered)[-1].stage is Stage.WARMUP
        assert asked.calls == 4


async def test_a_warmup_that_keeps_failing_fails_the_load_with_its_answer(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        room.start(1, "--script", "status=500")
        failed = await room.fact(1, LoadFailed)
        assert failed.failure is LoadFailure.WARMUP
        assert "POST /v1/chat/completions with 500" in failed.detail
        assert "as scripted" in failed.detail


async def test_a_warmup_written_by_hand_must_succeed_as_it_is(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        room.start(1, warmup=WarmupRequest("/v1/embeddings", b'{"input": "x"}'))
        await room.fact(1, InstanceReady)
        room.start(2, warmup=WarmupRequest("/nowhere", b"{}"))
        failed = await room.fact(2, LoadFailed)
        assert (failed.failure, "with 404" in failed.detail) == (LoadFailure.WARMUP, True)


@pytest.mark.parametrize(("warmup", "script"), [(Warmup.AUTO, "status=404"), (Warmup.NONE, "silent")])
async def test_without_a_known_route_or_by_choice_health_alone_counts(
    tmp_path: Path, warmup: Warmup, script: str
) -> None:
    async with bench(tmp_path) as room:
        room.start(1, "--script", script, warmup=warmup)
        await room.fact(1, InstanceReady)


async def test_a_port_that_opens_late_is_no_failure(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        room.start(1, "--load-s", "1.3", "--load-closed")
        await room.fact(1, InstanceReady)


async def test_a_talking_load_makes_progress_and_a_silent_one_that_is_only_probed_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path) as room:
        room.start(1, "--health", "503", "--load-s", "60", "--load-talk")
        await room.fact(1, LoadProgressed, nth=3)
        room.start(2, "--health", "503")
        await until(lambda: room.instances.endpoint(InstanceId(2)))
        await answering(room.port(2))
        output = room.instances._supervisors[InstanceId(2)].run.output
        looks = Counted(output.fresh)
        monkeypatch.setattr(output, "fresh", looks)
        await looks.more(6)  # what its start has read counts as progress
        before = len(room.seen(2, LoadProgressed))
        await looks.more(10)
        assert len(room.seen(2, LoadProgressed)) == before


async def test_a_missing_program_can_never_start(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        room.start(1, command=("/nowhere/engine", "--port", "{port}"))
        failed = await room.fact(1, LoadFailed)
        assert (failed.failure, failed.permanent) == (LoadFailure.SPAWN, True)
        assert failed.detail == "m01 could not be started: /nowhere/engine is not there (not found on PATH)"
        room.stop(1)
        await room.fact(1, ProcessesGone)


async def test_a_missing_working_directory_is_named(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        room.start(1, cwd=str(tmp_path / "gone"))
        failed = await room.fact(1, LoadFailed)
        assert failed.permanent
        assert "working directory" in failed.detail


async def test_options_that_make_no_plan_fail_the_load_for_good(tmp_path: Path) -> None:
    def no_plan(_port: int) -> EnginePlan:
        raise EngineError("model m01 needs weights")

    async with bench(tmp_path) as room:
        room.order(1, "m01", no_plan)
        failed = await room.fact(1, LoadFailed)
        assert (failed.permanent, failed.detail) == (True, "m01 could not be started: model m01 needs weights")


async def test_an_unforeseen_error_still_answers_the_order(tmp_path: Path) -> None:
    def broken(_port: int) -> EnginePlan:
        raise KeyError("surprise")

    async with bench(tmp_path) as room:
        room.order(1, "m01", broken)
        failed = await room.fact(1, LoadFailed)
        assert "KeyError('surprise')" in failed.detail
        await until(lambda: room.errors)
        room.errors.clear()


async def test_no_free_port_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        async with bench(tmp_path, first_port=port, last_port=port) as room:
            room.start(1)
            failed = await room.fact(1, LoadFailed)
            assert "every port of engines.ports is in use" in failed.detail


async def test_a_foreign_server_on_the_port_is_not_taken_for_the_engine(tmp_path: Path) -> None:
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 0))
        foreign.listen()
        port = foreign.getsockname()[1]

        async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(answer, sock=foreign), bench(tmp_path) as room:
            # the engine listens elsewhere, while swapd looks at the foreign server's port
            command = (sys.executable, "-c", "import time; time.sleep(1000)")
            room.start(1, command=command)
            await until(lambda: room.instances.endpoint(InstanceId(1)))
            room.kill(1)
            await room.fact(1, ProcessesGone)
            room.give_port(port)
            room.start(2, command=command)
            failed = await room.fact(2, LoadFailed)
            assert failed.failure is LoadFailure.FOREIGN_SERVER
            room.kill(2)
            await room.fact(2, EngineGone)


async def test_a_start_script_that_backgrounds_the_server_fails_clearly_and_leaves_no_orphan(tmp_path: Path) -> None:
    server = "setsid sleep 1000 & exit 0"
    async with bench(tmp_path) as room:
        room.start(1, command=("sh", "-c", server))
        failed = await room.fact(1, LoadFailed)
        assert failed.failure is LoadFailure.EXITED
        assert "must stay in the foreground" in failed.detail
        room.stop(1)
        await room.fact(1, ProcessesGone)
        assert room.processes() == []


async def test_a_stop_during_the_load_ends_it_without_a_failure(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        room.start(1, "--load-s", "100")
        await room.stopped(1)
        assert room.names(1) == ["StopSignalled", "ProcessesGone", "EngineGone"]


@pytest.mark.parametrize("stage", [1, 2, 3])
async def test_the_stop_may_be_ordered_while_a_fact_is_being_told(tmp_path: Path, stage: int) -> None:
    async with bench(tmp_path) as room:

        def stop(event: Event) -> None:
            if isinstance(event, StageEntered) and len(room.seen(1, StageEntered)) == stage:
                room.stop(1)

        room.on_fact = stop
        room.start(1)
        await room.fact(1, EngineGone)
        assert room.names(1) == ["StageEntered"] * stage + ["StopSignalled", "ProcessesGone", "EngineGone"]
