"""When a model is expected: slot wait + rest of a drain + release + the load itself, each where it applies."""

from typing import Any

from swapd.core.events import LoadOrdered, UnloadOrdered
from swapd.core.ids import SECOND, ModelName, seconds
from swapd.core.reasons import Rejection
from tests.core.driver import World, spec

LOAD = 40


def node(gpus: int = 1, **settings: Any) -> World:
    """Return a node with quick models and one, x, that promises less than its load takes."""
    quick = [spec(name, load=10) for name in "ab"]
    slow = [spec(name, load=60) for name in "cd"]
    return World([*quick, *slow, spec("x", load=LOAD, max_wait=seconds(1))], gpus=gpus, **settings)


def told(world: World, *, at: float) -> float:
    """Ask for x, which has to be refused, and return the time after which to come back, seconds."""
    asked = world.request("x", at=at)
    world.run(at)
    assert asked.rejected is not None
    assert asked.rejected[1].reason is Rejection.ETA_EXCEEDS_MAX_WAIT
    assert asked.rejected[1].retry_after is not None
    return asked.rejected[1].retry_after / SECOND


def test_with_free_room_it_is_the_load_alone() -> None:
    assert told(node(), at=0) == LOAD


def test_an_idle_victim_adds_the_time_until_its_memory_is_free() -> None:
    world = node()
    world.request("a", at=0)
    assert told(world, at=100) == 3 + LOAD


def test_the_time_for_a_release_is_the_median_of_those_measured() -> None:
    world = node()
    world.engines["a"].unload = 7
    world.request("a", at=0)
    world.request("b", at=100)
    assert told(world, at=200) == 7 + LOAD


def test_a_busy_victim_adds_what_its_requests_are_expected_to_take_still() -> None:
    world = node()
    world.request("a", at=0, service=10)
    world.request("a", at=100, service=10)
    assert told(world, at=104) == 6 + 3 + LOAD


def test_busy_load_slots_add_the_shortest_remaining_load() -> None:
    world = node(3)
    world.request("c", at=0)
    world.request("d", at=15)
    assert told(world, at=20) == 40 + LOAD


def test_a_free_load_slot_adds_nothing() -> None:
    world = node(3, max_concurrent_loads=3)
    world.request("c", at=0)
    world.request("d", at=15)
    assert told(world, at=20) == LOAD


def test_only_the_last_five_loads_say_how_long_the_next_one_takes() -> None:
    world = node()
    for number in range(8):
        world.engines["x"].load = 10 if number < 5 else 50
        world.order(LoadOrdered, number * 1000.0, model=ModelName("x"))
        world.order(UnloadOrdered, number * 1000.0 + 500, model=ModelName("x"))
        world.run(number * 1000 + 900)
    assert told(world, at=9000) == 50
