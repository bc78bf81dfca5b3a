"""When the cache's folder is opened, and models whose files lie outside of it."""

import asyncio
import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest
from typing_extensions import override

from swapd.aio.threads import StoppedError
from swapd.core.events import FetchFailed, WeightsCached, WeightsFetched, WeightsWarmed
from swapd.core.reasons import FetchFailure
from swapd.weights import Weights, ahead
from swapd.weights.inventory import Layout
from swapd.weights.page_cache import Warming, Warmth
from tests.weights.caches import MIB, M, N, Running, noise, running


@pytest.fixture
def source(tmp_path: Path) -> Weights:
    (tmp_path / "m.gguf").write_bytes(noise(MIB))
    return Weights(f"file://{tmp_path}/m.gguf")


async def warmed(run: Running) -> WeightsWarmed:
    since = len(run.facts)
    run.cache.warm(M)
    return await run.until(WeightsWarmed, M, since=since)


async def test_as_long_as_no_model_has_a_source_there_is_no_folder_and_nobody_watches(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    async with running(path) as run:
        assert [fact.cached for fact in run.facts if isinstance(fact, WeightsCached)] == [{}]
        assert len(run.cache._tasks) == 0
        assert not (await warmed(run)).whole
        assert (run.cache.stats().used, run.cache.copies(), path.exists()) == (0, (), False)


async def test_a_cache_that_gets_its_first_model_later_is_opened_then(tmp_path: Path, source: Weights) -> None:
    async with running(tmp_path / "cache", {M: source}) as earlier:
        await earlier.fetch()
    async with running(tmp_path / "cache") as run:
        run.cache.serve({M: source})
        await run.until_cached({M: MIB})


async def test_a_fetch_ordered_before_anybody_has_looked_finds_what_is_there(tmp_path: Path, source: Weights) -> None:
    async with running(tmp_path / "cache", {M: source}) as earlier:
        await earlier.fetch()
    async with running(tmp_path / "cache") as run:
        run.cache.serve({M: source})
        answer = await run.fetch()
        assert isinstance(answer, WeightsFetched)
        assert (answer.fetched, run.cached) == (0, {M: MIB})


async def test_nothing_is_told_of_a_folder_before_it_was_looked_at(tmp_path: Path, source: Weights) -> None:
    async with running(tmp_path / "cache", {M: source}) as earlier:
        await earlier.fetch()
    async with running(tmp_path / "cache", {M: source}) as run:
        assert [fact.cached for fact in run.facts if isinstance(fact, WeightsCached)] == [{M: MIB}]


async def test_a_folder_that_cannot_be_made_fails_the_start_or_later_the_fetch_until_it_can(
    tmp_path: Path, source: Weights
) -> None:
    path = tmp_path / "file" / "cache"
    path.parent.touch()
    with pytest.raises(NotADirectoryError):
        async with running(path, {M: source}):
            pass
    async with running(path) as run:
        run.cache.serve({M: source})
        answer = await run.fetch()
        assert isinstance(answer, FetchFailed)
        assert (answer.failure, os.strerror(errno.ENOTDIR) in answer.detail) == (FetchFailure.DISK, True)
        path.parent.unlink()
        assert isinstance(await run.fetch(), WeightsFetched)


async def test_a_folder_that_was_deleted_while_it_was_used_is_made_again(tmp_path: Path, source: Weights) -> None:
    path = tmp_path / "cache"
    async with running(path, {M: source}, look_period=200_000_000) as run:
        await run.fetch()
        for name in sorted(path.rglob("*"), reverse=True):
            name.rmdir() if name.is_dir() else name.unlink()
        path.rmdir()
        await run.until_cached({})
        assert isinstance(await run.fetch(), WeightsFetched)
        assert run.cached == {M: MIB}
        Layout(path).trash.rmdir()
        run.cache.remove(M)
        await run.until_cached({})
        async with asyncio.timeout(60):
            while run.cache.stats().used:
                await asyncio.sleep(0.01)
        assert os.listdir(path) == [".swapd"]  # noqa: PTH208 - names alone


async def test_files_of_the_node_outside_the_cache_are_read_into_memory_and_nothing_else_is_done_with_them(
    tmp_path: Path,
) -> None:
    for part in (1, 2):
        (tmp_path / f"m-0000{part}-of-00002.gguf").write_bytes(noise(MIB, part))
    (tmp_path / "folder/deep").mkdir(parents=True)
    (tmp_path / "folder/a").write_bytes(noise(MIB))
    (tmp_path / "folder/deep/b").symlink_to(tmp_path / "m-00001-of-00002.gguf")
    async with running(tmp_path / "cache") as run:
        for name, size in (("m-00001-of-00002.gguf", 2), ("folder/a", 1), ("folder", 2)):
            run.cache.serve({}, local={M: tmp_path / name})
            told = await warmed(run)
            assert (told.read + told.present, told.whole) == (size * MIB, True), name
            assert await run.cache.in_memory(M) == size * MIB
        assert (run.cache.path(M), run.cache.copies(), run.cached) == (None, (), {})
        assert isinstance(await run.fetch(), FetchFailed)
        run.cache.serve({}, local={M: tmp_path / "gone", N: tmp_path / "m-00009-of-00009.gguf"})
        assert not (await warmed(run)).whole
        with pytest.raises(FileNotFoundError):
            await run.cache.in_memory(M)
        assert await run.cache.in_memory(N) == 0


async def test_reading_ahead_can_be_ended_and_is_answered_as_it_stands_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    class Slow(Warming):
        @override
        def run(self) -> Warmth:
            begun.set()
            while not self._stop.stopped:
                with contextlib.suppress(StoppedError):
                    self._stop.pause(60)
            return super().run()

    monkeypatch.setattr(ahead, "Warming", Slow)
    (tmp_path / "m").write_bytes(noise(MIB))
    async with running(tmp_path / "cache") as run:
        run.cache.serve({}, local={M: tmp_path / "m"})
        run.cache.stop_warming(M)
        run.cache.warm(M)
        run.cache.warm(M)
        await asyncio.to_thread(begun.wait, 60)
        run.cache.stop_warming(M)
        told = await run.until(WeightsWarmed)
        assert (told.read, told.whole) == (0, False)
        await asyncio.sleep(0)
        assert [type(fact) for fact in run.facts].count(WeightsWarmed) == 1, "the second order joined the first"
