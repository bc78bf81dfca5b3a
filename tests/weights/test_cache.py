"""The cache as the core uses it: orders in, facts out, over real servers on loopback."""

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swapd.weights import Standing, Weights
from swapd.weights.facts import (
    CacheRead,
    Evicted,
    Fetched,
    FetchFailed,
    FetchFailure,
    FetchProgressed,
    FetchStarted,
    FetchWaits,
    Removed,
    Verified,
    Warmed,
)
from tests.weights.caches import MIB, M, N, Running, noise, running
from tests.weights.servers import Blob, Server, serving

CONTENT = noise(5 * MIB + 12345)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as made:
        made.blobs["/m.gguf"] = Blob(CONTENT)
        made.blobs["/n.gguf"] = Blob(noise(2 * MIB, 2))
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def weights(server: Server, name: str = "m.gguf", **how: str) -> Weights:
    return Weights(f"{server.url}/{name}", **how)


def failure(answer: Fetched | FetchFailed) -> tuple[FetchFailure, str]:
    assert isinstance(answer, FetchFailed), answer
    return answer.failure, answer.detail


def content_of(run: Running, model: str = M) -> bytes:
    path = run.cache.path(M if model == M else N)
    assert path is not None
    return path.read_bytes()


async def test_a_fetched_model_is_whole_told_as_cached_before_the_answer_and_served_as_its_only_file(
    server: Server, path: Path
) -> None:
    async with running(path, {M: weights(server)}) as run:
        answer = await run.fetch()
        assert isinstance(answer, Fetched)
        assert (answer.fetched, content_of(run)) == (len(CONTENT), CONTENT)
        assert [type(fact) for fact in run.facts if not isinstance(fact, FetchProgressed)] == [
            CacheRead,
            FetchStarted,
            CacheRead,
            Fetched,
        ]
        assert run.cached == {M: len(CONTENT)}
        assert run.cache.stats().used == len(CONTENT)


async def test_a_copy_stays_while_its_partials_are_removed_and_then_they_are_gone(server: Server, path: Path) -> None:
    async with running(path, {M: weights(server)}) as run:
        await run.fetch()
        async with asyncio.timeout(60):
            while os.listdir(path / ".swapd/partial"):  # noqa: PTH208 - names alone
                await asyncio.sleep(0.01)
        assert run.cache.stats().used == len(CONTENT)


async def test_what_is_cached_is_known_after_a_restart_and_the_source_is_not_asked_again(
    server: Server, path: Path
) -> None:
    models = {M: weights(server)}
    async with running(path, models) as first:
        await first.fetch()
    asked = len(server.asked)
    async with running(path, models) as second:
        assert second.cached == {M: len(CONTENT)}
        answer = await second.fetch()
        assert isinstance(answer, Fetched)
        assert (answer.fetched, len(server.asked)) == (0, asked)


async def test_a_file_of_full_size_without_a_marker_is_not_cached(server: Server, path: Path) -> None:
    models = {M: weights(server)}
    async with running(path, models) as first:
        await first.fetch()
        copy = first.cache.copies()[0].path
    (copy / ".swapd.json").unlink()
    async with running(path, models) as second:
        assert (second.cached, second.cache.path(M), second.cache.copies()) == ({}, None, ())
        assert second.cache.stats().foreign > len(CONTENT), "what is not ours is counted"
        await second.fetch()
        assert content_of(second) == CONTENT
        assert (copy / "m.gguf").exists(), "what is not ours is not touched"


async def test_connections_that_are_cut_are_made_again_where_they_were(server: Server, path: Path) -> None:
    server.cut_after = [MIB + 100_000, 0, 2 * MIB]
    async with running(path, {M: weights(server)}) as run:
        assert isinstance(await run.fetch(), Fetched)
        assert content_of(run) == CONTENT
    assert server.cut_after == []
    assert len({told for _, told in server.asked}) >= 3, "later requests asked for the rest only"
    assert server.sent < 2 * len(CONTENT)


async def test_a_source_that_is_busy_is_asked_again(server: Server, path: Path) -> None:
    server.refusals = [503, 429, 503]
    async with running(path, {M: weights(server)}) as run:
        assert isinstance(await run.fetch(), Fetched)


