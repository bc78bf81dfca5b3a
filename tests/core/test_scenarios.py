"""The deterministic scenarios: exact waits with unload times of three seconds."""

from typing import Any

import pytest

from swapd.core.ids import seconds
from tests.core.driver import World, spec

Settings = dict[str, Any]


def two_big_models(**settings: object) -> World:
    wait = seconds(1000)
    return World([spec("a", 8, max_wait=wait), spec("b", 8, max_wait=wait)], **settings)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 128),
        ({"protect": seconds(300), "protect_max_wait": None}, 428),
    ],
)
def test_a_second_model_for_the_same_gpus_waits_until_the_first_was_served(settings: Settings, expected: float) -> None:
    world = two_big_models(**settings)
    a = world.request("a", at=0, service=10)
    b = world.request("b", at=5)
    world.run(600)
    assert (a.waited, b.waited) == (60, expected)


@pytest.mark.parametrize(("settings", "expected"), [({}, 78), ({"protect": seconds(0)}, 63)])
def test_an_idle_model_is_protected_only_while_the_newcomer_is_patient(settings: Settings, expected: float) -> None:
    world = two_big_models(**settings)
    world.request("a", at=0, service=10)
    b = world.request("b", at=71)
    world.run(600)
    assert b.waited == expected


def test_a_big_model_gets_its_turn_among_small_ones_that_are_never_idle() -> None:
    small = [spec(f"m{i}", load=20) for i in range(8)]
    world = World([*small, spec("x", 8, load=84)], max_concurrent_loads=8)
    for start in range(0, 1200, 20):
        for i in range(8):
            world.request(f"m{i}", at=start, service=30)
    x = world.request("x", at=600)
    world.run(2500)
    assert x.waited == 120 + 30 + 3 + 84
    assert all(asked.granted for asked in world.asked.values())


def test_interleaved_requests_for_three_models_in_one_slot_need_three_loads() -> None:
    world = World([spec(name, 8) for name in "abc"])
    for second, name in enumerate("abaacabc"):
        world.request(name, at=second)
    world.run(900)
    assert world.loads() == 3


def test_a_hundred_requests_to_one_cold_model_need_one_load() -> None:
    world = World([spec("a", concurrency=8)])
    asked = [world.request("a", at=0, service=1) for _ in range(100)]
    world.run(300)
    assert world.loads() == 1
    assert sorted(a.waited for a in asked) == sorted(60.0 + i // 8 for i in range(100))
