"""Out of descriptors, disk or luck with a log file: no process is lost, and the sentence names the cause."""

import asyncio
import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from swapd.core.events import EngineGone, LoadFailed, ProcessesGone, StopSignalled
from swapd.core.ids import SECOND, InstanceId
from swapd.core.moves import HOOK_ALLOWANCE
from swapd.core.reasons import LoadFailure
from swapd.instances import InstanceSettings
from swapd.instances.launch import Child
from swapd.instances.output import Output, existing_log
from swapd.instances.processes import mark_of, read
from tests.fakes.counted import Counted
from tests.fakes.engine_bench import bench, until


@contextmanager
def out_of_descriptors() -> Iterator[None]:
    """Let this process open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def no_descriptors() -> OSError:
    return OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_a_process_that_cannot_be_looked_at_is_not_taken_for_gone() -> None:
    with out_of_descriptors():
        with pytest.raises(OSError, match="Too many open files"):
            read(os.getpid())
        with pytest.raises(OSError, match="Too many open files"):
            mark_of(os.getpid())


@pytest.mark.parametrize("killed", [False, True])
async def test_without_descriptors_a_stop_goes_on_until_it_can_see_that_nobody_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    async with bench(tmp_path) as room:
        await room.ready(1, "--stray")
        family = room.instances._supervisors[InstanceId(1)].run.family
        assert family is not None
        looks = Counted(family.members)
        monkeypatch.setattr(family, "members", looks)
        with out_of_descriptors():
            room.stop(1)
            await room.fact(1, StopSignalled)
            await looks.more(3)
            if killed:
                room.kill(1)
                await looks.more(3)
            assert room.seen(1, ProcessesGone) == []
        if not killed:
            room.kill(1)
        await room.fact(1, EngineGone)
        assert room.processes() == []


async def test_strays_that_could_not_be_signalled_get_the_stop_signal_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True
    sound = os.pidfd_open

    def pidfd_open(pid: int, flags: int = 0) -> int:
        if full:
            raise no_descriptors()
        return sound(pid, flags)

    async with bench(tmp_path) as room:
        room.start(1, command=("sh", "-c", "sleep 1000 & exec sleep 1000"))
        run = room.instances._supervisors[InstanceId(1)].run
        await until(lambda: len(room.processes()) == 2)
        assert run.family is not None
        monkeypatch.setattr(os, "pidfd_open", pidfd_open)
        looks = Counted(run.family.members)
        monkeypatch.setattr(run.family, "members", looks)
        room.stop(1)
        await looks.more(3)
        assert room.seen(1, ProcessesGone) == []
        full = False
        await room.fact(1, EngineGone)


@pytest.mark.parametrize("broken", ["pidfd_open", "add_reader"])
async def test_a_process_whose_end_cannot_be_noticed_does_not_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    started: list[int] = []
    loop = asyncio.get_running_loop()
    sound_open, sound_add = os.pidfd_open, loop.add_reader

    def pidfd_open(pid: int, flags: int = 0) -> int:
        started.append(pid)
        if broken == "pidfd_open":
            raise no_descriptors()
        return sound_open(pid, flags)

    def add_reader(descriptor: int, callback: Callable[[], object]) -> None:
        if broken == "add_reader" and isinstance(getattr(callback, "__self__", None), Child):
            raise no_descriptors()
        sound_add(descriptor, callback)

    async with bench(tmp_path) as room:
        with monkeypatch.context() as patched:
            patched.setattr(os, "pidfd_open", pidfd_open)
            patched.setattr(loop, "add_reader", add_reader)
            room.start(1, command=("sh", "-c", "sleep 1000 & exec sleep 1000"))
            failed = await room.fact(1, LoadFailed)
        assert (failed.failure, failed.permanent) == (LoadFailure.SPAWN, False)
        assert failed.detail == "m01 could not be started: sh: Too many open files"
        await until(lambda: room.processes() == [])
        assert not psutil.pid_exists(started[0])


@pytest.mark.parametrize(
    ("at", "folder", "words"),
    [("logs", False, "File exists"), ("logs/m01.log", True, "Is a directory")],
)
async def test_a_log_file_that_cannot_be_written_is_named_and_may_be_mended(
    tmp_path: Path, at: str, folder: bool, words: str
) -> None:
    obstacle = tmp_path / at
    obstacle.parent.mkdir(exist_ok=True)
    obstacle.mkdir() if folder else obstacle.touch()
    async with bench(tmp_path) as room:
        room.start(1)
        failed = await room.fact(1, LoadFailed)
        log = tmp_path / "logs" / "m01.log"
        assert (failed.failure, failed.permanent) == (LoadFailure.SPAWN, False)
        assert failed.detail == f"m01 could not be started: its log file {log} cannot be written: {words}"


async def test_a_log_that_may_not_be_written_is_not_held_against_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = os.open

    def forbidden(path: Any, *rest: int) -> int:
        if str(path).endswith("m01.log"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return sound(path, *rest)

    async with bench(tmp_path) as room:
        monkeypatch.setattr(os, "open", forbidden)
        room.start(1)
        failed = await room.fact(1, LoadFailed)
        assert not failed.permanent
        assert failed.detail.endswith("m01.log cannot be written: Permission denied")


async def test_a_full_disk_of_the_log_is_named_beside_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swapd.instances.output.shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    async with bench(tmp_path) as room:
        room.start(1, "--health", "503", "--exit-after-s", "0.2", "--exit-status", "7")
        failed = await room.fact(1, LoadFailed)
    assert "m01.log is full; " in failed.detail


def test_the_log_of_a_model_that_never_was_started_is_not_named(tmp_path: Path) -> None:
    output = Output(tmp_path, "m01", limit=100)
    output.begin()
    with output.writable():
        pass
    assert [existing_log(tmp_path, model) for model in ("m01", "m02")] == [str(output.path), None]


def test_a_log_that_cannot_be_looked_for_is_not_named(tmp_path: Path) -> None:
    assert existing_log(tmp_path / ("x" * 300), "m01") is None


def test_the_longest_names_have_log_files_of_their_own(tmp_path: Path) -> None:
    names = ["é" * 255 + last for last in "ab"] + ["m" * 200]
    outputs = [Output(tmp_path, name, limit=10) for name in names]
    for output, text in zip(outputs, (b"a", b"b", b"c"), strict=True):
        output.begin()
        with output.writable() as descriptor:
            os.write(descriptor, text * 20)
        assert output.fresh() == text * 20
    assert len(list(tmp_path.iterdir())) == 6
    assert outputs[2].path.name == "m" * 200 + ".log"


def test_a_log_that_cannot_be_copied_aside_is_emptied_and_read_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "m.log.1").mkdir()
    output = Output(tmp_path, "m", limit=100)
    output.begin()
    with output.writable() as descriptor:
        os.write(descriptor, b"a\n" * 60)
        assert output.fresh() == b"a\n" * 60
        assert output.path.stat().st_size == 0
        os.write(descriptor, b"b\n")
        assert output.fresh() == b"b\n"
    assert output.tail(3) == ("b",)


def test_half_a_copy_is_not_left_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("swapd.instances.output.shutil.copyfile", full)
    output = Output(tmp_path, "m", limit=100)
    output.begin()
    output.path.write_bytes(b"a\n" * 60)
    assert output.fresh() == b"a\n" * 60
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("m.log", 0)]


def test_a_stop_hook_is_given_up_before_the_core_gives_up_the_stop(tmp_path: Path) -> None:
    assert InstanceSettings(log_dir=tmp_path).hook_timeout <= HOOK_ALLOWANCE - SECOND
