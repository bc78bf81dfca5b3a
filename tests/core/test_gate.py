"""A booked load begins only when a reading shows its room free; what never is, is planned anew with what is known."""

import itertools

import pytest

from swapd.core import events as ev
from swapd.core.commands import LoadFinished, Start, Transitioned
from swapd.core.ids import seconds
from swapd.core.reasons import LoadFailure, Rejection, Stage, State
from swapd.core.topology import DriverState
from tests.core.driver import spec
from tests.core.gpus import LATENCY, GpuWorld, gib, node


def starts(world: GpuWorld) -> list[tuple[float, str]]:
    return [(round(at, 6), str(c.spec.name)) for at, c in world.log if isinstance(c, Start)]


def test_a_load_begins_with_the_first_reading_taken_after_its_booking() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.read(4.99)
    asked = world.request("a", at=5)
    world.run(60)
    assert world.ordered[0] == 5
    assert starts(world) == [(5 + LATENCY, "a")]
    assert asked.waited == 10 + LATENCY
    assert world.of(LoadFinished)[0].stages[Stage.RELEASE] == seconds(LATENCY)


def test_an_older_reading_does_not_let_a_load_begin() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.answers_readings = False
    world.read(4.99)
    world.request("a", at=5)
    world.read(8)
    world.run(8)
    assert starts(world) == []
    world.run(60)
    assert starts(world) == [(8 + LATENCY, "a")]


def test_a_neighbour_that_has_just_become_ready_is_measured_before_the_next_load_begins() -> None:
    models = [spec("a", gib=20, load=10, shares=True), spec("b", gib=20, load=10, shares=True)]
    world = GpuWorld(models, devices=node(1))
    world.request("a", at=0)
    world.request("b", at=5)
    world.run(60)
    first, second = (at for at, _ in starts(world))
    assert second == pytest.approx(first + 10 + LATENCY)
    notes = [c for _, c in world.log if isinstance(c, Transitioned) and c.before is State.LOADING]
    assert [n.model for n in notes] == ["a", "b"]


def test_start_phases_of_two_models_never_overlap_on_one_gpu() -> None:
    models = [spec(name, gib=20, load=10, shares=True) for name in "abc"]
    world = GpuWorld(models, devices=node(1), max_concurrent_loads=3)
    for name in "abc":
        world.request(name, at=0)
    world.run(100)
    begins = [at for at, _ in starts(world)]
    assert len(begins) == 3
    assert all(later - earlier >= 10 for earlier, later in itertools.pairwise(begins))


def test_memory_taken_by_others_delays_a_load_until_they_leave() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.request("a", at=5)
    world.others_take(0, 30, at=5 - 1e-6)
    world.others_take(0, 1, at=12)
    world.run(60)
    ((begin, _),) = starts(world)
    assert 12 < begin < 12 + 2 + 2 * LATENCY


def test_room_that_is_never_shown_free_is_given_up_and_another_place_is_taken() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(2))
    asked = world.request("a", at=5)
    world.others_take(0, 30, at=5 - 1e-6)
    world.run(60)
    assert [c.after for _, c in world.log if isinstance(c, Transitioned)][:3] == ["reserved", "gone", "reserved"]
    assert starts(world) == [(pytest.approx(5 + 30 + LATENCY), "a")]
    assert world.gpus_of("a") == [1]
    assert asked.granted


def test_a_node_on_which_others_hold_too_much_says_so_and_is_asked_again_later() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    asked = world.request("a", at=5)
    world.others_take(0, 30, at=4)
    world.run(60)
    assert asked.rejected is not None
    at, refusal = asked.rejected
    assert at == 35
    assert (refusal.reason, refusal.permanent) == (Rejection.NO_CAPACITY, False)
    assert refusal.retry_after == seconds(60)
    assert "other processes hold 30 GiB on GPU 0" in refusal.detail


def test_while_a_reading_never_comes_the_booking_is_given_up_and_made_anew() -> None:
    world = GpuWorld([spec("a", gib=60, load=10, max_wait=seconds(100))], devices=node(1))
    world.answers_readings = False
    asked = world.request("a", at=0)
    world.run(120)
    assert asked.rejected is not None
    assert asked.rejected[1].reason is Rejection.WAIT_TIMEOUT
    assert starts(world) == []
    reserved = [at for at, c in world.log if isinstance(c, Transitioned) and c.after is State.RESERVED]
    assert reserved == [0, 30, 60, 90]


