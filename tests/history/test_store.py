"""History as the daemon uses it: never in the way, whatever the file is like."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from swapd.core.accounts import Costs
from swapd.core.catalog import Source
from swapd.core.events import DemandKnown
from swapd.core.ids import SECOND, Bytes, Duration, InstanceId, Instant, ModelName
from swapd.core.reasons import Stage
from swapd.core.tiers import Tier
from swapd.history.database import Measured, connect
from swapd.history.hours import KEPT_HOURS
from swapd.history.store import INSTANCE_BLOCK, History

M01 = ModelName("m01")
KEY = (M01, Source.CACHE)
WALL_S = 1_700_000_000
DEADLINE_S = 60.0


class Reports(list[str]):
    """What the operator was told; can wait for the next sentence."""

    def __init__(self) -> None:
        super().__init__()
        self._told = asyncio.Event()

    def __call__(self, sentence: str) -> None:
        self.append(sentence)
        self._told.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self) < count:
                self._told.clear()
                await self._told.wait()


@asynccontextmanager
async def history_at(path: Path, reports: Reports, **options: Any) -> AsyncIterator[History]:
    made = History(path, report=reports, wall=lambda: float(WALL_S), **options)
    await made.start()
    try:
        yield made
    finally:
        await made.aclose()


@pytest.fixture
async def reports() -> Reports:
    return Reports()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


def content(path: Path) -> bytes:
    return path.read_bytes()


def damage(path: Path) -> None:
    path.write_bytes(b"this is no database, whatever its name says" * 100)


def record(history: History, *times: int, source: Source = Source.CACHE) -> None:
    for time in times:
        history.record_load(M01, source, Duration(time), {Stage.LOAD: Duration(time)})


async def test_footprints_survive_a_restart_for_the_revision_they_were_measured_with(
    path: Path, reports: Reports
) -> None:
    async with history_at(path, reports) as first:
        first.record_footprint(M01, Measured("r1", Bytes(10), Bytes(14)))
        assert first.footprints({M01: "r1"}) == {M01: 14}
    async with history_at(path, reports) as second:
        assert second.footprints({M01: "r1"}) == {M01: 14}
        assert second.footprints({M01: "r2"}) == {}
    assert reports == []


async def test_the_most_gpus_ever_seen_survive_a_restart(path: Path, reports: Reports) -> None:
    async with history_at(path, reports) as first:
        first.gpus_seen(8)
        first.gpus_seen(7)
    async with history_at(path, reports) as second:
        assert second.most_gpus() == 8


async def test_the_last_five_load_times_of_each_source_survive_a_restart(path: Path, reports: Reports) -> None:
    async with history_at(path, reports) as first:
        assert first.load_times() == {}
        record(first, 1, 2, 3, 4, 5, 6)
        record(first, 50, source=Source.REMOTE)
        record(first, 3, 1, source=Source.PAGE_CACHE)
        kept = {KEY: (2, 3, 4, 5, 6), (M01, Source.REMOTE): (50,), (M01, Source.PAGE_CACHE): (3, 1)}
        assert first.load_times() == kept
    async with history_at(path, reports) as second:
        assert second.load_times() == kept
    assert reports == []


async def test_an_instance_id_is_never_given_out_twice_across_restarts(path: Path, reports: Reports) -> None:
    used: set[int] = set()
    for count in (1, 10, INSTANCE_BLOCK * 2 + 300, 5):
        async with history_at(path, reports) as history:
            first = history.first_instance()
            ids = range(first, first + count)
            assert used.isdisjoint(ids)
            for number in ids:
                history.instance_used(InstanceId(number))
            used.update(ids)
    assert reports == []


async def test_ids_are_not_reused_even_if_the_daemon_dies_without_a_word(path: Path, reports: Reports) -> None:
    first = History(path, report=reports)
    await first.start()
    lowest = first.first_instance()
    try:
        async with history_at(path, reports) as second:
            assert second.first_instance() >= lowest + INSTANCE_BLOCK
    finally:
        await first.aclose()


async def test_a_damaged_file_is_moved_aside_and_a_new_one_begun(path: Path, reports: Reports) -> None:
    damage(path)
    async with history_at(path, reports) as history:
        assert history.load_times() == {}
        assert history.first_instance() == WALL_S * INSTANCE_BLOCK
        record(history, 7)
    aside = path.with_name(f"state.db.damaged-{WALL_S}")
    assert content(aside).startswith(b"this is no database")
    assert reports == [f"the history file {path} was damaged; it is now {aside.name}, and a new one is begun"]
    async with history_at(path, reports) as again:
        assert again.load_times() == {KEY: (7,)}
        assert again.first_instance() == (WALL_S + 1) * INSTANCE_BLOCK


async def test_a_locked_file_is_reported_once_and_written_when_it_is_free(path: Path, reports: Reports) -> None:
    async with history_at(path, reports) as history:
        record(history, 1)
    locker = connect(path)
    locker.execute("BEGIN EXCLUSIVE")
    async with history_at(path, reports) as history:
        assert history.first_instance() == WALL_S * INSTANCE_BLOCK
        record(history, 2)
        record(history, 3)
        assert history.load_times() == {KEY: (2, 3)}
        trouble = "another process holds its lock; new figures stay in memory"
        assert reports == [f"the history file {path} is not written: {trouble}"]
        locker.execute("ROLLBACK")
        locker.close()
        record(history, 4)
        await reports.wait_for(2)
        assert reports[1:] == [f"the history file {path} is written again"]
    async with history_at(path, reports) as history:
        assert history.load_times() == {KEY: (1, 2, 3, 4)}


async def test_a_full_disk_stops_the_writing_and_not_the_daemon(path: Path, reports: Reports) -> None:
    def small(at: Path) -> sqlite3.Connection:
        connection = connect(at)
        connection.execute("PRAGMA max_page_count = 6")
        return connection

    async with history_at(path, reports, opened=small) as history:
        sources = (Source.CACHE, Source.PAGE_CACHE, Source.REMOTE)
        for time in range(60):
            history.record_load(ModelName(f"m{time:02}" * 60), sources[time % 3], Duration(time * SECOND), {})
        await reports.wait_for(1)
        assert len(history.load_times()) == 60
    assert reports[0] == f"the history file {path} is not written: the disk is full; new figures stay in memory"


async def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path, reports: Reports) -> None:
    (tmp_path / "file").write_text("in the way")
    async with history_at(tmp_path / "file" / "state.db", reports) as history:
        record(history, 1)
        assert history.first_instance() == WALL_S * INSTANCE_BLOCK
        assert history.load_times() == {KEY: (1,)}
    assert len(reports) == 1
    assert "is not written: " in reports[0]


async def test_a_file_of_a_later_version_is_reported_and_not_touched(path: Path, reports: Reports) -> None:
    async with history_at(path, reports) as history:
        record(history, 1)
    with connect(path) as other:
        other.execute("PRAGMA user_version = 99")
    other.close()
    before = content(path)
    async with history_at(path, reports) as history:
        record(history, 2)
    assert content(path) == before
    assert "its format is version 99" in reports[0]


async def test_a_disk_that_hangs_holds_up_neither_the_start_nor_the_caller(
    path: Path, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swapd.history.store._CALL_S", 0.05)
    released = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hanging(at: Path) -> sqlite3.Connection:
        asyncio.run_coroutine_threadsafe(released.wait(), loop).result(DEADLINE_S)
        return connect(at)

    async with history_at(path, reports, opened=hanging) as history:
        for time in range(1000):
            record(history, time)
        assert history.load_times() == {KEY: (995, 996, 997, 998, 999)}
        await reports.wait_for(1)
        monkeypatch.undo()
        released.set()
    assert reports == [
        f"the history file {path} is not written: it answers too slowly; new figures stay in memory",
        f"the history file {path} is written again",
    ]
    async with history_at(path, reports) as later:
        assert later.load_times() == {KEY: (995, 996, 997, 998, 999)}


async def test_what_the_file_refuses_keeps_nothing_else_from_it_at_the_end(path: Path, reports: Reports) -> None:
    class Fussy(sqlite3.Connection):
        """Takes no footprints."""

        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            if "INTO footprint" in arguments[0]:
                raise sqlite3.IntegrityError("CHECK constraint failed")
            return super().execute(*arguments)

    def fussy(at: Path) -> sqlite3.Connection:
        return sqlite3.connect(at, isolation_level=None, check_same_thread=False, factory=Fussy)

    async with history_at(path, reports, opened=fussy) as history:
        history.record_footprint(M01, Measured("r1", Bytes(10), Bytes(1)))
        history.record_footprint(ModelName("m02"), Measured("r1", Bytes(10), Bytes(1)))
        record(history, 1)
    async with history_at(path, reports) as later:
        assert later.load_times() == {KEY: (1,)}


class _Failing(sqlite3.Connection):
    """Fails the call whose turn it is, as a disk that breaks at the worst moment."""

    fail_at = 0
    calls = 0

    def _count(self) -> None:
        type(self).calls += 1
        if self.calls == self.fail_at:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self._count()
        return super().execute(*arguments)

    def executescript(self, *arguments: Any) -> sqlite3.Cursor:
        self._count()
        return super().executescript(*arguments)


def failing(at: int) -> Callable[[Path], sqlite3.Connection]:
    kind = type("Failing", (_Failing,), {"fail_at": at, "calls": 0})
    return lambda path: sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=kind)


async def test_whichever_call_fails_the_file_stays_whole_and_ids_stay_fresh(tmp_path: Path) -> None:
    """The first call fails, then the second, … until none does."""
    for call in range(1, 100):
        path, reports = tmp_path / f"{call}.db", Reports()
        async with history_at(path, Reports()) as before:
            record(before, 1)
            used = before.first_instance()
        async with history_at(path, reports, opened=failing(call)) as history:
            assert history.first_instance() > used
            used = history.first_instance()
            record(history, 2)
            record(history, 3)
        async with history_at(path, Reports()) as after:
            assert after.load_times().get(KEY, ()) in {(1,), (1, 2), (1, 3), (1, 2, 3), (1, 3, 2)}
            assert after.first_instance() > used or used == WALL_S * INSTANCE_BLOCK
        if not reports:
            assert call > 8
            return
    pytest.fail("the last call was never reached")


# ── demand ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def minutes(history: History, count: int, *, per_minute: int, begin: int = 0) -> None:
    """Take stock every minute; the wall clock of these tests stands still, so that it is one hour."""
    for minute in range(begin + 1, begin + count + 1):
        history.observe_demand({M01: Costs(minute * per_minute)}, Instant(minute * 60 * SECOND))


async def test_demand_survives_a_restart(path: Path, reports: Reports) -> None:
    async with history_at(path, reports) as first:
        first.begin_hours(Instant(0))
        minutes(first, 30, per_minute=2)
        assert first.weeks([M01])[M01].requests_per_hour == 120
    async with history_at(path, reports) as second:
        second.begin_hours(Instant(0))
        minutes(second, 30, per_minute=4)
        week = second.weeks([M01])[M01]
        assert (week.observed_hours, week.costs.requests, week.requests_per_hour) == (1, 180, 180)
    assert reports == []


async def test_tiers_survive_a_restart(path: Path, reports: Reports) -> None:
    for _ in range(2):  # each run observes 13 hours
        async with history_at(path, reports) as run:
            run.begin_hours(Instant(0))
            for count in range(1, 157):
                run.observe_demand({M01: Costs(count * 5)}, Instant(count * 300 * SECOND))
            run.weeks([M01])
    async with history_at(path, reports) as last:
        assert last._known.tiers == {M01: Tier.WARM}
    assert reports == []


async def test_the_record_of_an_earlier_run_is_as_old_as_the_wall_clock_says(path: Path, reports: Reports) -> None:
    known = DemandKnown(Instant(5), {}, Duration(6), 7.0)
    async with history_at(path, reports) as first:
        assert first.demand() is None
        first.record_demand(known)
    for wall_s, away_s in ((WALL_S + 90, 90), (WALL_S - 1000, 0), (WALL_S + 10**9, 30 * 86_400)):
        later = History(path, report=reports, wall=lambda wall_s=wall_s: float(wall_s))
        await later.start()
        assert later.demand() == (known, away_s * SECOND)
        await later.aclose()


async def test_hours_that_pass_while_the_file_is_not_written_reach_it_later(path: Path, reports: Reports) -> None:
    wall = [float(WALL_S)]
    history = History(path, report=reports, wall=lambda: wall[0])
    await history.start()
    history.begin_hours(Instant(0))
    locker = connect(path)
    locker.execute("BEGIN EXCLUSIVE")
    for hour in range(1, 4):
        history.observe_demand({M01: Costs(hour), ModelName("m02"): Costs()}, Instant(2 * hour * SECOND))
        history.observe_demand({M01: Costs(hour)}, Instant((2 * hour + 1) * SECOND))  # m02 was removed
        wall[0] += 3600
        history.record_footprint(M01, Measured("r1", Bytes(10), Bytes(hour)))
    await reports.wait_for(1)
    locker.execute("ROLLBACK")
    locker.close()
    history.observe_demand({M01: Costs(4)}, Instant(9 * SECOND))
    await history.aclose()
    with closing(connect(path)) as other:
        assert other.execute("SELECT model, requests FROM demand ORDER BY hour, model").fetchall() == [
            ("m01", 2),
            ("m02", 0),
            ("m01", 1),
            ("m02", 0),
            ("m01", 1),
        ]
        assert other.execute("SELECT measured_bytes FROM footprint").fetchall() == [(3,)]


async def test_hours_beyond_the_limit_leave_the_file(path: Path, reports: Reports) -> None:
    wall = [float(WALL_S)]
    history = History(path, report=reports, wall=lambda: wall[0])
    await history.start()
    history.begin_hours(Instant(0))
    for hour in range(1, KEPT_HOURS + 6):
        wall[0] += 3600
        history.observe_demand({M01: Costs(hour)}, Instant(hour * SECOND))
    await history.aclose()
    with closing(connect(path)) as other:
        assert other.execute("SELECT count(*), max(hour) - min(hour) FROM demand").fetchone() == (
            KEPT_HOURS,
            KEPT_HOURS - 1,
        )
    assert reports == []
