"""Who drains for whom, and which loads are given up: nobody starves, and nothing is lost for nothing."""

import pytest

from swapd.core import events as ev
from swapd.core.catalog import Priority
from swapd.core.commands import Kill, LoadFinished
from swapd.core.ids import ModelName, seconds
from swapd.core.reasons import LoadResult, Rejection
from tests.core.driver import World, spec


def test_once_a_newcomer_has_aged_new_requests_stop_passing_it() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1)
    for at in range(0, 400, 4):
        world.request("a", at=at, service=5)
    b = world.request("b", at=50)
    world.run(1500)
    assert b.waited <= 120 + 5 + 3 + 10
    late = [asked for asked in world.asked.values() if asked.model == "a" and asked.arrived > 180]
    assert min(asked.granted[0][0] for asked in late) > b.granted[0][0]
    assert all(asked.granted for asked in world.asked.values())


def test_an_unplaceable_model_does_not_stop_the_others() -> None:
    world = World([spec("big", 8), spec("busy", load=1), spec("late", load=1)], max_concurrent_loads=3)
    world.request("busy", at=0, service=100)
    big, late = world.request("big", at=10), world.request("late", at=11)
    world.run(400)
    assert late.waited == 1
    assert big.granted[0][0] == 101 + 3 + 60


def test_while_devices_are_reserved_the_others_go_on_with_the_rest() -> None:
    world = World([spec("big", 2, load=10), spec("busy", load=1), spec("other", load=1)], gpus=3)
    world.request("busy", at=0, service=200)
    world.request("other", at=0, service=200)
    big = world.request("big", at=10)
    world.run(131)
    reservation = world.core.view().reservation
    assert reservation is not None
    assert (reservation.model, int(reservation.gpus), reservation.draining) == ("big", 0b101, ("busy",))
    world.run(150)
    late = world.request("busy")
    world.run(500)
    assert big.granted[0][0] == 201 + 3 + 10
    assert late.granted[0][0] > 201


def test_a_reservation_nobody_waits_for_any_more_is_dropped_and_its_victims_serve_again() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1)
    world.request("a", at=0, service=300)
    b = world.request("b", at=20)
    held = world.request("a", at=150, service=1)
    world.leave(b, at=170)
    world.run(400)
    assert held.granted[0][0] == 170
    assert world.evictions() == []
    assert world.core.view().reservation is None


def test_a_reservation_draining_for_an_engine_that_never_finishes_ends_at_the_drain_deadline() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, drain_timeout=seconds(30))
    stuck = world.request("a", at=0, service=None)
    b = world.request("b", at=20)
    world.run(400)
    assert stuck.cut == 20 + 120 + 30
    assert b.granted[0][0] == 170 + 3 + 10


def test_a_short_promise_makes_the_drain_begin_early_enough() -> None:
    world = World([spec("a", load=10), spec("b", load=40, max_wait=seconds(90))], gpus=1, protect=seconds(0))
    for at in range(0, 300, 5):
        world.request("a", at=at, service=8)
    b = world.request("b", at=100)
    world.run(600)
    assert b.granted
    assert b.waited <= 90


def test_a_pin_given_to_a_draining_victim_ends_the_reservation() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1)
    world.request("a", at=0, service=300)
    b = world.request("b", at=20)
    world.order(ev.PinOrdered, 150, model=ModelName("a"), pinned=True)
    held = world.request("a", at=145, service=1)
    world.run(400)
    assert held.granted[0][0] == 150
    assert b.rejected is not None
    assert b.rejected[1].reason is Rejection.ALL_PINNED


def test_an_abandoned_load_goes_on_if_nobody_needs_its_place_and_is_an_ordinary_resident_then() -> None:
    world = World([spec("a", load=60), spec("b", load=10)], gpus=1)
    a = world.request("a", at=0)
    world.leave(a, at=20)
    world.run(70)
    assert world.residents() == ["a"]
    b = world.request("b", at=200)
    world.run(400)
    assert b.waited == 13


def test_an_abandoned_load_is_broken_off_for_a_model_somebody_waits_for() -> None:
    world = World([spec("a", load=60, stop_grace=seconds(30)), spec("b", load=10)], gpus=1)
    a = world.request("a", at=0)
    world.leave(a, at=20)
    b = world.request("b", at=25)
    world.run(400)
    assert b.waited == 3 + 10
    assert [(c.model, c.result) for c in world.of(LoadFinished)] == [("a", LoadResult.ABORTED), ("b", LoadResult.READY)]