def test_a_neighbour_that_proves_larger_takes_the_room_that_was_promised() -> None:
    models = [spec("a", gib=20, load=10, shares=True), spec("b", gib=50, load=10, shares=True)]
    world = GpuWorld(models, devices=node(2, size=80), max_concurrent_loads=2)
    world.engines["a"].size = 40
    world.request("a", at=0)
    asked = world.request("b", at=5)
    world.run(60)
    lost = [c.why for _, c in world.log if isinstance(c, Transitioned) and (c.model, c.after) == ("b", "gone")]
    assert lost == ["the memory booked for it cannot be had any more"]
    assert world.gpus_of("b") != world.gpus_of("a")
    assert asked.granted


def test_of_two_bookings_that_do_not_fit_together_any_more_the_later_one_goes() -> None:
    models = [spec(name, gib=size, load=10, shares=True) for name, size in (("a", 20), ("b", 30), ("c", 30))]
    world = GpuWorld(models, devices=node(1), max_concurrent_loads=3)
    world.engines["a"].size = 40
    for name in "abc":
        world.request(name, at=0)
    world.run(15)
    assert {str(i.model): str(i.state) for i in world.core.view().instances} == {"a": "ready", "b": "loading"}


def test_a_reading_from_the_beginning_of_a_neighbours_load_is_no_proof_once_it_has_failed() -> None:
    models = [spec("a", gib=30, load=10, shares=True), spec("b", gib=30, load=10, shares=True)]
    world = GpuWorld(models, devices=node(1), release_timeout=seconds(5))
    world.engines["a"].size, world.engines["a"].release, world.engines["a"].lag = 60, None, None
    world.request("a", at=0)
    world.request("b", at=1)
    world.read(1.5)
    world.run(2)
    world.answers_readings = False
    world.fact(ev.InstanceExited, "a", at=9, status=1)
    world.run(20)
    assert {str(i.model): str(i.state) for i in world.core.view().instances} == {"a": "leaked", "b": "reserved"}


def test_a_reading_from_before_a_neighbour_leaked_is_no_proof_as_its_engine_may_have_grown_until_then() -> None:
    models = [spec("a", gib=30, load=10, shares=True), spec("b", gib=40, load=10, shares=True)]
    world = GpuWorld(models, devices=node(1))
    world.engines["a"].fails = LoadFailure.WARMUP
    world.engines["a"].lag = world.engines["a"].release = None
    world.request("a", at=0)
    world.request("b", at=12)
    world.read(14)
    world.at(15, lambda: setattr(world.held[next(iter(world.held))], "amount", gib(44)))
    world.run(70)
    assert starts(world) == [(LATENCY, "a")]


def test_booked_room_waits_while_the_driver_is_starting_again() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.engines["a"].lag = 0
    world.answers_readings = False
    world.request("a", at=0)
    world.change(1, driver=DriverState.STARTING)
    world.at(2, lambda: setattr(world, "answers_readings", True))
    world.change(3, driver=DriverState.UP)
    world.run(60)
    assert world.residents() == ["a"]


def test_a_booking_ahead_of_its_request_waits_for_the_reading_as_well() -> None:
    models = [spec("a", gib=60, load=100, max_wait=seconds(50))]
    world = GpuWorld(models, devices=node(1))
    asked = world.request("a", at=0)
    world.run(200)
    assert asked.rejected is not None
    assert world.residents() == ["a"]


def test_loads_ahead_are_not_made_while_the_driver_is_starting() -> None:
    world = GpuWorld([spec("a", gib=60, load=100, max_wait=seconds(50))], devices=node(1))
    world.change(1, driver=DriverState.STARTING)
    world.request("a", at=2)
    world.run(5)
    assert world.core.view().instances == ()


def test_a_gpu_that_proves_smaller_than_it_was_said_to_be_is_reckoned_with_as_it_is() -> None:
    world = GpuWorld([spec("a", gib=79, load=10)], devices=node(1))
    world.answers_readings = False
    asked = world.request("a", at=0)
    world.plan(1, lambda: ev.GpuMemoryRead(world.now, world.now, (ev.GpuMemory(0, gib(78), gib(78)),)))
    world.run(5)
    assert world.gpu(0).memory_bytes == gib(78)
    assert asked.rejected is not None
    assert asked.rejected[1].detail == (
        "a needs 1 GPU with 79 GiB each; this node can never hold that: the largest GPU for it has 78 GiB"
    )