async def test_a_source_that_is_down_fails_the_fetch_after_some_tries_and_the_next_fetch_goes_on(
    server: Server, path: Path
) -> None:
    server.cut_after = [3 * MIB, *[0] * 100]
    async with running(path, {M: weights(server)}, retries=2, connections=1) as run:
        kind, detail = failure(await run.fetch())
        assert kind == FetchFailure.UNREACHABLE
        assert "m.gguf" in detail
        server.cut_after, sent = [], server.sent
        answer = await run.fetch()
        assert isinstance(answer, Fetched)
        assert content_of(run) == CONTENT
        assert answer.fetched == server.sent - sent - 1 <= len(CONTENT) - 2 * MIB


@pytest.mark.parametrize("status", [401, 403, 404, 410])
async def test_a_refusal_fails_the_fetch_at_once_with_the_reason(server: Server, path: Path, status: int) -> None:
    server.refusals = [status]
    async with running(path, {M: weights(server)}) as run:
        kind, detail = failure(await run.fetch())
        assert kind == FetchFailure.REFUSED
        assert f"answered {status}" in detail
        assert len(server.asked) == 1


async def test_a_source_that_cannot_be_parsed_or_is_of_no_known_kind_is_refused(path: Path) -> None:
    async with running(path, {M: Weights("gopher://old/m"), N: Weights("file:///is/not/there")}) as run:
        assert failure(await run.fetch(M))[0] == FetchFailure.REFUSED
        assert "/is/not/there cannot be read" in failure(await run.fetch(N))[1]


async def test_a_model_without_a_source_cannot_be_fetched(path: Path) -> None:
    async with running(path) as run:
        assert failure(await run.fetch())[0] == FetchFailure.REFUSED


async def test_no_credentials_of_a_url_come_to_light(server: Server, path: Path) -> None:
    url = server.url.replace("http://", "http://user:secret@") + "/m.gguf?signature=hidden"
    async with running(path, {M: Weights(url)}) as run:
        server.refusals = [403]
        assert "secret" not in failure(await run.fetch())[1]
        assert isinstance(await run.fetch(), Fetched)
        copy = run.cache.copies()[0]
        assert (copy.source, (copy.path / ".swapd.json").read_text().count("secret")) == (f"{server.url}/m.gguf", 0)
        assert "hidden" not in (copy.path / ".swapd.json").read_text()
    assert server.headers[0]["Authorization"] == "Basic dXNlcjpzZWNyZXQ="


async def test_a_source_that_changes_during_a_fetch_is_listed_again_and_nothing_is_mixed(
    server: Server, path: Path
) -> None:
    newer = noise(5 * MIB, 9)

    def change() -> None:
        if server.sent > 2 * MIB:
            server.blobs["/m.gguf"] = Blob(newer)
            server.cut_after = [0] if server.sent < 3 * MIB else []

    server.on_sent = change
    server.cut_after = [3 * MIB]
    async with running(path, {M: weights(server)}, connections=1) as run:
        assert isinstance(await run.fetch(), Fetched)
        assert content_of(run) == newer


async def test_a_source_without_ranges_or_versions_is_fetched_in_one_go_and_anew_when_it_breaks(
    server: Server, path: Path
) -> None:
    server.blobs["/m.gguf"] = Blob(CONTENT, etag="none", ranges=False)
    server.cut_after = [0, 3 * MIB]  # the first is the question for its size, which is broken off by us
    async with running(path, {M: weights(server)}) as run:
        assert isinstance(await run.fetch(), Fetched)
        assert content_of(run) == CONTENT
    assert server.sent > len(CONTENT) + 2 * MIB


async def test_a_source_that_does_not_say_how_large_the_file_is_is_refused(server: Server, path: Path) -> None:
    server.blobs["/m.gguf"] = Blob(CONTENT, ranges=False)
    server.tells_size = False
    async with running(path, {M: weights(server)}) as run:
        kind, detail = failure(await run.fetch())
        assert (kind, "does not say how large" in detail) == (FetchFailure.REFUSED, True)


