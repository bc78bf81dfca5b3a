"""Noticing changes of the file: every way it can change, once per burst, and never an end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from swapd.aio.supervise import Tasks
from swapd.config import watch
from swapd.config.watch import Pace, changes

#: fast enough for a test, slow enough for a busy machine
PACE = Pace(poll=0.2, settle=0.15, patience=2.0, retry=0.05, retry_most=0.1)
PATIENCE_S = 60.0


class Watched:
    """Counts the changes reported for a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stop = asyncio.Event()
        self.errors: list[Exception] = []
        self.seen: asyncio.Queue[None] = asyncio.Queue()
        self.ended = asyncio.Event()

    async def run(self, pace: Pace = PACE) -> None:
        async for _ in changes(self.path, self.stop, on_error=self.errors.append, pace=pace):
            self.seen.put_nowait(None)
        self.ended.set()

    async def one(self) -> None:
        """Wait for a change."""
        async with asyncio.timeout(PATIENCE_S):
            await self.seen.get()

    async def quiet(self) -> bool:
        """Say whether no further change is reported for as long as several looks take."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5 * (PACE.poll + PACE.settle)):
                await self.seen.get()
                return False
        return True


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    owner = Tasks()
    yield owner
    await owner.aclose()


@pytest.fixture
async def watched(tmp_path: Path, tasks: Tasks) -> AsyncIterator[Watched]:
    (tmp_path / "etc").mkdir()
    path = tmp_path / "etc" / "swapd.yaml"
    path.write_text("first\n")
    one = Watched(path)
    _ = tasks.start(one.run(), name="watch")
    await asyncio.sleep(0)
    yield one
    one.stop.set()
    async with asyncio.timeout(PATIENCE_S):
        await one.ended.wait()


def replace(path: Path, text: str) -> None:
    draft = path.with_name("draft")
    draft.write_text(text)
    draft.replace(path)


async def test_a_write_in_place_is_noticed(watched: Watched) -> None:
    watched.path.write_text("second\n")
    await watched.one()


async def test_a_replacement_by_rename_is_noticed_each_time(watched: Watched) -> None:
    for text in ("second", "third!", "fourth"):
        replace(watched.path, text)
        await watched.one()


async def test_twenty_writes_in_a_burst_are_one_change(watched: Watched) -> None:
    for number in range(20):
        watched.path.write_text("x" * (number + 1))
        await asyncio.sleep(0.02)
    await watched.one()
    assert await watched.quiet()


async def test_a_file_that_goes_away_and_comes_back_is_noticed(watched: Watched) -> None:
    watched.path.unlink()
    await watched.one()
    watched.path.write_text("back\n")
    await watched.one()


async def test_another_file_in_the_directory_is_no_change(watched: Watched) -> None:
    (watched.path.parent / "other.yaml").write_text("x")
    assert await watched.quiet()


async def test_a_configmap_that_swaps_its_symlink_is_noticed(tmp_path: Path, tasks: Tasks) -> None:
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "swapd.yaml").write_text("same content\n")
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "swapd.yaml").symlink_to("..data/swapd.yaml")
    one = Watched(tmp_path / "swapd.yaml")
    _ = tasks.start(one.run(), name="watch")
    await asyncio.sleep(0)
    (tmp_path / "..data_tmp").symlink_to("v2")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    await one.one()


async def test_a_directory_that_is_replaced_as_a_whole_is_watched_on(watched: Watched) -> None:
    old = watched.path.parent
    old.rename(old.with_name("old"))
    old.mkdir()
    watched.path.write_text("in the new directory\n")
    await watched.one()
    await watched.quiet()
    replace(watched.path, "and again")
    await watched.one()


async def test_a_directory_that_does_not_exist_yet_is_waited_for(tmp_path: Path, tasks: Tasks) -> None:
    one = Watched(tmp_path / "later" / "swapd.yaml")
    _ = tasks.start(one.run(), name="watch")
    async with asyncio.timeout(PATIENCE_S):
        while not one.errors:
            await asyncio.sleep(0.01)
    one.path.parent.mkdir()
    one.path.write_text("here\n")
    await one.one()


async def test_without_events_from_the_kernel_the_file_is_looked_at(
    tmp_path: Path, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> AsyncIterator[object]:
        raise OSError("no inotify watches left")
        yield

    monkeypatch.setattr(watch, "watched", broken)
    one = Watched(tmp_path / "swapd.yaml")
    _ = tasks.start(one.run(), name="watch")
    await asyncio.sleep(0)
    one.path.write_text("here\n")
    await one.one()
    assert "no inotify watches left" in str(one.errors[0])


async def test_the_kernels_events_alone_are_enough(tmp_path: Path, tasks: Tasks) -> None:
    one = Watched(tmp_path / "swapd.yaml")
    task = tasks.start(one.run(replace_poll(10 * PATIENCE_S)), name="watch")
    number = 0
    async with asyncio.timeout(PATIENCE_S):
        while one.seen.empty():
            # the first writes may come before the kernel has been asked; a burst must end to be reported
            number += 1
            one.path.write_text("x" * number)
            await asyncio.sleep(2 * PACE.settle)
    task.cancel()


async def test_a_cancelled_watch_leaves_the_callers_event_alone(
    tmp_path: Path, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, watched = asyncio.Event(), watch.watched

    def begin(*args: Any, **options: Any) -> AsyncIterator[object]:
        begun.set()
        return watched(*args, **options)

    monkeypatch.setattr(watch, "watched", begin)
    one = Watched(tmp_path / "swapd.yaml")
    task = tasks.start(one.run(), name="watch")
    await begun.wait()
    task.cancel()
    await asyncio.wait([task])
    assert not one.stop.is_set()


def replace_poll(seconds: float) -> Pace:
    return Pace(poll=seconds, settle=PACE.settle, patience=PACE.patience, retry=PACE.retry, retry_most=PACE.retry_most)


def test_the_reported_name_of_a_version_tells_two_files_apart(write: Callable[[str], Path]) -> None:
    path = write("one")
    first = watch.fingerprint(path)
    replace(path, path.read_text())
    assert watch.fingerprint(path) != first
    path.unlink()
    assert watch.fingerprint(path) is None
