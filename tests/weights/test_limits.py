"""A cache smaller than what is asked of it: limits hold at every instant, and live models keep their files."""

import asyncio
import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from swapd.core.events import FetchFailed, FetchProgressed, FetchWaits, WeightsFetched
from swapd.core.ids import SECOND, Bytes, Duration, Instant, ModelName
from swapd.core.reasons import FetchFailure
from swapd.weights import CacheSettings, Limits, Standing, WeightCache, Weights, copies, flight, room
from swapd.weights.copies import Copy
from swapd.weights.facts import Evicted, Fact
from swapd.weights.partial import Partial
from swapd.weights.space import Disk
from tests.weights.caches import MIB, M, N, Running, noise, running

KIB = 1024
MILLISECOND = Duration(1_000_000)
P = ModelName("p")
MODELS = 12
STEPS = 150


def data_bytes(path: Path) -> int:
    """Return the size of all weights below the cache's folder, those on their way included."""
    sizes = {}
    for directory, _, names in os.walk(path):
        for name in names:
            if not name.startswith((".swapd", "journal", "lock")):
                try:
                    status = os.stat(os.path.join(directory, name))  # noqa: PTH116, PTH118 - often
                except FileNotFoundError:
                    continue
                sizes[status.st_ino] = status.st_blocks * 512 if name == "data" else status.st_size
    return sum(sizes.values())


class Workload:
    """Asks for random models, and keeps some of them live for a while, as a core would."""

    def __init__(self, run: Running, folder: Path, sizes: dict[ModelName, int], limit: int) -> None:
        self._run = run
        self._folder = folder
        self._sizes = sizes
        self._limit = limit
        self.held: list[ModelName] = []
        self.uses = dict.fromkeys(sizes, 0.0)
        self.checks = 0
        self.wrong: list[str] = []
        run.on_fact = self.check

    def check(self, fact: Fact | None = None) -> None:
        """Look at the disk; nothing else runs on the loop meanwhile, so no fetch begins."""
        self.checks += 1
        on_disk, used = data_bytes(self._folder), self._run.cache.stats().used
        if max(on_disk, used) > self._limit:
            self.wrong.append(f"{on_disk} on the disk, {used} in the account, limit {self._limit}: {fact}")
        for name in self.held:
            path = self._run.cache.path(name)
            if path is None or path.stat().st_size != self._sizes[name]:
                self.wrong.append(f"{name} is live and lost its files: {fact}")

    def heed(self) -> None:
        self._run.cache.heed({name: Standing(name in self.held, frequency=self.uses[name]) for name in self._sizes})

    async def use(self, name: ModelName) -> None:
        answer = await self._run.fetch(name)
        if isinstance(answer, FetchFailed) and answer.failure != FetchFailure.CANCELLED:
            self.wrong.append(answer.detail)

    def hold(self, most: int) -> None:
        """Let some of what is cached be live, as long as all of it is small."""
        taken = sum(self._sizes[name] for name in self.held)
        for name in self._run.cached:
            if name not in self.held and taken + self._sizes[name] < most:
                self.held.append(name)
                taken += self._sizes[name]