async def test_an_empty_file_can_be_fetched(server: Server, path: Path) -> None:
    server.blobs["/m.gguf"] = Blob(b"")
    async with running(path, {M: weights(server)}) as run:
        assert isinstance(await run.fetch(), Fetched)
        assert content_of(run) == b""


async def test_the_configured_checksum_is_held_to(server: Server, path: Path) -> None:
    right, wrong = hashlib.sha256(CONTENT).hexdigest(), "0" * 64
    models = {M: weights(server, sha256=right.upper()), N: weights(server, sha256=wrong)}
    async with running(path, models) as run:
        assert isinstance(await run.fetch(M), Fetched)
        sent = server.sent
        kind, detail = failure(await run.fetch(N))
        assert kind == FetchFailure.CORRUPT
        assert detail.endswith("another checksum than its source promised, twice")
        assert server.sent - sent >= 2 * len(CONTENT), "it was fetched once more"
        assert run.cached == {M: len(CONTENT)}


async def test_a_checksum_for_several_files_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for name in "ab":
        (tmp_path / "many" / name).write_text(name)
    async with running(path, {M: Weights(f"file://{tmp_path}/many", sha256="0" * 64)}) as run:
        assert failure(await run.fetch())[0] == FetchFailure.REFUSED


async def test_models_with_the_same_weights_share_one_fetch_and_one_copy(server: Server, path: Path) -> None:
    async with running(path, {M: weights(server), N: weights(server)}) as run:
        run.cache.fetch(M)
        run.cache.fetch(N)
        await run.answer(M)
        await run.answer(N)
        assert (run.cache.path(M), len(run.cache.copies())) == (run.cache.path(N), 1)
        assert server.sent == len(CONTENT) + 1


