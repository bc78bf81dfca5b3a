"""Long work lets the loop turn between its steps."""

import asyncio
from collections.abc import Generator

import pytest

from swapd.aio import turns
from swapd.aio.turns import at_once, in_turns

STEPS = 50


def counting(taken: list[int]) -> Generator[None, None, str]:
    for step in range(STEPS):
        taken.append(step)
        yield
    return "done"


async def test_others_have_their_turn_between_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_AT_ONCE_S", 0.0)
    taken: list[int] = []
    work = asyncio.create_task(in_turns(counting(taken)))
    seen = set()
    while not work.done():
        await asyncio.sleep(0)
        seen.add(len(taken))
    assert await work == "done"
    assert seen >= set(range(1, STEPS + 1))


async def test_steps_that_take_no_time_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_AT_ONCE_S", 3600.0)
    taken: list[int] = []
    work = asyncio.create_task(in_turns(counting(taken)))
    await asyncio.sleep(0)
    assert len(taken) == STEPS
    assert await work == "done"


async def test_what_a_step_raises_comes_out() -> None:
    def broken() -> Generator[None, None, None]:
        yield
        raise LookupError

    with pytest.raises(LookupError):
        await in_turns(broken())


def test_all_steps_can_be_taken_where_nobody_waits() -> None:
    taken: list[int] = []
    assert at_once(counting(taken)) == "done"
    assert len(taken) == STEPS