def test_breaking_off_a_load_has_a_short_grace() -> None:
    world = World([spec("a", load=60, stop_grace=seconds(30)), spec("b", load=10)], gpus=1)
    world.engines["a"].ignores_stop = True
    a = world.request("a", at=0)
    world.leave(a, at=20)
    world.request("b", at=25)
    world.run(400)
    assert [at for at, c in world.log if isinstance(c, Kill)] == [30]


@pytest.mark.parametrize("kind", [ev.LoadOrdered, ev.PinOrdered])
def test_ordered_loads_and_pins_are_not_broken_off(kind: type) -> None:
    world = World([spec("a", load=60), spec("b", load=10)], gpus=1)
    more = {"pinned": True} if kind is ev.PinOrdered else {}
    world.order(kind, 0, model=ModelName("a"), **more)
    b = world.request("b", at=5)
    world.run(300)
    assert world.of(LoadFinished, "a")[0].result is LoadResult.READY
    assert bool(b.granted) == (kind is ev.LoadOrdered)


def test_all_leave_before_the_load_has_started_then_it_never_starts() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, protect=seconds(0))
    world.engines["a"].unload = 20
    world.request("a", at=0)
    leavers = [world.request("b", at=50), world.request("b", at=51)]
    for asked in leavers:
        world.leave(asked, at=60)
    back = world.request("a", at=65)
    world.run(300)
    assert world.loads("b") == 0
    assert back.granted[0][0] == 70 + 10


def test_a_reservation_whose_devices_are_lost_to_a_pin_is_made_anew_elsewhere() -> None:
    world = World([spec("a", load=10), spec("b", load=10), spec("x", load=10)], gpus=2)
    world.request("a", at=0, service=250)
    world.request("b", at=0, service=260)
    x = world.request("x", at=20)
    world.run(141)
    first = world.core.view().reservation
    victim = ModelName(first.draining[0]) if first else ModelName("")
    world.order(ev.PinOrdered, 150, model=victim, pinned=True)
    world.run(150)
    second = world.core.view().reservation
    assert second is not None
    assert first is not None
    assert second.gpus != first.gpus
    world.run(400)
    assert x.granted
    assert victim in world.residents()


def test_nothing_is_reserved_while_only_loads_are_in_the_way() -> None:
    models = [spec(name, gib=size, load=10, max_wait=seconds(900)) for name, size in (("b", 1), ("c", 2))]
    world = World([spec("a", load=200, max_wait=seconds(900)), *models], gpus=1)
    world.request("a", at=0)
    b = world.request("b", at=10)
    world.request("c", at=11)
    world.run(180)
    assert world.core.view().reservation is None
    world.run(400)
    assert b.granted[0][0] == 200 + 3 + 10


def test_a_load_nobody_waited_for_that_is_wanted_again_inside_a_reservation_serves_first() -> None:
    models = [spec("a", load=10), spec("late", load=200, max_wait=seconds(900))]
    world = World([*models, spec("big", 2, load=10, max_wait=seconds(900))], gpus=2)
    world.request("a", at=0, service=300)
    gone = world.request("late", at=0)
    world.leave(gone, at=1)
    big = world.request("big", at=20)
    back = world.request("late", at=150, service=1)
    world.run(600)
    assert back.granted[0][0] == 200
    assert big.granted[0][0] == 310 + 3 + 10


def test_patience_is_asked_for_again_when_the_one_who_had_it_has_left() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, protect=seconds(100))
    world.request("a", at=0, service=150)
    old = world.request("b", at=20)
    young = world.request("b", at=155)
    world.leave(old, at=158)
    world.run(400)
    assert young.granted[0][0] == 155 + 15 + 3 + 10


def test_a_young_request_of_a_higher_class_does_not_reserve_before_its_time() -> None:
    models = [
        spec("a", load=10),
        spec("low", load=10, max_wait=seconds(900)),
        spec("high", load=10, max_wait=seconds(900)),
    ]
    world = World(models, gpus=1)
    world.request("a", at=0, service=400)
    low = world.request("low", at=20, priority=Priority.LOW)
    high = world.request("high", at=130)
    world.run(141)
    reservation = world.core.view().reservation
    assert reservation is not None
    assert (reservation.model, reservation.since) == ("low", seconds(140))
    world.run(900)
    assert low.granted[0][0] < high.granted[0][0]