@pytest.mark.parametrize("seed", range(3))
async def test_limits_hold_and_live_models_keep_their_files_under_a_random_workload(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    sizes = {ModelName(f"m{number:02}"): dice.randrange(4, 200) * 4 * KIB for number in range(MODELS)}
    for number, name in enumerate(sizes):
        (tmp_path / name).write_bytes(noise(sizes[name], number))
    limit = sum(sizes.values()) // 3
    models = {name: Weights(f"file://{tmp_path}/{name}") for name in sizes}
    async with running(tmp_path / "cache", models, max_size=limit, max_parallel_fetches=3) as run:
        workload = Workload(run, tmp_path / "cache", sizes, limit)
        pending = []
        for step in range(STEPS):
            name = min(dice.choice(list(models)), dice.choice(list(models)))
            workload.uses[name] += 1
            if dice.random() < 0.3 and workload.held:
                workload.held.remove(dice.choice(workload.held))
            if dice.random() < 0.1:
                run.cache.cancel_fetch(name)
            pending.append(asyncio.ensure_future(workload.use(name)))
            await asyncio.sleep(0.001 * dice.randrange(4))
            if step % 3 == 0:
                workload.hold(limit // 4)
            workload.heed()
            workload.check()
        workload.held.clear()
        workload.heed()
        await asyncio.wait_for(asyncio.gather(*pending), 60)
    assert workload.wrong == []
    assert workload.checks > STEPS
    assert any(isinstance(fact, Evicted) for fact in run.facts)


def two_models(tmp_path: Path) -> dict[ModelName, Weights]:
    for name, size in ((M, 3 * MIB), (N, 2 * MIB)):
        (tmp_path / name).write_bytes(noise(size, size))
    return {M: Weights(f"file://{tmp_path}/{M}"), N: Weights(f"file://{tmp_path}/{N}")}


async def told_in_order(run: Running, kind: type[Fact]) -> list[Fact]:
    return [fact for fact in run.facts if isinstance(fact, kind)]


async def test_a_disk_that_others_fill_makes_a_fetch_evict_and_then_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [10 * MIB]
    monkeypatch.setattr(room, "read_disk", lambda path: Disk(100 * MIB, free[0]))
    async with running(tmp_path / "cache", two_models(tmp_path), keep_free=0.05) as run:
        await run.fetch(N)
        free[0] = 7 * MIB  # 5 are to be kept free, 2 are left, 3 are needed
        run.cache.heed({N: Standing(pinned=True)})
        run.cache.fetch(M)
        waits = await run.until(FetchWaits)
        assert waits.detail.startswith("the part of the disk to keep free leaves 1.0 MB too little")
        free[0] = 9 * MIB
        assert isinstance(await run.answer(M), WeightsFetched)
        assert set(run.cached) == {M, N}


async def test_a_disk_that_is_full_in_the_middle_of_a_fetch_lets_it_wait_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refusals = Partial.write, [2]

    def write(self: Partial, data: memoryview, at: int) -> None:
        if at >= MIB and refusals[0]:
            refusals[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, data, at)

    monkeypatch.setattr(Partial, "write", write)
    async with running(tmp_path / "cache", two_models(tmp_path)) as run:
        answer = await run.fetch(M)
        assert isinstance(answer, WeightsFetched)
        waits = await told_in_order(run, FetchWaits)
        assert [fact.detail for fact in waits] == ["the disk says that it is full, although more should be free"]  # type: ignore[union-attr]
        assert refusals == [0]


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.EACCES])
async def test_a_disk_that_refuses_fails_the_fetch_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async with running(tmp_path / "cache", two_models(tmp_path)) as run:
        await run.fetch(N)

        def write(self: Partial, data: memoryview, at: int) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as broken:
            broken.setattr(Partial, "write", write)
            answer = await run.fetch(M)
            assert isinstance(answer, FetchFailed)
            assert (answer.failure, os.strerror(number) in answer.detail) == (FetchFailure.DISK, True)
        assert set(run.cached) == {N}
        assert isinstance(await run.fetch(M), WeightsFetched)


async def test_partials_that_nobody_fills_leave_before_any_copy(tmp_path: Path) -> None:
    models = two_models(tmp_path)
    left = tmp_path / "cache/.swapd/partial/left"
    left.mkdir(parents=True)
    (left / "data").write_bytes(noise(2 * MIB))
    async with running(tmp_path / "cache", models, max_size=6 * MIB) as run:
        run.cache.heed({N: Standing(frequency=0.001)})
        await run.fetch(N)
        assert 4 * MIB <= run.cache.stats().used < 4 * MIB + 64 * KIB, "folders and journals included"
        await run.fetch(M)
        assert set(run.cached) == {M, N}
        assert not left.exists()


