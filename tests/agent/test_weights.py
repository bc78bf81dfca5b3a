"""Orders reach the weight cache and its facts the core; a cache that cannot be opened harms nobody else."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from swapd.agent.weights import WeightDesk, cache_settings
from swapd.aio.clock import monotonic_now
from swapd.aio.supervise import Tasks
from swapd.config.schema import Settings
from swapd.core.commands import (
    CancelFetch,
    FetchWeights,
    KeepWeights,
    RefetchWeights,
    StopWarming,
    VerifyWeights,
    WarmWeights,
)
from swapd.core.events import (
    Event,
    FetchFailed,
    FetchWaits,
    WeightsCached,
    WeightsFetched,
    WeightsVerified,
    WeightsWarmed,
)
from swapd.core.ids import Bytes, Duration, Instant, ModelName
from swapd.core.reasons import FetchFailure
from swapd.core.view import WeightStanding

A, B = ModelName("a"), ModelName("b")
DEADLINE_S = 60.0


class Desk:
    """A desk with a cache below a temporary folder, and what it has told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[Event] = []
        self.sizes: list[dict[ModelName, Bytes]] = []
        self.standings: dict[ModelName, WeightStanding] = {}
        self.on_post: Callable[[Event], None] = lambda _: None
        self.on_sized: Callable[[], None] = lambda: None
        self.tasks = Tasks()
        self.desk = WeightDesk(
            cache_settings(self.settings({})),
            post=self._post,
            now=monotonic_now,
            standings=lambda: self.standings,
            sized=self._sized,
        )

    def _post(self, event: Event) -> None:
        self.told.append(event)
        self.on_post(event)

    def _sized(self, sizes: Mapping[ModelName, Bytes]) -> None:
        self.sizes.append(dict(sizes))
        self.on_sized()

    def settings(self, models: dict[str, Any], **cache: Any) -> Settings:
        plain = {"command": ["./serve", "{port}"], "memory": "1GiB"}
        return Settings.model_validate(
            {
                "cache": {"path": str(self.folder / "cache"), **cache},
                "models": {name: {**plain, "weights": weights} for name, weights in models.items()},
            }
        )

    def source(self, name: str, content: bytes = b"weights") -> dict[str, str]:
        path = self.folder / name
        path.write_bytes(content)
        return {"source": f"file://{path}"}

    async def next(self, kind: type[Any], *, after: int = 0) -> Any:
        """Wait for a fact of this kind."""
        async with asyncio.timeout(DEADLINE_S):
            while not (found := [fact for fact in self.told[after:] if isinstance(fact, kind)]):
                await asyncio.sleep(0.005)
        return found[0]

    async def fetched(self, model: ModelName = A) -> WeightsFetched:
        before = len(self.told)
        self.desk.carry_out(FetchWeights(model, ahead=False))
        fact: WeightsFetched = await self.next(WeightsFetched, after=before)
        return fact


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(tmp_path)
    yield made
    await made.desk.aclose()
    await made.tasks.aclose()


async def test_a_fetch_that_the_core_orders_ends_with_a_copy_that_an_engine_can_load(desk: Desk) -> None:
    desk.desk.serve(desk.settings({"a": desk.source("m.gguf")}))
    await desk.desk.start(desk.tasks)
    assert desk.desk.path(A) is None
    fact = await desk.fetched()
    assert (fact.model, fact.fetched) == (A, 7)
    copy = desk.desk.path(A)
    assert copy is not None
    assert (copy.name, copy.read_bytes()) == ("m.gguf", b"weights")
    cached = [event.cached for event in desk.told if isinstance(event, WeightsCached)]
    assert cached == [{}, {A: 7}]
    assert desk.sizes == [{}, {A: 7}]
    assert desk.told.index(fact) == len(desk.told) - 1


async def test_what_is_told_is_never_older_than_what_was_posted_before(desk: Desk) -> None:
    stamps: list[Instant] = []
    desk.on_post = lambda event: stamps.append(event.at)
    # the daemon tells the core of new sizes in between
    desk.on_sized = lambda: stamps.append(monotonic_now())
    desk.desk.serve(desk.settings({"a": desk.source("m.gguf")}))
    await desk.desk.start(desk.tasks)
    await desk.fetched()
    # cached already: this answer is made at once and posted a turn later
    desk.desk.carry_out(FetchWeights(A, ahead=False))
    stamps.append(monotonic_now())
    await desk.next(WeightsFetched, after=len(desk.told))
    assert len(stamps) > 5
    assert stamps == sorted(stamps)


async def test_without_a_source_there_is_no_folder_and_files_that_lie_here_are_still_read_ahead(desk: Desk) -> None:
    (desk.folder / "m.gguf").write_bytes(b"weights")
    desk.desk.serve(desk.settings({"a": str(desk.folder / "m.gguf")}))
    await desk.desk.start(desk.tasks)
    desk.desk.carry_out(WarmWeights(A))
    warmed = await desk.next(WeightsWarmed)
    assert (warmed.model, warmed.read + warmed.present, warmed.whole) == (A, 7, True)
    desk.desk.carry_out(StopWarming(A))
    assert not (desk.folder / "cache").exists()
    assert (desk.desk.info(), desk.desk.figures()) == (None, None)


