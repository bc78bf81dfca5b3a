"""Changes in a folder are heard of, and nothing is left when nobody listens any more."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from swapd.aio.watching import watched

DEADLINE_S = 30.0


def listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "watch"]


async def test_a_change_is_told_and_so_is_quiet(tmp_path: Path) -> None:
    told: list[str] = []
    async with asyncio.timeout(DEADLINE_S), aclosing(watched(tmp_path, quiet_ms=20, step_ms=10)) as events:
        async for changes in events:
            told += [Path(name).name for _, name in changes]
            if not changes and not told:
                (tmp_path / "new").touch()
            elif not changes:
                break
    assert set(told) == {"new"}


@pytest.mark.parametrize("end", ["left", "cancelled", "stopped"])
async def test_the_thread_ends_with_who_listens(tmp_path: Path, end: str) -> None:
    begun, stop = asyncio.Event(), asyncio.Event()

    async def listen(quiet_ms: int, stopped: Callable[[], bool]) -> None:
        async with aclosing(watched(tmp_path, quiet_ms=quiet_ms, step_ms=10, stopped=stopped)) as events:
            begun.set()
            async for _ in events:
                return

    never = 1000 * round(DEADLINE_S)
    listening = asyncio.create_task(listen(20 if end == "left" else never, stop.is_set))
    await begun.wait()
    await asyncio.sleep(0)
    if end == "cancelled":
        listening.cancel()
    elif end == "stopped":
        stop.set()
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.wait([listening])
    assert listeners() == []


async def test_what_cannot_be_watched_is_said_and_leaves_no_thread(tmp_path: Path) -> None:
    async with aclosing(watched(tmp_path / "nowhere", quiet_ms=20)) as events:
        with pytest.raises(FileNotFoundError):
            await anext(events)
    assert listeners() == []
