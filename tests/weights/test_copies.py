"""What becomes of copies: damaged, evicted, removed, read into memory."""

import asyncio
import hashlib
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from swapd.core.events import FetchStarted, FetchWaits, WeightsFetched, WeightsVerified, WeightsWarmed
from swapd.core.reasons import FetchFailure
from swapd.weights import Standing, Weights, cache
from swapd.weights.copies import MarkedFile, check_file
from swapd.weights.facts import Evicted, Removed
from swapd.weights.sources.base import Checksum
from tests.weights.caches import MIB, M, N, Running, noise, running
from tests.weights.remote import CONTENT, content_of, failure, weights
from tests.weights.servers import Server


async def test_a_missing_file_is_fetched_and_the_others_are_not(path: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "deep/er").mkdir(parents=True)
    (store / "a.bin").write_bytes(noise(2 * MIB))
    (store / "deep/er/b.bin").write_bytes(noise(MIB, 2))
    async with running(path, {M: Weights(f"file://{store}")}) as run:
        await run.fetch()
        copy = run.cache.path(M)
        assert copy is not None
        (copy / "deep/er/b.bin").unlink()
        await run.until_cached({})
        answer = await run.fetch()
        assert isinstance(answer, WeightsFetched)
        assert answer.fetched == MIB
        fresh = run.cache.path(M)
        assert fresh is not None
        assert (fresh / "deep/er/b.bin").read_bytes() == noise(MIB, 2)


async def test_damage_is_found_and_the_copy_is_not_used_any_more_not_even_after_a_restart(
    server: Server, path: Path
) -> None:
    models = {M: weights(server)}
    async with running(path, models) as run:
        await run.fetch()
        damage(run)
        run.cache.verify(M)
        told = await run.until(WeightsVerified)
        assert not told.intact
        assert "m.gguf is damaged between the bytes 3145728 and 4194304" in told.detail
        assert run.cached == {}
        assert run.cache.copies()[0].damaged
    async with running(path, models) as again:
        assert again.cached == {}
        assert isinstance(await again.fetch(), WeightsFetched)
        assert content_of(again) == CONTENT


def damage(run: Running) -> None:
    """Change a byte and keep the file's time, as a bad disk does."""
    file = run.cache.path(M)
    assert file is not None
    status = file.stat()
    with file.open("r+b") as opened:
        opened.seek(3 * MIB + 5)
        opened.write(b"?")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


async def test_a_copy_that_an_engine_could_not_load_is_fetched_anew_in_full(server: Server, path: Path) -> None:
    async with running(path, {M: weights(server)}, max_size=len(CONTENT) + MIB) as run:
        run.cache.heed({M: Standing(held=True, pinned=True)})
        await run.fetch()
        damage(run)
        since = len(run.facts)
        run.cache.refetch(M)
        answer = await run.answer(since=since)
        assert isinstance(answer, WeightsFetched)
        assert (answer.fetched, content_of(run)) == (len(CONTENT), CONTENT)


async def test_a_model_larger_than_the_cache_is_refused_and_nobody_leaves_for_it(server: Server, path: Path) -> None:
    async with running(path, {M: weights(server), N: weights(server, "n.gguf")}, max_size=3 * MIB) as run:
        await run.fetch(N)
        kind, detail = failure(await run.fetch(M))
        assert kind == FetchFailure.TOO_LARGE
        assert "takes 5.3 MB on the disk, and the cache never has more than 3.1 MB" in detail
        assert run.cached == {N: 2 * MIB}


async def test_a_fetch_waits_with_a_reason_while_all_is_held_and_goes_on_when_something_may_leave(
    server: Server, path: Path
) -> None:
    async with running(path, {M: weights(server), N: weights(server, "n.gguf")}, max_size=6 * MIB) as run:
        run.cache.heed({N: Standing(held=True)})
        await run.fetch(N)
        run.cache.fetch(M)
        waits = await run.until(FetchWaits, M)
        assert waits.detail == (
            "the limit of 6.3 MB leaves 1.1 MB too little; all that is there is pinned, in use or not the cache's"
        )
        assert run.cached == {N: 2 * MIB}
        run.cache.heed({M: Standing(held=True)})
        assert isinstance(await run.answer(M), WeightsFetched)
        evicted = await run.until(Evicted)
        assert (evicted.models, evicted.freed) == ((N,), 2 * MIB)
        assert run.cached == {M: len(CONTENT)}


async def test_a_copy_whose_files_a_process_has_open_does_not_leave(server: Server, path: Path) -> None:
    async with running(path, {M: weights(server), N: weights(server, "n.gguf")}, max_size=6 * MIB) as run:
        await run.fetch(N)
        held = run.cache.path(N)
        assert held is not None
        with held.open("rb") as opened:
            engine = await asyncio.create_subprocess_exec("sleep", "60", stdin=opened)
        try:
            run.cache.fetch(M)
            await run.until(FetchWaits, M)
            run.cache.remove(N)
            assert "open" in (await run.until(Removed, N)).detail
            assert held.exists()
        finally:
            engine.kill()
            await engine.wait()
        assert isinstance(await run.answer(M), WeightsFetched)


async def test_a_pinned_copy_is_not_removed_by_order_either(server: Server, path: Path) -> None:
    async with running(path, {M: weights(server)}) as run:
        await run.fetch()
        run.cache.heed({M: Standing(pinned=True)})
        run.cache.remove(M)
        assert (await run.until(Removed)).detail == "m is in use or pinned"
        run.cache.heed({})
        since = len(run.facts)
        run.cache.remove(M)
        assert (await run.until(Removed, since=since)).freed == len(CONTENT)
        assert (run.cached, run.cache.stats().used) == ({}, 0)
        assert os.listdir(path) == [".swapd"]  # noqa: PTH208 - names alone