async def test_a_cache_that_cannot_be_opened_refuses_with_the_reason_until_it_can(desk: Desk) -> None:
    (desk.folder / "cache").write_text("in the way")
    desk.desk.serve(desk.settings({"a": desk.source("m.gguf")}))
    await desk.desk.start(desk.tasks)
    desk.desk.carry_out(FetchWeights(A, ahead=False))
    failed = await desk.next(FetchFailed)
    assert failed.failure is FetchFailure.DISK
    assert "cache" in failed.detail
    (desk.folder / "cache").unlink()
    assert (await desk.fetched()).fetched == 7


async def test_what_the_core_holds_is_not_removed_and_everything_else_is(desk: Desk) -> None:
    desk.desk.serve(desk.settings({"a": desk.source("m.gguf")}))
    await desk.desk.start(desk.tasks)
    await desk.fetched()
    desk.standings = {A: WeightStanding(held=True, pinned=False, frequency=1.0, refetch=Duration(1), last_used=None)}
    desk.desk.carry_out(KeepWeights())
    assert (await desk.desk.remove(A)).detail == "a is in use or pinned"
    desk.standings = {}
    assert (await desk.desk.remove(A)).detail == ""
    assert desk.desk.path(A) is None


async def test_a_look_at_a_copy_is_told_to_the_core_and_to_the_operator(desk: Desk) -> None:
    desk.desk.serve(desk.settings({"a": desk.source("m.gguf")}))
    await desk.desk.start(desk.tasks)
    await desk.fetched()
    assert (await desk.desk.verify(A)).intact
    assert (await desk.next(WeightsVerified)).intact
    before = len(desk.told)
    desk.desk.carry_out(VerifyWeights(A))
    assert (await desk.next(WeightsVerified, after=before)).model == A
    before = len(desk.told)
    desk.desk.carry_out(RefetchWeights(A))
    assert (await desk.next(WeightsFetched, after=before)).model == A


async def test_what_a_fetch_lacks_on_the_disk_is_told_every_time_and_logged_once(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    for lacking in (7, 7):
        desk.desk._told(FetchWaits(Instant(0), A, "the disk is full", Bytes(lacking)))
    assert [event.lacking for event in desk.told if isinstance(event, FetchWaits)] == [7, 7]
    assert capsys.readouterr().out.count("the disk is full") == 1


async def test_a_smaller_cache_is_kept_to_when_the_core_has_taken_the_configuration_with_it(desk: Desk) -> None:
    models = {"a": desk.source("a.gguf", b"a" * 5000), "b": desk.source("b.gguf", b"b" * 5000)}
    desk.desk.serve(desk.settings(models))
    await desk.desk.start(desk.tasks)
    await desk.fetched(A)
    await desk.fetched(B)
    before = len(desk.told)
    desk.desk.serve(desk.settings(models, max_size=7000))
    # the core's part of the reload: the first one is pinned from now on
    desk.standings = {
        name: WeightStanding(held=False, pinned=name == A, frequency=1.0, refetch=Duration(1), last_used=None)
        for name in (A, B)
    }
    async with asyncio.timeout(DEADLINE_S):
        while (await desk.next(WeightsCached, after=before)).cached != {A: 5000}:
            before += 1
    assert desk.desk.path(A) is not None


async def test_a_fetch_can_be_given_up(desk: Desk) -> None:
    desk.desk.serve(desk.settings({"a": desk.source("m.gguf")}))
    await desk.desk.start(desk.tasks)
    desk.desk.carry_out(FetchWeights(A, ahead=True))
    desk.desk.carry_out(CancelFetch(A))
    assert (await desk.next(FetchFailed)).failure is FetchFailure.CANCELLED


@pytest.mark.parametrize("other", [False, True])
async def test_the_copy_of_a_former_source_does_not_count_for_the_new_one(desk: Desk, *, other: bool) -> None:
    first = desk.settings({"a": desk.source("m.gguf"), "b": desk.source("n.gguf", b"others!")})
    desk.desk.serve(first)
    await desk.desk.start(desk.tasks)
    await desk.fetched(A)
    await desk.fetched(B)
    before = len(desk.told)
    # the other one has a copy of the same size: for the room nothing changes
    desk.desk.serve(desk.settings({"a": desk.source("n.gguf" if other else "o.gguf", b"others!"), "b": None}))
    assert [event.cached for event in desk.told[before:] if isinstance(event, WeightsCached)] == [{}]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    last = [event.cached for event in desk.told if isinstance(event, WeightsCached)][-1]
    assert last == ({A: 7} if other else {})


async def test_no_secret_of_a_source_is_shown(desk: Desk) -> None:
    desk.desk.serve(desk.settings({"a": {"source": "http://user:geheim@127.0.0.1:1/m.gguf?key=geheim"}}))
    await desk.desk.start(desk.tasks)
    assert "geheim" not in str(desk.desk.info())
    assert desk.desk.figures() is not None
