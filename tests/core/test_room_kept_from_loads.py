"""Loads that follow each other on the same GPUs do not keep a model that needs them all out for ever."""

from dataclasses import replace

import pytest

from swapd.core import events as ev
from swapd.core.catalog import ModelSpec, Priority
from swapd.core.commands import Transitioned
from swapd.core.ids import Bytes, ModelName, seconds
from swapd.core.reasons import State
from tests.core.driver import GIB, Asked, World, spec, topology

PATIENT = seconds(3600)
SMALL = ("a", "b", "c", "d")


def relay(world: World, *, until: int) -> None:
    """Four models on two GPUs, loads of 50 s, half a load apart: there is no moment at which nobody loads."""
    for turn, at in enumerate(range(0, until, 25)):
        world.request(SMALL[turn % 4], at=at, service=1)


def hungry(made: ModelSpec) -> ModelSpec:
    return replace(made, footprint=replace(made.footprint, host_bytes=Bytes(8 * GIB)))


def crowded(**settings: object) -> tuple[World, Asked]:
    smalls = [spec(name, load=50, max_wait=PATIENT) for name in SMALL]
    world = World([*smalls, spec("big", 2, load=40, max_wait=PATIENT)], gpus=2, protect=seconds(0), **settings)
    relay(world, until=2000)
    return world, world.request("big", at=60)


def test_after_half_as_long_again_as_drain_after_no_new_load_begins_in_the_way() -> None:
    world, big = crowded()
    world.run(2600)
    assert big.waited <= 180 + (3 + 50) + 1 + 3 + 40
    assert all(asked.granted for asked in world.asked.values())


def test_without_an_end_of_patience_loads_that_follow_each_other_come_first() -> None:
    world, big = crowded(drain_after=seconds(100_000))
    world.run(2000)
    assert big.waited > 800


def test_while_the_loads_in_the_way_go_on_the_residents_serve() -> None:
    models = [spec("a", load=10), spec("b", load=100, max_wait=PATIENT), spec("big", 2, load=10, max_wait=PATIENT)]
    world = World(models, gpus=2, protect=seconds(0))
    world.request("a", at=0, service=400)
    big = world.request("big", at=5)
    world.order(ev.UnloadOrdered, 90, model=ModelName("b"), drain_timeout=None)
    world.request("b", at=105, service=1)
    passing = world.request("a", at=190, service=1)
    world.run(190)
    reservation = world.core.view().reservation
    assert reservation is not None
    assert (reservation.model, reservation.draining, passing.waited) == ("big", (), 0)
    world.run(600)
    drains = [at for at, note in world.log if isinstance(note, Transitioned) and note.after is State.DRAINING]
    assert drains == [205, 205]
    assert big.granted[0][0] == 410 + 3 + 10


def test_a_load_that_nobody_waits_for_any_more_makes_way_in_kept_room() -> None:
    models = [spec("late", load=100, max_wait=PATIENT), spec("big", 2, load=10, max_wait=PATIENT)]
    world = World([*models, spec("a", load=10)], gpus=2, protect=seconds(0))
    world.request("a", at=0, service=150)
    big = world.request("big", at=1)
    late = world.request("late", at=110)
    world.run(185)
    assert world.core.view().reservation is not None
    world.leave(late, at=190)
    world.run(600)
    assert big.granted[0][0] == 190 + 3 + 10


def test_kept_room_is_given_back_where_the_least_residency_begins_with_the_end_of_the_load() -> None:
    models = [spec("late", load=100, max_wait=PATIENT), spec("big", 2, load=10, max_wait=PATIENT)]
    world = World([*models, spec("a", load=10)], gpus=2, protect=seconds(0), min_residency=seconds(60))
    world.request("a", at=0, service=150)
    big = world.request("big", at=1)
    world.request("late", at=110)
    world.run(209)
    assert world.core.view().reservation is not None
    world.run(211)
    assert world.core.view().reservation is None
    world.run(600)
    assert big.granted[0][0] == 210 + 60 + 3 + 10


def test_a_load_on_other_gpus_is_awaited_for_its_host_memory() -> None:
    late, big = (hungry(spec(name, load=load, max_wait=PATIENT)) for name, load in (("late", 400), ("big", 10)))
    world = World([late, big], devices=replace(topology(2), host_bytes=Bytes(10 * GIB)), protect=seconds(0))
    world.request("late", at=0, service=5)
    world.engines["late"].progress = 30
    asked = world.request("big", at=1)
    world.run(200)
    assert world.core.view().reservation is not None
    world.run(600)
    assert asked.granted[0][0] == 400 + 5 + 3 + 10


def test_kept_room_is_given_back_when_nobody_waits_for_it_any_more() -> None:
    world, big = crowded()
    world.run(241)
    reservation = world.core.view().reservation
    assert reservation is not None
    assert reservation.model == "big"
    world.leave(big, at=241)
    world.run(242)
    reservation = world.core.view().reservation
    assert reservation is None or reservation.model != "big"


def test_no_room_is_kept_where_a_pin_loads() -> None:
    models = [spec("pin", load=400, max_wait=PATIENT), spec("big", 2, load=10, max_wait=seconds(300))]
    world = World(models, gpus=2)
    world.request("big", at=0)
    world.leave(world.request("big", at=0), at=1)
    world.order(ev.PinOrdered, 0, model=ModelName("pin"), pinned=True)
    world.run(290)
    assert world.core.view().reservation is None


@pytest.mark.parametrize("first", [Priority.HIGH, Priority.LOW])
def test_a_class_that_comes_first_is_kept_room_first(first: Priority) -> None:
    smalls = [spec(name, load=50, max_wait=PATIENT) for name in SMALL]
    bigs = [spec(name, 2, load=40, max_wait=PATIENT) for name in ("x", "y")]
    world = World([*smalls, *bigs], gpus=2, protect=seconds(0))
    relay(world, until=2000)
    x = world.request("x", at=60, priority=first)
    y = world.request("y", at=60)
    world.run(2600)
    assert (x.granted[0][0] < y.granted[0][0]) == (first is Priority.HIGH)