async def test_copies_that_have_files_in_common_share_the_fetch_and_the_bytes(path: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    for name, size in (("common.bin", 3 * MIB), ("m.bin", MIB), ("n.bin", MIB)):
        (store / name).write_bytes(noise(size, len(name) + size))
    source = f"file://{store}"
    models = {M: Weights(source, ("common.bin", "m.bin")), N: Weights(source, ("common.bin", "n.bin"))}
    async with running(path, models) as run:
        run.cache.fetch(M)
        run.cache.fetch(N)
        answers = [await run.answer(M), await run.answer(N)]
        assert sum(answer.fetched for answer in answers if isinstance(answer, Fetched)) == 5 * MIB
        assert run.cache.stats().used == 5 * MIB
        run.cache.remove(M)
        assert (await run.until(Removed)).freed == MIB, "what the other has as well stays"
        run.cache.verify(N)
        assert (await run.until(Verified)).intact


async def test_fetches_that_somebody_waits_for_go_before_those_made_ahead(server: Server, path: Path) -> None:
    server.gate = asyncio.Event()
    third = noise(MIB, 3)
    server.blobs["/o.gguf"] = Blob(third)
    o = type(M)("o")
    models = {M: weights(server), N: weights(server, "n.gguf"), o: weights(server, "o.gguf")}
    async with running(path, models, max_parallel_fetches=1) as run:
        run.cache.fetch(M)
        run.cache.fetch(N, ahead=True)
        run.cache.fetch(o)
        assert (run.cache.stats().fetches_running, run.cache.stats().fetches_queued) == (1, 2)
        server.gate.set()
        await run.answer(N)
        started = [fact.model for fact in run.facts if isinstance(fact, FetchStarted)]
        assert started == [M, o, N]


async def test_a_cancelled_fetch_is_answered_and_ordering_it_again_goes_on_where_it_was(
    server: Server, path: Path
) -> None:
    server.rate = 20 * MIB
    async with running(path, {M: weights(server)}, connections=1) as run:
        run.cache.fetch(M)
        await asyncio.wait_for(_sent(server, 2 * MIB + 500_000), 60)
        run.cache.cancel_fetch(M)
        assert failure(await run.answer())[0] == FetchFailure.CANCELLED
        server.rate = None
        answer = await run.fetch()
        assert isinstance(answer, Fetched)
        assert (content_of(run), answer.fetched <= len(CONTENT) - 2 * MIB) == (CONTENT, True)


async def _sent(server: Server, count: int) -> None:
    reached = asyncio.Event()
    server.on_sent = lambda: reached.set() if server.sent >= count else None
    await reached.wait()


async def test_a_fetch_goes_on_for_the_model_that_still_wants_it(server: Server, path: Path) -> None:
    server.gate = asyncio.Event()
    async with running(path, {M: weights(server), N: weights(server)}) as run:
        run.cache.fetch(M)
        run.cache.fetch(N)
        run.cache.cancel_fetch(M)
        assert isinstance(await run.answer(M), FetchFailed)
        server.gate.set()
        assert isinstance(await run.answer(N), Fetched)


async def test_the_progress_of_a_fetch_is_told(server: Server, path: Path) -> None:
    server.rate = 10 * MIB
    period = {"progress_period": 20_000_000}
    async with running(path, {M: weights(server)}, connections=1, **period) as run:
        run.cache.fetch(M)
        await run.answer()
        told = [fact.progress for fact in run.facts if isinstance(fact, FetchProgressed)]
        assert [step.done for step in told] == sorted({step.done for step in told})
        assert {step.total for step in told} <= {0, len(CONTENT)}
        assert any(step.rate > 0 and step.eta is not None for step in told)
        assert run.cache.progress(M) is None


async def test_a_bandwidth_is_kept_to(server: Server, path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with running(path, {M: weights(server)}, bandwidth=10 * MIB) as run:
        began = loop.time()
        await run.fetch()
        least = (len(CONTENT) - 3.5 * MIB) / (10 * MIB)
        assert loop.time() - began > least, "a quarter of a second may come at once, the last piece is not waited for"


async def test_files_added_and_deleted_by_hand_are_noticed(server: Server, path: Path, tmp_path: Path) -> None:
    async with running(path, {M: weights(server)}) as run:
        await run.fetch()
        copy = run.cache.copies()[0].path
        shutil.copytree(copy, tmp_path / "elsewhere")
        (copy / "m.gguf").unlink()
        await run.until_cached({})
        assert run.cache.path(M) is None
        shutil.rmtree(copy)
        shutil.copytree(tmp_path / "elsewhere", copy, copy_function=shutil.copy)  # with other times
        await run.until_cached({M: len(CONTENT)})
        with (copy / "m.gguf").open("r+b") as file:
            file.write(b"changed by hand")
        await run.until_cached({})


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
        assert isinstance(answer, Fetched)
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
        told = await run.until(Verified)
        assert not told.intact
        assert "m.gguf is damaged between the bytes 3145728 and 4194304" in told.detail
        assert run.cached == {}
        assert run.cache.copies()[0].damaged
    async with running(path, models) as again:
        assert again.cached == {}
        assert isinstance(await again.fetch(), Fetched)
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
        assert isinstance(answer, Fetched)
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
        assert isinstance(await run.answer(M), Fetched)
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
        assert isinstance(await run.answer(M), Fetched)


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


async def test_warming_brings_a_copy_back_into_memory(server: Server, path: Path) -> None:
    async with running(path, {M: weights(server)}) as run:
        await run.fetch()
        file = run.cache.path(M)
        assert file is not None
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = await run.cache.in_memory(M)
        run.cache.warm(M)
        warmed = await run.until(Warmed)
        assert warmed.whole
        assert warmed.read + warmed.present == len(CONTENT)
        assert await run.cache.in_memory(M) == len(CONTENT) >= before


async def test_what_is_not_cached_is_neither_warmed_nor_verified_nor_removed(server: Server, path: Path) -> None:
    async with running(path, {M: weights(server)}) as run:
        run.cache.warm(M)
        run.cache.verify(M)
        run.cache.remove(M)
        assert (await run.until(Warmed)).whole is False
        assert (await run.until(Verified)).detail == "m is not cached"
        assert (await run.until(Removed)).detail == "m is not cached"
        assert await run.cache.in_memory(M) == 0


async def test_a_marker_that_cannot_be_read_makes_no_copy(server: Server, path: Path) -> None:
    async with running(path, {M: weights(server)}) as run:
        await run.fetch()
        marker = run.cache.copies()[0].path / ".swapd.json"
    for broken in ("", "[]", "{}", json.dumps({"version": 99})):
        marker.write_text(broken)
        async with running(path, {M: weights(server)}) as run:
            assert run.cached == {}
