"""Reserved room is kept for whom it is reserved, and nobody leaves beside an engine that is sizing itself."""

from swapd.core.events import UnloadOrdered
from swapd.core.ids import ModelName, seconds
from tests.core.driver import World, spec


def test_a_reserved_device_stays_empty_although_another_model_would_fit() -> None:
    patient = seconds(900)
    models = [spec("busy", load=1), spec("big", 2, load=10, max_wait=patient), spec("small", load=1, max_wait=patient)]
    world = World(models, gpus=2)
    world.request("busy", at=0, service=200)
    big = world.request("big", at=10)
    small = world.request("small", at=150)
    world.run(200)
    reservation = world.core.view().reservation
    assert reservation is not None
    assert (reservation.model, int(reservation.gpus)) == ("big", 0b11)
    assert world.loads("small") == 0
    world.run(900)
    assert big.granted[0][0] == 201 + 3 + 10
    assert small.granted[0][0] > big.granted[0][0]


def test_without_a_reservation_the_same_device_is_given_out() -> None:
    world = World([spec("busy", load=1), spec("big", 2, load=10), spec("small", load=1)], gpus=2)
    world.request("busy", at=0, service=200)
    world.request("big", at=10)
    small = world.request("small", at=50)
    world.run(60)
    assert small.waited == 1


def test_a_drained_model_does_not_leave_while_a_neighbour_loads_on_its_device() -> None:
    world = World([spec("a", load=10, gib=40, shares=True), spec("b", load=50, gib=40, shares=True)], gpus=1)
    world.request("a", at=0)
    world.request("b", at=20)
    world.order(UnloadOrdered, 30, model=ModelName("a"), drain_timeout=None)
    world.run(200)
    assert world.evictions() == [(70, "a")]
