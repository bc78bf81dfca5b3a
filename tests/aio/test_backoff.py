"""Delays grow by their factor, never beyond the cap, and jitter only shortens."""

import pytest

from swapd.aio.backoff import Backoff


def test_delays_double_up_to_the_cap() -> None:
    backoff = Backoff(first=10, cap=300)
    assert [backoff.delay(n) for n in range(7)] == [10, 20, 40, 80, 160, 300, 300]


def test_a_huge_repetition_is_the_cap_and_no_overflow() -> None:
    assert Backoff(first=1, cap=8).delay(10**9) == 8


def test_jitter_takes_at_most_half_away() -> None:
    backoff = Backoff(first=10, cap=40)
    assert backoff.delay(0, random=lambda: 0.0) == 10
    assert backoff.delay(9, random=lambda: 0.5) == 30


@pytest.mark.parametrize(
    "fields", [{"first": 0, "cap": 1}, {"first": 2, "cap": 1}, {"first": 1, "cap": 1, "factor": 0.5}]
)
def test_senseless_settings_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="0 < first <= cap"):
        Backoff(**fields)