async def test_a_model_that_leaves_the_configuration_ends_its_fetch(server: Server, path: Path) -> None:
    server.gate = asyncio.Event()
    async with running(path, {M: weights(server)}) as run:
        run.cache.fetch(M)
        await run.until(FetchStarted)
        run.cache.serve({})
        assert failure(await run.answer())[0] == FetchFailure.CANCELLED


async def test_a_model_that_gets_another_source_ends_its_fetch_from_the_former_one(server: Server, path: Path) -> None:
    server.gate = asyncio.Event()
    async with running(path, {M: weights(server)}) as run:
        run.cache.fetch(M)
        await run.until(FetchStarted)
        run.cache.serve({M: weights(server, "n.gguf")})
        assert failure(await run.answer())[0] == FetchFailure.CANCELLED
        server.gate.set()
        since = len(run.facts)
        run.cache.fetch(M)
        assert isinstance(await run.answer(since=since), WeightsFetched)
        assert content_of(run) == noise(2 * MIB, 2)


async def test_warming_brings_a_copy_back_into_memory(server: Server, path: Path) -> None:
    async with running(path, {M: weights(server)}) as run:
        await run.fetch()
        file = run.cache.path(M)
        assert file is not None
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = await run.cache.in_memory(M)
        run.cache.warm(M)
        warmed = await run.until(WeightsWarmed)
        assert warmed.whole
        assert warmed.read + warmed.present == len(CONTENT)
        assert await run.cache.in_memory(M) == len(CONTENT) >= before


async def test_what_is_not_cached_is_neither_warmed_nor_verified_nor_removed(server: Server, path: Path) -> None:
    async with running(path, {M: weights(server)}) as run:
        run.cache.warm(M)
        run.cache.verify(M)
        run.cache.remove(M)
        assert (await run.until(WeightsWarmed)).whole is False
        assert (await run.until(WeightsVerified)).detail == "m is not cached"
        assert (await run.until(Removed)).detail == "m is not cached"
        assert await run.cache.in_memory(M) == 0


async def test_a_copy_given_up_by_an_engine_is_fetched_anew_even_without_a_model_that_names_it(
    server: Server, path: Path
) -> None:
    async with running(path, {M: weights(server)}) as run:
        run.cache.refetch(N)
        assert failure(await run.answer(N))[0] == FetchFailure.REFUSED
        run.cache.refetch(M)
        assert isinstance(await run.answer(M), WeightsFetched), "nothing was here to give up"


async def test_a_copy_that_is_looked_through_does_not_leave_meanwhile(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()

    def slowly(folder: Path, file: MarkedFile) -> str:
        begun.set()
        go.wait(60)
        return check_file(folder, file)

    monkeypatch.setattr(cache, "check_file", slowly)
    async with running(path, {M: weights(server)}) as run:
        await run.fetch()
        await run.settled()
        run.cache.verify(M)
        await asyncio.to_thread(begun.wait, 60)
        run.cache.remove(M)
        assert (await run.until(Removed)).detail == "m is in use or pinned"
        go.set()
        assert (await run.until(WeightsVerified)).intact
        since = len(run.facts)
        run.cache.remove(M)
        assert (await run.until(Removed, since=since)).freed == len(CONTENT)


async def test_a_promised_checksum_is_compared_again_when_a_copy_is_verified(server: Server, path: Path) -> None:
    async with running(path, {M: weights(server, sha256=hashlib.sha256(CONTENT).hexdigest())}) as run:
        await run.fetch()
        run.cache.verify(M)
        assert (await run.until(WeightsVerified)).intact
        copy = run.cache._copy(M)
        assert copy is not None
        (file,) = copy.marker.files
        elsewhere = replace(file, checksum=Checksum("sha256", "0" * 64))
        assert check_file(copy.path, elsewhere) == "m.gguf has another checksum than its source promised"
        (copy.path / "m.gguf").write_bytes(b"short")
        assert check_file(copy.path, file) == f"m.gguf has 5 bytes instead of {len(CONTENT)}"
        (copy.path / "m.gguf").unlink()
        assert check_file(copy.path, file) == "m.gguf cannot be read: No such file or directory"


async def test_split_weights_are_served_by_their_first_part(path: Path, tmp_path: Path) -> None:
    (tmp_path / "split").mkdir()
    for part in (1, 2, 3):
        (tmp_path / f"split/m-0000{part}-of-00003.gguf").write_bytes(noise(1000, part))
    async with running(path, {M: Weights(f"file://{tmp_path}/split")}) as run:
        await run.fetch()
        found = run.cache.path(M)
        assert found is not None
        assert found.name == "m-00001-of-00003.gguf"


async def test_a_cache_can_be_closed_at_any_moment_and_begun_again(server: Server, path: Path) -> None:
    server.rate = 50 * MIB
    for number in range(12):
        async with running(path, {M: weights(server)}) as run:
            run.cache.fetch(M)
            if number % 2:
                run.cache.warm(M)
            await asyncio.sleep(0.02 * number)
    server.rate = None
    async with running(path, {M: weights(server)}) as run:
        assert isinstance(await run.fetch(), WeightsFetched)
        assert content_of(run) == CONTENT
    assert server.sent < 3 * len(CONTENT), "what had come was kept"