async def test_what_others_put_into_the_folder_counts_and_stays(tmp_path: Path) -> None:
    models = two_models(tmp_path)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/by-hand.gguf").write_bytes(noise(4 * MIB))
    async with running(tmp_path / "cache", models, max_size=6 * MIB) as run:
        run.cache.fetch(M)
        waits = await run.until(FetchWaits)
        assert "leaves 1.0 MB too little" in waits.detail
        (tmp_path / "cache/by-hand.gguf").unlink()
        assert isinstance(await run.answer(M), WeightsFetched)


async def test_a_disk_that_refuses_while_others_have_filled_it_makes_idle_copies_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, free = Partial.write, [90 * MIB]

    def write(self: Partial, data: memoryview, at: int) -> None:
        if "cached" in told and at >= 2 * MIB:
            free[0] = 0
            told.clear()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(self, data, at)

    told: list[str] = []
    monkeypatch.setattr(room, "read_disk", lambda path: Disk(100 * MIB, free[0]))
    monkeypatch.setattr(Partial, "write", write)
    async with running(tmp_path / "cache", two_models(tmp_path), connections=1) as run:
        await run.fetch(N)
        told.append("cached")
        run.cache.fetch(M)
        await run.until(Evicted)
        waits = await run.until(FetchWaits)
        assert waits.detail.startswith("the part of the disk to keep free leaves ")
        free[0] = 50 * MIB
        assert isinstance(await run.answer(M), WeightsFetched)
        assert set(run.cached) == {M}


async def test_bytes_that_a_copy_has_from_its_partials_are_counted_once_whenever_the_folder_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    used: list[int] = []

    async def look() -> None:
        await run.cache._folder.look()
        used.append(run.cache.stats().used)

    def assembled(*arguments: Any) -> Copy:
        made = copies.assemble(*arguments)
        asyncio.run_coroutine_threadsafe(look(), loop).result(60)
        return made

    monkeypatch.setattr(flight, "assemble", assembled)
    monkeypatch.setattr(room.Room, "clear_away", lambda *_: None)
    async with running(tmp_path / "cache", two_models(tmp_path)) as run:
        assert isinstance(await run.fetch(M), WeightsFetched)
        await look()
    assert used == [3 * MIB, 3 * MIB], "while it is put together, and before the partials are removed"


async def test_what_residents_have_to_give_is_told_after_every_look_and_no_progress_meanwhile(tmp_path: Path) -> None:
    models = two_models(tmp_path)
    models[P] = Weights(f"file://{tmp_path}/{P}")
    (tmp_path / P).write_bytes(noise(MIB, 7))
    async with running(tmp_path / "cache", models, max_size=5 * MIB, progress_period=MILLISECOND) as run:
        await run.fetch(N)
        await run.fetch(P)
        run.cache.heed({N: Standing(held=True)})
        run.cache.fetch(M)
        assert isinstance(await run.answer(M), WeightsFetched)  # the one that nobody holds was enough
        assert set(run.cached) == {M, N}
        since = len(run.facts)
        run.cache.heed({M: Standing(held=True), N: Standing(held=True)})
        run.cache.fetch(P)
        first = await run.until(FetchWaits, P, since=since)
        again = len(run.facts)
        run.cache.heed({M: Standing(held=True), N: Standing(held=True)})
        second = await run.until(FetchWaits, P, since=again)
        assert 0 < first.lacking <= MIB + 64 * KIB
        assert (second.lacking, second.detail) == (first.lacking, first.detail)
        waiting = run.facts[run.facts.index(first) :]
        assert not any(isinstance(fact, FetchProgressed) for fact in waiting)
        run.cache.heed({M: Standing(held=True)})
        assert isinstance(await run.answer(P, since=since), WeightsFetched)


async def test_copies_that_may_leave_are_not_reckoned_as_lacking(tmp_path: Path) -> None:
    models = two_models(tmp_path)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/by-hand.gguf").write_bytes(noise(5 * MIB))
    async with running(tmp_path / "cache", models, max_size=7 * MIB + 64 * KIB) as run:
        await run.fetch(N)
        run.cache.fetch(M)
        waits = await run.until(FetchWaits, M)
        assert MIB - 128 * KIB <= waits.lacking <= MIB
        assert set(run.cached) == {N}
        (tmp_path / "cache/by-hand.gguf").unlink()
        assert isinstance(await run.answer(M), WeightsFetched)


