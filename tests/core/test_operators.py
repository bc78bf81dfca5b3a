"""Operators' orders: each does what it says and is answered once."""

from swapd.core import events as ev
from swapd.core.catalog import Mode
from swapd.core.commands import LoadFinished, Reject, Stop
from swapd.core.ids import ModelName, seconds
from swapd.core.reasons import LoadResult, Rejection, UnloadCause
from tests.core.driver import World, spec

A, B = ModelName("a"), ModelName("b")


def test_a_load_is_answered_when_the_model_is_ready_and_at_once_when_it_is_already() -> None:
    world = World([spec("a", load=10)])
    first = world.order(ev.LoadOrdered, 0, model=A)
    again = world.order(ev.LoadOrdered, 20, model=A)
    world.run(30)
    assert [(world.answers[o][0], world.answers[o][1].ok) for o in (first, again)] == [(10, True), (20, True)]


def test_orders_for_unknown_models_say_so() -> None:
    world = World([spec("a")])
    orders = [
        world.order(ev.LoadOrdered, 0, model=ModelName("zz")),
        world.order(ev.UnloadOrdered, 0, model=ModelName("zz")),
        world.order(ev.PinOrdered, 0, model=ModelName("zz"), pinned=True),
    ]
    world.run(1)
    assert {world.answers[o][1].reason for o in orders} == {Rejection.UNKNOWN_MODEL}


def test_a_load_that_can_never_be_placed_is_answered_at_once() -> None:
    world = World([spec("p", 8, load=1, pinned=True), spec("a")])
    order = world.order(ev.LoadOrdered, 10, model=A)
    world.run(20)
    assert (world.answers[order][0], world.answers[order][1].reason) == (10, Rejection.ALL_PINNED)


def test_an_operator_who_waits_is_told_when_a_pin_takes_the_room_away() -> None:
    world = World([spec("p", load=1), spec("a")], gpus=1)
    world.request("p", at=0, service=500)
    order = world.order(ev.LoadOrdered, 10, model=A)
    world.order(ev.PinOrdered, 20, model=ModelName("p"), pinned=True)
    world.run(30)
    assert (world.answers[order][0], world.answers[order][1].reason) == (20, Rejection.ALL_PINNED)


def test_an_unload_lets_requests_finish_queues_the_new_and_answers_when_the_memory_is_free() -> None:
    world = World([spec("a", load=10, concurrency=2)], gpus=1)
    running = world.request("a", at=0, service=40)
    order = world.order(ev.UnloadOrdered, 20, model=A)
    late = world.request("a", at=30)
    world.run(200)
    assert running.cut is None
    assert (world.answers[order][0], world.answers[order][1].ok) == (53, True)
    assert late.granted[0][0] == 53 + 10
    assert world.of(Reject) == []


def test_an_unload_with_a_deadline_cuts_what_is_left_and_then_stops() -> None:
    world = World([spec("a", load=10)])
    endless = world.request("a", at=0, service=None)
    order = world.order(ev.UnloadOrdered, 20, model=A, drain_timeout=seconds(15))
    world.run(100)
    assert (endless.cut, world.answers[order][0]) == (35, 38)
    assert [at for at, c in world.log if isinstance(c, Stop)] == [35]


def test_an_unload_uses_the_configured_drain_timeout_and_without_one_waits() -> None:
    world = World([spec("a", load=10)], drain_timeout=seconds(25))
    endless = world.request("a", at=0, service=None)
    world.order(ev.UnloadOrdered, 20, model=A)
    world.run(100)
    assert endless.cut == 45
    world = World([spec("a", load=10)])
    upgraded = world.request("a", at=0, service=2000)
    world.order(ev.UnloadOrdered, 20, model=A)
    world.run(3000)
    assert (upgraded.cut, world.evictions()) == (None, [(2010, "a")])


