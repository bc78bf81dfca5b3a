"""The folder of the cache: changed by hand, misleading, or left by an earlier run."""

import asyncio
import errno
import json
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from swapd.core.events import WeightsFetched, WeightsVerified
from swapd.core.ids import ModelName
from swapd.weights import Weights
from swapd.weights.facts import Removed
from swapd.weights.room import Room
from tests.weights.caches import DEADLINE_S, MIB, M, N, Running, noise, running
from tests.weights.servers import Blob, Server, serving

P = ModelName("p")
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


def content_of(run: Running, model: str = M) -> bytes:
    path = run.cache.path(M if model == M else N)
    assert path is not None
    return path.read_bytes()


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


async def test_a_copy_from_the_future_or_from_long_ago_is_one_like_any_other(path: Path, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(CONTENT)
    models = {M: Weights(f"file://{tmp_path}/m")}
    for time_ns in (0, 4 * 10**18):  # the clock of the node is set meanwhile
        async with running(path, models) as run:
            run.cache.remove(M)
            await run.until(Removed)
            await run.fetch()
            file = run.cache.path(M)
            assert file is not None
            os.utime(file, ns=(time_ns, time_ns))
            await run.until_cached({})
            await run.until_cached({M: len(CONTENT)})
        async with running(path, models) as run:
            assert run.cached == {M: len(CONTENT)}


async def test_links_in_the_folder_count_as_what_they_are_and_what_they_lead_to_stays(
    server: Server, path: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "large").write_bytes(noise(4 * MIB))
    path.mkdir()  # noqa: ASYNC240 - quick
    (path / "link").symlink_to(elsewhere)
    (path / "circle").symlink_to(path)
    async with running(path, {M: weights(server)}, max_size=6 * MIB) as run:
        assert run.cache.stats().foreign < MIB
        assert isinstance(await run.fetch(), WeightsFetched)
        copy = run.cache.copies()[0].path
        (copy / "link").symlink_to(elsewhere)
        run.cache.remove(M)
        await run.until(Removed)
        await run.settled()
    assert (elsewhere / "large").stat().st_size == 4 * MIB


async def test_a_marker_that_leads_out_of_its_folder_makes_no_copy(server: Server, path: Path, tmp_path: Path) -> None:
    async with running(path, {M: weights(server)}) as run:
        await run.fetch()
        marker = run.cache.copies()[0].path / ".swapd.json"
    (path / "m.gguf").hardlink_to(marker.parent / "m.gguf")
    marker.write_text(marker.read_text().replace('"m.gguf"', '"../m.gguf"'))
    async with running(path, {M: weights(server)}) as run:
        assert (run.cached, run.cache.path(M)) == ({}, None)


async def test_a_marker_that_cannot_be_read_makes_no_copy(server: Server, path: Path) -> None:
    async with running(path, {M: weights(server)}) as run:
        await run.fetch()
        marker = run.cache.copies()[0].path / ".swapd.json"
    for broken in ("", "[]", "{}", json.dumps({"version": 99})):
        marker.write_text(broken)
        async with running(path, {M: weights(server)}) as run:
            assert run.cached == {}


async def test_a_folder_that_goes_away_as_a_whole_and_comes_back_is_noticed(server: Server, path: Path) -> None:
    async with running(path, {M: weights(server)}, look_period=200_000_000) as run:
        await run.fetch()
        path.rename(path.with_name("away"))  # noqa: ASYNC240 - quick
        await asyncio.sleep(0)
        path.with_name("away").rename(path)
        (run.cache.copies()[0].path / "m.gguf").unlink()
        await run.until_cached({})
        shutil.rmtree(path)
        path.mkdir()  # noqa: ASYNC240 - quick
        async with asyncio.timeout(60):
            while run.cache.copies():
                await asyncio.sleep(0.01)


async def test_what_an_earlier_run_was_removing_counts_until_it_is_gone(server: Server, path: Path) -> None:
    rubbish = path / ".swapd/trash/1-old"
    rubbish.mkdir(parents=True)
    (rubbish / "m.gguf").write_bytes(CONTENT)
    (path / ".swapd/staging/half").mkdir(parents=True)
    async with running(path, {M: weights(server)}, max_size=6 * MIB) as run:
        assert isinstance(await run.fetch(), WeightsFetched)
        assert (rubbish.exists(), (path / ".swapd/staging/half").exists()) == (False, False)
        assert run.cache.stats().used == len(CONTENT)


async def test_what_cannot_be_removed_goes_on_counting(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(errno.EACCES, "no")

    async with running(path, {M: weights(server)}) as run:
        await run.fetch()
        with monkeypatch.context() as broken:
            broken.setattr(Path, "rename", refuse)
            run.cache.remove(M)
            await run.until(Removed)
        assert (run.cached, run.cache.stats().used) == ({}, len(CONTENT))


async def test_partials_of_a_copy_that_was_just_made_when_the_daemon_ended_are_removed_by_the_next(
    server: Server, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as hurried:
        hurried.setattr(Room, "clear_away", lambda *_: None)
        async with running(path, {M: weights(server)}) as run:
            await run.fetch()
    (left,) = os.listdir(path / ".swapd/partial")  # noqa: PTH208 - names alone
    assert left
    async with running(path, {M: weights(server)}) as again:
        assert os.listdir(path / ".swapd/partial") == []  # noqa: PTH208 - names alone
        assert (again.cached, content_of(again)) == ({M: len(CONTENT)}, CONTENT)


async def test_damaged_copies_of_a_model_are_removed_by_name_and_a_check_calls_them_what_they_are(
    server: Server, path: Path
) -> None:
    async with running(path, {M: weights(server)}) as run:
        await run.fetch()
        os.truncate(run.cache.copies()[0].path / "m.gguf", 1000)
        await run.until_cached({})
        run.cache.verify(M)
        assert (await run.until(WeightsVerified)).detail == "the copy of m is damaged"
        run.cache.remove(M)
        assert (await run.until(Removed)).detail == ""
        assert run.cache.copies() == ()
        assert os.listdir(path) == [".swapd"]  # noqa: PTH208


async def test_what_others_remove_or_damage_is_logged_once_with_what_follows(
    server: Server, path: Path, tmp_path: Path
) -> None:
    models = {M: weights(server), N: weights(server, "n.gguf"), P: Weights(f"file://{tmp_path}/p")}
    (tmp_path / "p").write_bytes(noise(MIB))
    async with running(path, models) as run:
        for model in models:
            await run.fetch(model)
        await run.settled()
        await run.cache._folder.look()
        copies = {copy.models[0]: copy.path for copy in run.cache.copies()}
        with capture_logs() as logs:
            shutil.rmtree(copies[M])
            os.truncate(copies[N] / "n.gguf", 1000)
            with (copies[P] / "p").open("r+b") as file:
                file.write(b"changed by hand")
            await run.until_cached({})
            async with asyncio.timeout(DEADLINE_S):
                while len(logs) < 3:
                    await asyncio.sleep(0.005)
            await run.cache._folder.look()
    told = {(line["event"], line["models"], line["detail"]) for line in logs}
    assert told == {
        ("copy_lost", (M,), "its folder was removed"),
        ("copy_lost", (N,), "files were removed or have another size: n.gguf"),
        ("copy_damaged", (P,), "files were changed: p"),
    }
    assert (len(logs), {line["effect"] for line in logs}) == (3, {"fetched again when it is wanted"})


async def test_a_fetch_whose_files_are_removed_meanwhile_begins_anew(server: Server, path: Path) -> None:
    def remove() -> None:
        if server.sent > MIB and not removed:
            shutil.rmtree(path)
            removed.append(True)

    removed: list[bool] = []
    server.on_sent = remove
    async with running(path, {M: weights(server)}) as run:
        assert isinstance(await run.fetch(), WeightsFetched)
        assert (removed, content_of(run) == CONTENT) == ([True], True)
