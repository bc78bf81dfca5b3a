"""Weekly tiers: the published limits, what holds a tier, what is provisional, and the figures beside it."""

import math

import pytest

from swapd.core.accounts import Costs
from swapd.core.ids import Duration, ModelName, seconds
from swapd.core.tiers import Hour, Tier, p99, shares, tier_of, warm_limit, weigh

HOT, WARM, COLD = Tier.HOT, Tier.WARM, Tier.COLD


def steady(per_hour: float, hours: int = 168) -> list[Hour]:
    """Return whole requests per hour with this mean."""
    return [Hour(int(per_hour * (n + 1)) - int(per_hour * n)) for n in range(hours)]


@pytest.mark.parametrize(
    ("per_hour", "previous", "expected"),
    [
        (42_000, None, HOT),
        (18_000, None, HOT),
        (9_500, None, HOT),
        (2_100, None, WARM),
        (340, None, WARM),
        (45, None, COLD),
        (50.0, None, WARM),
        (49.9, None, COLD),
        (5_000, None, HOT),
        (4_999, None, WARM),
        (40, WARM, WARM),
        (34, WARM, COLD),
        (4_000, HOT, HOT),
        (3_400, HOT, WARM),
        (40, HOT, WARM),
        (34, HOT, COLD),
        (4_000, WARM, WARM),
        (50, COLD, WARM),
    ],
)
def test_the_published_limits(per_hour: float, previous: Tier | None, expected: Tier) -> None:
    week = weigh(steady(per_hour), previous)
    assert (week.tier, week.provisional) == (expected, False)
    assert week.requests_per_hour == pytest.approx(per_hour, rel=0.01)
    assert tier_of(per_hour, previous) is expected


def test_the_hot_models_of_the_example_mix_have_most_of_its_traffic() -> None:
    mix = {"a": 42_000.0, "b": 18_000.0, "c": 9_500.0, "d": 2_100.0, "e": 340.0, **{f"f{n}": 45.0 for n in range(20)}}
    share = shares({ModelName(name): mean for name, mean in mix.items()})
    hot = sum(share[ModelName(name)] for name, mean in mix.items() if tier_of(mean) is HOT)
    assert hot == pytest.approx(0.954, rel=0.01)
    assert sum(share.values()) == pytest.approx(1)
    assert shares({ModelName("a"): 0.0}) == {"a": 0.0}
    assert shares({}) == {}


def test_the_mean_is_taken_over_the_observed_hours_only() -> None:
    half = [Hour(30, 1800) for _ in range(60)]
    week = weigh(half)
    assert (week.observed_hours, week.requests_per_hour, week.tier) == (30, 60, WARM)
    nothing = weigh([])
    assert (nothing.tier, nothing.provisional, nothing.requests_per_hour, nothing.p99_per_hour) == (COLD, True, 0, 0)


@pytest.mark.parametrize(
    ("hours", "previous", "expected"),
    [
        (23, None, (HOT, True)),
        (23, COLD, (COLD, True)),
        (23, WARM, (WARM, True)),
        (24, COLD, (HOT, False)),
    ],
)
def test_less_than_a_day_is_provisional_and_keeps_the_previous_tier(
    hours: int, previous: Tier | None, expected: tuple[Tier, bool]
) -> None:
    week = weigh(steady(6_000, hours), previous)
    assert (week.tier, week.provisional) == expected


def test_the_p99_hour_is_the_second_busiest_of_a_week() -> None:
    counts = [Hour(n) for n in range(168)]
    assert p99(counts) == 166
    assert weigh(counts).p99_per_hour == 166
    assert p99([Hour(7)]) == 7


def test_an_hour_that_the_clock_has_shown_twice_is_no_busy_hour() -> None:
    assert p99([Hour(200, 7200)] * 10) == 100
    assert weigh([Hour(200, 7200)] * 12).requests_per_hour == 100


def test_the_load_aware_limit_of_warm_is_half_an_hour_of_loading_in_an_hour() -> None:
    assert warm_limit(seconds(84)) == pytest.approx(21, rel=0.03)
    assert warm_limit(seconds(36)) == 50
    assert warm_limit(Duration(0)) == math.inf


def test_the_costs_of_a_week_are_told_per_observed_hour() -> None:
    costs = Costs(requests=100, loads=20, own_gpu_seconds=1000, charged_gpu_seconds=500, waited_seconds=250)
    week = weigh(steady(1, 50), costs=costs)
    assert week.hourly() == Costs(2, 0.4, 20, 10, 5)
    assert week.hourly().caused_gpu_seconds == 30
    assert week.hourly().wait_per_request == 2.5
    assert weigh([]).hourly() == Costs()
    assert Costs().wait_per_request == 0
