"""Taking stock: the core is told of the week, history of the totals, and the next run of this one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from swapd.agent.demand import EVERY_S, WEIGHED_EVERY, Stocktaking
from swapd.core.accounts import Costs
from swapd.core.events import DemandKnown, Event, WeekKnown
from swapd.core.ids import SECOND, Duration, Instant, ModelName
from swapd.core.reasons import PinnedBy
from swapd.core.view import NodeView
from swapd.history.store import History
from tests.fakes.node_views import in_steps, model_view, node_view

M01 = ModelName("m01")
HOUR_BEGINS_S = 500_000 * 3600.0


class Run:
    """One daemon's life as stocktaking sees it."""

    def __init__(self, history: History, wall: Callable[[], float]) -> None:
        self.facts: list[Event] = []
        self.now_s = 0.0
        self.requests = 0
        self.pinned_by: PinnedBy | None = None
        self.stock = Stocktaking(
            history,
            post=self.facts.append,
            now=lambda: Instant(round(self.now_s * SECOND)),
            view=lambda: in_steps(self.view()),
            record=lambda: DemandKnown(Instant(1), {}, Duration(2), self.requests + 0.5 * bool(self.pinned_by)),
            wall=wall,
        )

    def view(self) -> NodeView:
        asked_for = model_view("m01", totals=Costs(self.requests), pinned_by=self.pinned_by)
        return node_view(asked_for, model_view("leaving", configured=False))

    def weeks(self) -> list[dict[ModelName, float]]:
        told = (fact.weeks for fact in self.facts if isinstance(fact, WeekKnown))
        return [{model: week.costs.requests for model, week in weeks.items()} for weeks in told]


class Wall:
    def __init__(self, time_s: float) -> None:
        self.time_s = time_s

    def __call__(self) -> float:
        return self.time_s


async def opened(path: Path, wall: Wall) -> History:
    history = History(path / "state.db", report=pytest.fail, wall=wall)
    await history.start()
    return history


async def test_the_week_is_told_at_the_start_now_and_then_and_when_an_hour_ends(tmp_path: Path) -> None:
    wall = Wall(HOUR_BEGINS_S + 1800)
    history = await opened(tmp_path, wall)
    run = Run(history, wall)
    run.stock.begin()
    assert run.weeks() == [{M01: 0}]
    for minute in range(1, 31):
        wall.time_s += EVERY_S
        run.now_s += EVERY_S
        run.requests += 1
        run.stock.take(run.view())
        assert len(run.weeks()) == 1 + minute // WEIGHED_EVERY
    assert run.weeks()[-1] == {M01: 30}
    wall.time_s = HOUR_BEGINS_S + 2 * 3600
    run.stock.take(run.view())
    assert len(run.weeks()) == 5
    await history.aclose()


async def test_stock_is_taken_every_minute_and_just_after_the_hour(tmp_path: Path) -> None:
    wall = Wall(HOUR_BEGINS_S + 10)
    history = await opened(tmp_path, wall)
    stock = Run(history, wall).stock
    assert stock.pause_s() == EVERY_S
    wall.time_s = HOUR_BEGINS_S + 3590
    assert stock.pause_s() == pytest.approx(10, abs=0.1)
    wall.time_s += stock.pause_s()
    assert wall.time_s > HOUR_BEGINS_S + 3600
    await history.aclose()


async def test_the_next_run_is_told_what_this_one_has_left(tmp_path: Path) -> None:
    wall = Wall(HOUR_BEGINS_S)
    first = await opened(tmp_path, wall)
    run = Run(first, wall)
    run.stock.begin()
    run.requests = 7
    run.stock.take(run.view())
    run.pinned_by = PinnedBy.ON_THRASH
    run.stock.end()
    await first.aclose()
    wall.time_s += 90
    second = await opened(tmp_path, wall)
    again = Run(second, wall)
    again.now_s = 5
    again.stock.begin()
    told, week = again.facts
    assert told == DemandKnown(Instant(5 * SECOND), {}, Duration(2), 7.5, away=Duration(90 * SECOND))
    assert isinstance(week, WeekKnown)
    assert week.weeks[M01].costs.requests == 0  # seven requests in no observed time are no rate
    await second.aclose()


async def test_a_run_that_never_began_leaves_nothing(tmp_path: Path) -> None:
    wall = Wall(HOUR_BEGINS_S)
    history = await opened(tmp_path, wall)
    run = Run(history, wall)
    run.stock.end()
    assert run.facts == []
    assert history.demand() is None
    await history.aclose()
