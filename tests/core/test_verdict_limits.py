"""The limits of each verdict, from both sides; and how soon after its eviction a reload counts as a relapse."""

import pytest
from typing_extensions import override

from swapd.core.ids import Duration, Instant, ModelName, seconds
from swapd.core.reasons import Verdict
from swapd.core.viability import Demand

NOW = Instant(seconds(3600))
OK, MARGINAL, THRASHING = Verdict.OK, Verdict.MARGINAL, Verdict.THRASHING


class Measured(Demand):
    """Demand whose load ratio and load fraction are given."""

    def __init__(self, ratio: float, fraction: float, *, loads: int, verdict: Verdict) -> None:
        super().__init__(verdict=verdict)
        self.ratio, self.fraction = ratio, fraction
        self.loads.extend([NOW] * loads)

    @override
    def load_ratio(self, at: Instant, lhat: Duration) -> float:
        return self.ratio

    @override
    def load_fraction(self, at: Instant) -> float:
        return self.fraction


@pytest.mark.parametrize(
    ("before", "ratio", "fraction", "loads", "expected"),
    [
        (OK, 0.5, 0.2, 3, THRASHING),
        (OK, 0.49, 0.2, 3, MARGINAL),
        (OK, 0.5, 0.19, 3, MARGINAL),
        (OK, 0.5, 0.2, 2, OK),
        (OK, 0.2, 0.1, 3, MARGINAL),
        (OK, 0.19, 0.9, 3, OK),
        (OK, 0.9, 0.09, 3, OK),
        (OK, 0.2, 0.1, 2, OK),
        (MARGINAL, 0.49, 0.2, 3, MARGINAL),
        (THRASHING, 0.33, 0.1, 0, THRASHING),
        (THRASHING, 0.32, 0.9, 3, MARGINAL),
        (THRASHING, 0.9, 0.09, 3, OK),
    ],
)
def test_a_verdict_changes_at_its_limits(
    before: Verdict, ratio: float, fraction: float, loads: int, expected: Verdict
) -> None:
    assert Measured(ratio, fraction, loads=loads, verdict=before).judge(NOW, seconds(40)) is expected


@pytest.mark.parametrize(
    ("load_time", "away", "counts"),
    [(0.2, 5.0, True), (0.2, 5.1, False), (1.0, 5.0, True), (10.0, 50.0, True), (10.0, 50.1, False)],
)
def test_a_reload_within_five_load_times_of_its_eviction_and_at_least_five_seconds_is_a_relapse(
    load_time: float, away: float, counts: bool
) -> None:
    demand = Demand()
    at = 1000.0
    for _ in range(3):
        demand.evicted_at, demand.evicted_by = Instant(seconds(at)), ModelName("b")
        booked = at + away
        assert (
            demand.returned(Instant(seconds(booked + load_time)), seconds(load_time), Instant(seconds(booked))) == "b"
        )
        at = booked + load_time
    assert demand.relapsing(Instant(seconds(at))) is counts


@pytest.mark.parametrize(("span", "holds"), [(899.0, True), (901.0, False)])
def test_three_relapses_count_within_a_quarter_of_an_hour(span: float, holds: bool) -> None:
    demand = Demand()
    for at in (0.0, span / 2, span):
        demand.relapses.append((Instant(seconds(at)), ModelName("b")))
    assert demand.relapsing(Instant(seconds(span))) is holds
    demand.relapses.popleft()
    assert not demand.relapsing(Instant(seconds(span)))
