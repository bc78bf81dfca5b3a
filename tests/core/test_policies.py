"""Policies order; each by its own figure, and the registry knows them all."""

from dataclasses import replace

import pytest

from swapd.core.catalog import PolicyName
from swapd.core.ids import Duration, Instant, ModelName, seconds
from swapd.core.policies import Resident, policy_named


def resident(name: str, *, gpus: int = 1, load: float = 40, used: float = 0, worth: float = 1) -> Resident:
    return Resident(
        ModelName(name), gpus, Duration(seconds(load)), Instant(seconds(used)), worth, Instant(seconds(1000))
    )


def order(name: PolicyName, *residents: Resident) -> list[str]:
    policy = policy_named(name)
    return [r.model for r in sorted(residents, key=lambda r: policy.value(r) * r.gpus)]


def test_gdsf_takes_the_least_worth_first() -> None:
    assert order(PolicyName.GDSF, resident("a", worth=3), resident("b", worth=1), resident("c", worth=2)) == [
        "b",
        "c",
        "a",
    ]


def test_gdsf_lets_a_large_model_go_that_nobody_asks_for_however_far_the_clock_has_come() -> None:
    def cost(clock: float, *residents: Resident) -> float:
        policy = policy_named(PolicyName.GDSF)
        return sum(policy.value(replace(r, floor=clock)) * r.gpus for r in residents)

    for clock in (0, 1e6):
        large = resident("large", gpus=4, worth=clock + 2)
        small = [resident("one", worth=clock + 30), resident("other", worth=clock + 30)]
        assert cost(clock, large) < cost(clock, *small)


def test_lru_takes_the_longest_unused_first_whatever_its_size() -> None:
    assert order(PolicyName.LRU, resident("a", used=900), resident("b", used=100, gpus=8), resident("c", used=500)) == [
        "b",
        "c",
        "a",
    ]


def test_lru_can_order_what_is_used_this_very_moment() -> None:
    assert order(PolicyName.LRU, resident("now", used=1000), resident("before", used=999)) == ["before", "now"]


def test_cheapest_reload_takes_the_fastest_to_load_first_whatever_its_size() -> None:
    assert order(PolicyName.CHEAPEST_RELOAD, resident("a", load=80), resident("b", load=20, gpus=8)) == ["b", "a"]


@pytest.mark.parametrize("name", PolicyName)
def test_every_policy_of_the_configuration_exists(name: PolicyName) -> None:
    assert policy_named(name).value(resident("a")) > 0