async def test_a_fetch_that_waits_for_room_keeps_no_other_from_running_and_gets_its_turn_again(tmp_path: Path) -> None:
    models = two_models(tmp_path)
    models[P] = Weights(f"file://{tmp_path}/{P}")
    (tmp_path / P).write_bytes(noise(MIB, 7))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/by-hand.gguf").write_bytes(noise(3 * MIB + 64 * KIB))
    running_now: list[int] = []
    async with running(
        tmp_path / "cache", models, max_size=6 * MIB, max_parallel_fetches=1, progress_period=MILLISECOND
    ) as run:
        run.on_fact = lambda _: running_now.append(run.cache.stats().fetches_running)
        run.cache.fetch(M)
        await run.until(FetchWaits, M)
        assert run.cache.stats().fetches_queued == 1
        assert isinstance(await run.fetch(P), WeightsFetched)
        run.cache.fetch(N)
        (tmp_path / "cache/by-hand.gguf").unlink()
        assert isinstance(await run.answer(M), WeightsFetched)
        assert isinstance(await run.answer(N), WeightsFetched)
    assert set(running_now) <= {0, 1}


async def test_the_time_for_which_a_fetch_has_waited_for_room_says_nothing_of_its_source(tmp_path: Path) -> None:
    clock = [0]
    facts: list[Fact] = []
    told = asyncio.Event()

    def post(fact: Fact) -> None:
        facts.append(fact)
        told.set()

    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/by-hand.gguf").write_bytes(noise(4 * MIB))
    settings = CacheSettings(path=tmp_path / "cache", max_size=Bytes(5 * MIB), keep_free=0.0, space_period=MILLISECOND)
    cache = WeightCache(settings=settings, post=post, now=lambda: Instant(clock[0]))
    cache.serve(two_models(tmp_path))
    await cache.start()
    cache.fetch(M)
    while not any(isinstance(fact, WeightsFetched | FetchFailed) for fact in facts):
        told.clear()
        await told.wait()
        if any(isinstance(fact, FetchWaits) for fact in facts) and not clock[0]:
            clock[0] = 3600 * SECOND
            (tmp_path / "cache/by-hand.gguf").unlink()
    await cache.aclose()
    assert [fact.took for fact in facts if isinstance(fact, WeightsFetched)] == [0]


async def test_narrower_limits_let_leave_at_once_whoever_may_and_nobody_else(tmp_path: Path) -> None:
    async with running(tmp_path / "cache", two_models(tmp_path)) as run:
        await run.fetch(M)
        await run.fetch(N)
        await run.settled()
        run.cache.heed({M: Standing(pinned=True), N: Standing(frequency=9.0)})
        run.cache.keep_to(Limits(Bytes(2 * MIB), 0.0))
        assert (await run.until(Evicted)).models == (N,)
        assert run.cached == {M: 3 * MIB}, "too much still, and it has to stay"


async def test_wider_limits_let_a_fetch_go_on_that_waits_for_room(tmp_path: Path) -> None:
    settings = {"max_size": 4 * MIB, "space_period": 3600 * SECOND}
    async with running(tmp_path / "cache", two_models(tmp_path), **settings) as run:
        await run.fetch(M)
        run.cache.heed({M: Standing(held=True)})
        run.cache.fetch(N)
        await run.until(FetchWaits, N)
        run.cache.keep_to(Limits(Bytes(6 * MIB), 0.0))
        assert isinstance(await run.answer(N), WeightsFetched)


async def test_limits_that_are_kept_already_cost_no_copy(tmp_path: Path) -> None:
    async with running(tmp_path / "cache", two_models(tmp_path)) as run:
        await run.fetch(M)
        await run.settled()
        run.cache.keep_to(Limits(Bytes(4 * MIB), 0.0))
        await run.fetch(N)
        assert (await run.until(Evicted)).models == (M,), "only when the next one needed the room"
        assert [fact.models for fact in run.facts if isinstance(fact, Evicted)] == [(M,)]
