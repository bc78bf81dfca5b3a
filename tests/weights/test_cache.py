"""The cache as the core uses it: orders in, facts out, over real servers on loopback."""

import asyncio
import hashlib
import os
import threading
from pathlib import Path

import pytest

from swapd.core.events import (
    FetchFailed,
    FetchProgressed,
    FetchStarted,
    WeightsCached,
    WeightsFetched,
    WeightsVerified,
)
from swapd.core.reasons import FetchFailure
from swapd.weights import Standing, Weights
from swapd.weights.facts import Removed
from swapd.weights.sources.base import RemoteFile
from swapd.weights.sources.local import LocalSource, LocalStream
from tests.weights.caches import MIB, M, N, noise, running
from tests.weights.remote import CONTENT, content_of, failure, weights
from tests.weights.servers import Blob, Server


async def test_a_fetched_model_is_whole_told_as_cached_before_the_answer_and_served_as_its_only_file(
    server: Server, path: Path
) -> None:
    async with running(path, {M: weights(server)}) as run:
        answer = await run.fetch()
        assert isinstance(answer, WeightsFetched)
        assert (answer.fetched, content_of(run)) == (len(CONTENT), CONTENT)
        assert [type(fact) for fact in run.facts if not isinstance(fact, FetchProgressed)] == [
            WeightsCached,
            FetchStarted,
            WeightsCached,
            WeightsFetched,
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
        assert isinstance(answer, WeightsFetched)
        assert (answer.fetched, len(server.asked)) == (0, asked)


async def test_what_fetches_of_earlier_runs_have_measured_is_told_once_the_latest_one_last(
    server: Server, path: Path, tmp_path: Path
) -> None:
    (tmp_path / "small").write_bytes(noise(MIB))
    models = {N: Weights((tmp_path / "small").as_uri()), M: weights(server)}
    async with running(path, models) as run:
        for model in models:
            await run.fetch(model)
        assert [fact.earlier for fact in run.facts if isinstance(fact, WeightsCached)] == [(), (), ()]
    async with running(path) as later:
        later.cache.serve(models)
        await later.until_cached({M: len(CONTENT), N: MIB})
        later.cache.serve({M: models[M]})
        await later.until_cached({M: len(CONTENT)})
        told = [fact.earlier for fact in later.facts if isinstance(fact, WeightsCached)]
    assert [[fetched for fetched, _ in earlier] for earlier in told] == [[], [MIB, len(CONTENT)], []]
    assert all(took > 0 for earlier in told for _, took in earlier)


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
        assert isinstance(await run.fetch(), WeightsFetched)
        assert content_of(run) == CONTENT
    assert server.cut_after == []
    assert len({told for _, told in server.asked}) >= 3, "later requests asked for the rest only"
    assert server.sent < 2 * len(CONTENT)


async def test_a_source_that_is_busy_is_asked_again(server: Server, path: Path) -> None:
    server.refusals = [503, 429, 503]
    async with running(path, {M: weights(server)}) as run:
        assert isinstance(await run.fetch(), WeightsFetched)


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
        assert isinstance(answer, WeightsFetched)
        assert content_of(run) == CONTENT
        assert answer.fetched == server.sent - sent - 2 <= len(CONTENT) - 2 * MIB


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
        assert isinstance(await run.fetch(), WeightsFetched)
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
        assert isinstance(await run.fetch(), WeightsFetched)
        assert content_of(run) == newer


async def test_a_source_without_ranges_or_versions_is_fetched_in_one_go_and_anew_when_it_breaks(
    server: Server, path: Path
) -> None:
    server.blobs["/m.gguf"] = Blob(CONTENT, etag="none", ranges=False)
    server.cut_after = [0, 3 * MIB]  # the first is the question for its size, which is broken off by us
    async with running(path, {M: weights(server)}) as run:
        assert isinstance(await run.fetch(), WeightsFetched)
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
        assert isinstance(await run.fetch(), WeightsFetched)
        assert content_of(run) == b""


async def test_the_configured_checksum_is_held_to(server: Server, path: Path) -> None:
    right, wrong = hashlib.sha256(CONTENT).hexdigest(), "0" * 64
    models = {M: weights(server, sha256=right.upper()), N: weights(server, sha256=wrong)}
    async with running(path, models) as run:
        assert isinstance(await run.fetch(M), WeightsFetched)
        sent = server.sent
        kind, detail = failure(await run.fetch(N))
        assert kind == FetchFailure.CORRUPT
        assert detail.endswith(f"{wrong} was promised, twice")
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
        assert server.sent == len(CONTENT) + 2, "a byte before and after for which version it is"


async def test_a_shared_copy_stays_for_the_sake_of_any_of_its_models_and_leaves_for_all(
    server: Server, path: Path
) -> None:
    async with running(path, {M: weights(server), N: weights(server)}) as run:
        await run.fetch(M)
        run.cache.heed({M: Standing(), N: Standing(held=True)})
        run.cache.remove(M)
        assert (await run.until(Removed, M)).detail == "the copy of m is that of n too, which is in use or pinned"
        assert set(run.cached) == {M, N}
        run.cache.heed({})
        since = len(run.facts)
        run.cache.remove(M)
        assert (await run.until(Removed, M, since=since)).detail == ""
        assert run.cached == {}


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
        assert sum(answer.fetched for answer in answers if isinstance(answer, WeightsFetched)) == 5 * MIB
        assert run.cache.stats().used == 5 * MIB
        run.cache.remove(M)
        assert (await run.until(Removed)).freed == MIB, "what the other has as well stays"
        run.cache.verify(N)
        assert (await run.until(WeightsVerified)).intact


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
        assert isinstance(answer, WeightsFetched)
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
        assert isinstance(await run.answer(N), WeightsFetched)


async def test_the_progress_of_a_fetch_is_told(server: Server, path: Path) -> None:
    server.rate = 10 * MIB
    period = {"progress_period": 20_000_000}
    async with running(path, {M: weights(server)}, connections=1, **period) as run:
        run.cache.fetch(M)
        await run.answer()
        told = [fact for fact in run.facts if isinstance(fact, FetchProgressed)]
        assert [step.done for step in told] == sorted({step.done for step in told})
        assert {step.total for step in told} <= {0, len(CONTENT)}
        come = [step for step in told if step.done]
        assert come
        assert all(step.rate > 0 for step in come)
        assert run.cache.progress(M) is None


async def test_a_bandwidth_is_kept_to(server: Server, path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with running(path, {M: weights(server)}, bandwidth=10 * MIB) as run:
        began = loop.time()
        await run.fetch()
        least = (len(CONTENT) - 3.5 * MIB) / (10 * MIB)
        assert loop.time() - began > least, "a quarter of a second may come at once, the last piece is not waited for"


async def test_what_other_copies_have_counts_as_progress_from_the_beginning(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, go = tmp_path / "store", threading.Event()
    store.mkdir()
    for name, size in (("a", 2 * MIB), ("b", 4 * MIB)):
        (store / name).write_bytes(noise(size, size))
    real = LocalSource.open

    def opened(self: LocalSource, file: RemoteFile, start: int, stop: int) -> LocalStream:
        go.wait(60)
        return real(self, file, start, stop)

    async with running(path, {M: Weights(f"file://{store}", ("a",)), N: Weights(f"file://{store}")}) as run:
        await run.fetch(M)
        monkeypatch.setattr(LocalSource, "open", opened)
        run.cache.fetch(N)
        async with asyncio.timeout(60):
            while (told := run.cache.progress(N)) is None or told.total != 6 * MIB:
                await asyncio.sleep(0.01)
        assert told.done >= 2 * MIB, "a is here"
        go.set()
        assert isinstance(await run.answer(N), WeightsFetched)
