"""GDSF: F halves with each half-life and grows by one with each request; H = clock + F × load seconds / GPUs."""

from dataclasses import replace

import pytest

from swapd.core.events import Tick
from swapd.core.ids import Instant, ModelName, seconds
from tests.core.driver import World, spec

HOUR = 3600
HALF_LIFE = seconds(HOUR)


def worth(world: World, name: str) -> float:
    return world.core._node.models[ModelName(name)].worth


@pytest.mark.parametrize(("half_lives", "frequency"), [(0, 2.0), (1, 1.5), (2, 1.25), (10, 1 + 2**-10)])
def test_what_was_asked_for_long_ago_counts_less(half_lives: int, frequency: float) -> None:
    world = World([spec("a", load=10)], frequency_half_life=HALF_LIFE)
    world.request("a", at=0)
    world.request("a", at=half_lives * HOUR)
    world.run(half_lives * HOUR)
    assert world.model("a").frequency == pytest.approx(frequency)


def test_the_view_lets_it_fade_without_a_request() -> None:
    world = World([spec("a", load=10)], frequency_half_life=HALF_LIFE)
    world.request("a", at=0)
    world.run(HOUR)
    world.core.handle(Tick(Instant(seconds(HOUR))))
    assert world.model("a").frequency == pytest.approx(0.5)


@pytest.mark.parametrize(("gpus", "load", "expected"), [(1, 10, 20.0), (2, 10, 10.0), (4, 60, 30.0)])
def test_worth_is_frequency_times_load_time_per_gpu(gpus: int, load: float, expected: float) -> None:
    world = World([spec("a", gpus, load=load)])
    world.request("a", at=0)
    world.request("a", at=0)
    world.run(0)
    assert worth(world, "a") == pytest.approx(expected)


def test_the_clock_is_the_worth_of_the_last_victim_and_lifts_every_later_request() -> None:
    world = World(
        [spec("a", load=10), spec("b", load=10)], gpus=1, protect=seconds(0), frequency_half_life=seconds(1e12)
    )
    for _ in range(5):
        world.request("a", at=0)
    world.request("b", at=100)
    world.request("b", at=200)
    world.run(300)
    assert worth(world, "a") == pytest.approx(50, rel=1e-6)
    assert worth(world, "b") == pytest.approx(50 + 2 * 10, rel=1e-6)


def test_a_large_idle_model_leaves_for_a_small_one_although_fewer_gpus_would_do() -> None:
    """Four GPUs are idle for a day under a clock of thousands; two busy models hold the other two."""
    names = [spec("large", 4, load=10), spec("x", load=10), spec("y", load=10), spec("pair", 2, load=10)]
    world = World(names, gpus=6, protect=seconds(0), frequency_half_life=seconds(1e12))
    world.core._node.clock = 5000.0
    world.request("large", at=0)
    world.run(100)
    for at in range(200, 300, 10):
        world.request("x", at=at)
        world.request("y", at=at)
    world.run(400)
    world.request("pair", at=500)
    world.run(600)
    assert world.model("large").instance is None
    assert world.model("x").instance is not None


def test_a_pin_that_nobody_has_asked_for_since_the_clock_was_young_changes_nothing_for_the_others() -> None:
    names = [spec("large", 4, load=10), spec("x", load=10), spec("y", load=10), spec("pair", 2, load=10)]
    pin = replace(spec("pin", load=10), pinned=True)
    world = World([*names, pin], gpus=7, protect=seconds(0), frequency_half_life=seconds(1e12))
    world.run(50)
    world.core._node.clock = 5000.0
    world.request("large", at=60)
    world.run(100)
    for at in range(200, 300, 10):
        world.request("x", at=at)
        world.request("y", at=at)
    world.run(400)
    world.request("pair", at=500)
    world.run(600)
    assert world.model("pin").instance is not None
    assert world.model("large").instance is None
    assert world.model("x").instance is not None
