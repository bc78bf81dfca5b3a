"""The record of requests: nothing but names and times, bounded, and whole after a crash."""

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from swapd.core.ids import ModelName
from swapd.history import arrivals
from swapd.history.arrivals import HEADER, KEPT_DAYS, Arrivals

NOON = 1_700_000_000.0 - 1_700_000_000 % 86_400 + 43_200
M01 = ModelName("m01")


class Wall:
    """A wall clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def record(directory: Path, wall: Wall, told: list[str]) -> AsyncIterator[Arrivals]:
    made = Arrivals(directory, report=told.append, wall=wall)
    try:
        yield made
    finally:
        await made.aclose()


async def read(made: Arrivals) -> str:
    return b"".join([chunk async for chunk in made.read()]).decode()


def days(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


async def test_a_request_is_written_with_the_time_of_its_arrival_and_of_its_service(tmp_path: Path) -> None:
    told: list[str] = []
    async with record(tmp_path / "a", Wall(), told) as made:
        made.record([(NOON - 12.5, M01, 2.25)])
        made.record([(NOON - 1, ModelName('odd,"name'), None)])
        assert await read(made) == f'{HEADER}{NOON - 12.5:.3f},m01,2.250\n{NOON - 1:.3f},"odd,""name",\n'
    [day] = days(tmp_path / "a")
    assert day.name == "arrivals-2023-11-14.csv"
    assert stat.S_IMODE(day.stat().st_mode) == 0o600
    assert told == []


async def test_what_is_recorded_is_there_after_a_restart_and_lines_go_on_where_a_crash_tore_one(tmp_path: Path) -> None:
    async with record(tmp_path, Wall(), []) as made:
        made.record([(NOON, M01, 1.0)])
    [day] = days(tmp_path)
    with day.open("a") as torn:
        torn.write("1700")
    async with record(tmp_path, Wall(), []) as made:
        made.record([(NOON, M01, 3.0)])
        assert await read(made) == f"{HEADER}{NOON:.3f},m01,1.000\n1700\n{NOON:.3f},m01,3.000\n"


async def test_days_beyond_a_week_are_forgotten(tmp_path: Path) -> None:
    wall = Wall()
    async with record(tmp_path, wall, []) as made:
        for day in range(KEPT_DAYS + 3):
            wall.now = NOON + 86_400 * day
            made.record([(wall.now, M01, day)])
            assert f",m01,{day}.000\n" in await read(made)
    assert len(days(tmp_path)) == KEPT_DAYS
    assert days(tmp_path)[0].name == "arrivals-2023-11-17.csv"


async def test_what_comes_while_the_clock_is_years_behind_is_kept_as_well(tmp_path: Path) -> None:
    wall = Wall()
    async with record(tmp_path, wall, []) as made:
        for day in range(KEPT_DAYS):
            wall.now = NOON + 86_400 * day
            made.record([(wall.now, M01, day)])
            await read(made)
        wall.now = 100_000.0
        made.record([(wall.now, M01, 77.0)])
        assert ",m01,77.000\n" in await read(made)
    assert len(days(tmp_path)) == KEPT_DAYS


async def test_a_full_day_takes_no_more_and_says_so_once_and_the_next_day_does(tmp_path: Path) -> None:
    wall, told = Wall(), []
    async with record(tmp_path, wall, told) as made:
        made.record([(wall.now, M01, 1.0)])
        before = await read(made)
        with (tmp_path / "arrivals-2023-11-14.csv").open("r+b") as full:
            full.truncate(arrivals.DAY_BYTES)
        for _ in range(2):
            made.record([(wall.now, M01, 2.0)])
            await read(made)
        assert [len(told), "16 MiB" in told[0]] == [1, True]
        wall.now += 86_400
        made.record([(wall.now, M01, 3.0)])
        after = await read(made)
    assert ",2.000" not in after
    assert after.endswith(f"{NOON + 86_400:.3f},m01,3.000\n")
    assert before in after
    assert told[1:] == [f"requests are recorded again in {tmp_path}"]


async def test_lines_longer_than_one_reading_stay_whole(tmp_path: Path) -> None:
    async with record(tmp_path, Wall(), []) as made:
        for number in range(100):
            made.record([(NOON, ModelName(f"model-{number}"), 1.0)])
        arrivals._CHUNK, kept = 64, arrivals._CHUNK  # type: ignore[misc]
        try:
            text = await read(made)
        finally:
            arrivals._CHUNK = kept  # type: ignore[misc]
    assert [line.split(",")[1] for line in text.splitlines()[1:]] == [f"model-{number}" for number in range(100)]


async def test_trouble_with_the_directory_is_reported_and_stands_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told: list[str] = []
    async with record(tmp_path / "file" / "below", Wall(), told) as made:
        made.record([(NOON, M01, 1.0)])
        assert await read(made) == HEADER
    assert len(told) == 1
    assert "not recorded" in told[0]


async def test_more_lines_than_fit_in_memory_are_dropped_and_told(tmp_path: Path) -> None:
    told: list[str] = []
    async with record(tmp_path, Wall(), told) as made:
        for _ in range(arrivals._BUFFERED + 5):
            made.record([(NOON, M01, None)])
        assert len((await read(made)).splitlines()) == arrivals._BUFFERED + 1
        await asyncio.sleep(0)
    assert "faster" in told[0]
