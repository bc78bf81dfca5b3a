"""Hourly counts: gaps, restarts and clocks that jump do not spoil the week."""

import pytest

from swapd.core.accounts import Costs
from swapd.core.ids import Instant, ModelName, seconds
from swapd.core.tiers import Tier
from swapd.history.hours import KEPT_HOURS, MOST_ELAPSED_S, Hours, Row, Rows

A, B = ModelName("a"), ModelName("b")
HOUR = 500_000
WALL_S = HOUR * 3600.0


class Clocks:
    """A daemon that takes stock every minute, with a monotonic and a wall clock."""

    def __init__(self, rows: Rows | None = None, tiers: dict[ModelName, Tier] | None = None) -> None:
        self.mono_s, self.wall_s, self.requests = 0.0, WALL_S, {A: 0}
        self.rows: Rows = {} if rows is None else rows
        self.hours = Hours(self.rows, tiers or {}, at=Instant(0), wall_s=self.wall_s)

    def minute(self, requests: int = 1, *, jump_s: float = 0.0, stood_still_s: float = 0.0) -> dict[ModelName, Row]:
        self.mono_s += 60 + stood_still_s
        self.wall_s += 60 + stood_still_s + jump_s
        for model in self.requests:
            self.requests[model] += requests
        totals = {model: Costs(count) for model, count in self.requests.items()}
        return self.hours.observe(totals, at=Instant(seconds(self.mono_s)), wall_s=self.wall_s)

    def run(self, hours: float, per_minute: int = 1) -> None:
        for _ in range(round(hours * 60)):
            self.minute(per_minute)


def test_each_hour_has_what_was_asked_for_in_it() -> None:
    clocks = Clocks()
    clocks.run(1, per_minute=2)
    clocks.run(1, per_minute=3)
    assert clocks.rows == {HOUR: {A: Row(3600, Costs(120))}, HOUR + 1: {A: Row(3600, Costs(180))}}
    week = clocks.hours.weeks([A])[A]
    assert (week.observed_hours, week.requests_per_hour, week.share) == (2, 150, 1)
    assert week.costs == Costs(300)


def test_what_is_observed_is_told_so_that_it_can_be_written() -> None:
    clocks = Clocks()
    assert clocks.minute(5) == {A: Row(60, Costs(5))}
    assert clocks.minute(5) == {A: Row(120, Costs(10))}
    assert clocks.hours.hour == HOUR


def test_a_week_has_168_hours_and_then_some_are_kept() -> None:
    clocks = Clocks()
    clocks.run(400, per_minute=1)
    assert clocks.hours.weeks([A])[A].observed_hours == pytest.approx(168, abs=1)
    dropped = clocks.hours.drop()
    assert (len(dropped), len(clocks.rows), min(clocks.rows)) == (400 - KEPT_HOURS, KEPT_HOURS, HOUR + 400 - KEPT_HOURS)
    assert clocks.hours.drop() == ()


def test_time_down_is_not_observed() -> None:
    clocks = Clocks()
    clocks.run(30)
    later = Clocks(clocks.rows)
    later.wall_s += 100 * 3600
    later.hours = Hours(clocks.rows, {}, at=Instant(0), wall_s=later.wall_s)
    later.run(30)
    week = later.hours.weeks([A])[A]
    assert (week.observed_hours, week.requests_per_hour, week.provisional) == (60, 60, False)


def test_a_process_that_stood_still_has_not_observed_that_time() -> None:
    clocks = Clocks()
    clocks.minute()
    clocks.minute(stood_still_s=MOST_ELAPSED_S)
    assert clocks.rows[HOUR][A] == Row(60, Costs(2))


def test_a_clock_that_is_set_back_has_its_hour_twice_and_the_mean_stays_right() -> None:
    clocks = Clocks()
    clocks.run(2)
    clocks.minute(jump_s=-2 * 3600)
    clocks.run(2)
    week = clocks.hours.weeks([A])[A]
    assert week.requests_per_hour == pytest.approx(60)
    assert week.p99_per_hour == pytest.approx(60, rel=0.05)


def test_a_clock_that_is_wrong_for_a_while_loses_nothing() -> None:
    clocks = Clocks()
    clocks.run(48)
    wrong = 20 * 365 * 86_400
    clocks.minute(jump_s=wrong)
    clocks.run(1)
    assert clocks.hours.weeks([A])[A].provisional
    assert clocks.hours.drop() == ()
    clocks.minute(jump_s=-wrong)
    clocks.run(1)
    assert clocks.hours.weeks([A])[A].observed_hours == pytest.approx(49, abs=0.1)


def test_a_tier_that_is_settled_is_remembered_and_a_provisional_one_is_not() -> None:
    clocks = Clocks()
    clocks.run(23)
    assert (clocks.hours.weeks([A])[A].tier, clocks.hours.tiers()) == (Tier.WARM, {})
    clocks.run(2)
    assert clocks.hours.weeks([A])[A].tier is Tier.WARM
    assert clocks.hours.tiers() == {A: Tier.WARM}
    again = Clocks({}, {A: Tier.WARM})
    again.run(1, per_minute=0)
    assert again.hours.weeks([A])[A].tier is Tier.WARM


def test_models_that_come_later_are_observed_from_then_on_and_counters_may_begin_again() -> None:
    clocks = Clocks()
    clocks.run(1)
    clocks.requests[B] = 0
    clocks.run(1, per_minute=2)
    weeks = clocks.hours.weeks([A, B])
    assert (weeks[A].observed_hours, weeks[B].observed_hours, weeks[B].requests_per_hour) == (2, 1, 120)
    assert weeks[A].share + weeks[B].share == pytest.approx(1)
    clocks.requests[A] = 0  # removed from the configuration and back
    clocks.minute(4)
    assert clocks.rows[HOUR + 2][A] == Row(60, Costs(4))