def test_an_unload_of_what_is_not_loaded_or_already_leaving() -> None:
    world = World([spec("a", load=10)])
    absent = world.order(ev.UnloadOrdered, 0, model=A)
    world.request("a", at=1)
    world.order(ev.UnloadOrdered, 20, model=A)
    leaving = world.order(ev.UnloadOrdered, 21, model=A)
    world.run(60)
    assert (world.answers[absent][0], world.answers[absent][1].detail) == (0, "a is not loaded")
    assert world.answers[leaving][0] == 23


def test_an_unload_breaks_a_load_off_and_the_operator_who_wanted_it_is_told() -> None:
    world = World([spec("a", load=10)], mode=Mode.MANUAL)
    load = world.order(ev.LoadOrdered, 0, model=A)
    unload = world.order(ev.UnloadOrdered, 5, model=A)
    world.run(60)
    assert (world.answers[load][0], world.answers[load][1].ok) == (5, False)
    assert (world.answers[unload][0], world.answers[unload][1].ok) == (8, True)
    assert [c.result for c in world.of(LoadFinished)] == [LoadResult.ABORTED]


def test_an_unload_gives_up_a_load_that_has_not_started() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, protect=seconds(0), mode=Mode.MANUAL)
    world.engines["a"].unload = 50
    world.order(ev.LoadOrdered, 0, model=A)
    world.order(ev.LoadOrdered, 20, model=B)
    unload = world.order(ev.UnloadOrdered, 30, model=B)
    world.run(100)
    assert (world.answers[unload][0], world.answers[unload][1].ok, world.loads("b")) == (30, True, 0)


def test_an_unload_of_a_reservations_victim_counts_as_the_operators() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1)
    world.request("a", at=0, service=200)
    b = world.request("b", at=20)
    world.order(ev.UnloadOrdered, 150, model=A)
    world.leave(b, at=160)
    world.run(400)
    assert world.evictions() == [(210, "a")]
    assert [c.cause for c in world.of(Stop)] == [UnloadCause.OPERATOR]


def test_a_pinned_model_is_not_unloaded_before_it_is_unpinned() -> None:
    world = World([spec("a", load=10, pinned=True)])
    refused = world.order(ev.UnloadOrdered, 20, model=A)
    world.order(ev.PinOrdered, 30, model=A, pinned=False)
    done = world.order(ev.UnloadOrdered, 31, model=A)
    world.run(60)
    assert (world.answers[refused][1].ok, world.answers[refused][1].reason) == (False, Rejection.ALL_PINNED)
    assert world.answers[done][1].ok
    assert world.residents() == []


def test_a_pin_beyond_the_limit_is_refused_with_the_figures() -> None:
    world = World([spec("p", 2, pinned=True), spec("a"), spec("b", 2)], max_pinned_gpus=3)
    allowed = world.order(ev.PinOrdered, 100, model=A, pinned=True)
    refused = world.order(ev.PinOrdered, 101, model=B, pinned=True)
    unpin = world.order(ev.PinOrdered, 102, model=B, pinned=False)
    world.run(200)
    assert world.answers[allowed][1].ok
    assert world.answers[refused][1].detail == "pinning b would pin 5 GPUs, and max_pinned_gpus is 3"
    assert world.answers[unpin][1].ok


def test_an_operators_pin_counts_over_the_configurations_until_the_next_order() -> None:
    world = World([spec("a", load=10, pinned=True)])
    world.order(ev.PinOrdered, 20, model=A, pinned=False)
    world.reconfigure(spec("a", load=10, pinned=True, max_queue=5), at=30)
    world.run(40)
    assert not world.model("a").pinned
    world.order(ev.PinOrdered, 50, model=A, pinned=True)
    world.reconfigure(spec("a", load=10, pinned=False), at=60)
    world.run(70)
    assert world.model("a").pinned


def test_a_load_ordered_while_the_model_drains_for_another_is_answered_when_it_serves_again() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1)
    world.request("a", at=0, service=300)
    b = world.request("b", at=20)
    order = world.order(ev.LoadOrdered, 150, model=A)
    world.leave(b, at=160)
    world.run(200)
    assert (world.answers[order][0], world.answers[order][1].ok) == (160, True)
