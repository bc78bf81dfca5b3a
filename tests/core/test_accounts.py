"""What loads cost, whom it is charged to, and that the account stays small."""

import pytest

from swapd.core.accounts import COLLATERAL_TAU, MOST_EVICTED, Account, Costs
from swapd.core.decay import TAU, Decayed
from swapd.core.ids import Instant, ModelName, seconds


def test_a_charge_counts_in_full_and_its_victim_fades_within_a_day() -> None:
    account = Account()
    account.charge(Instant(0), ModelName("v"), 80)
    account.charge(Instant(COLLATERAL_TAU), ModelName("w"), 40)
    assert account.charged.total == 120
    assert account.collateral(Instant(COLLATERAL_TAU)) == (("w", 40), ("v", pytest.approx(29.43, rel=0.01)))


def test_of_too_many_victims_the_most_faded_is_forgotten() -> None:
    account = Account()
    for number in range(MOST_EVICTED + 3):
        account.charge(Instant(seconds(number * 3600)), ModelName(f"m{number:02}"), 10)
    names = [name for name, _ in account.collateral(Instant(seconds(200 * 3600)))]
    assert (len(names), names[0], names[-1]) == (MOST_EVICTED, "m34", "m03")


def test_a_rate_falls_with_silence() -> None:
    decayed = Decayed()
    decayed.add(Instant(0), 10)
    assert decayed.faded(Instant(TAU)) == pytest.approx(3.68, rel=0.01)
    assert decayed.rate(Instant(0), Instant(0)) == 0
    assert decayed.rate(Instant(2 * TAU), Instant(0)) < decayed.rate(Instant(TAU), Instant(0))


def test_both_kinds_of_loading_count() -> None:
    assert Costs(own_gpu_seconds=3, charged_gpu_seconds=4).caused_gpu_seconds == 7
