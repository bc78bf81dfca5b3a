"""How the node leaves service and comes back."""

from typing import Any

import pytest

from swapd.core import events as ev
from swapd.core.commands import LoadFinished, Reject, Stop
from swapd.core.ids import InstanceId, Instant, ModelName, RequestId, seconds
from swapd.core.reasons import LoadResult, Rejection, UnloadCause
from swapd.core.topology import DriverState
from tests.core.driver import World, spec
from tests.core.gpus import GpuWorld, node

A = ModelName("a")


def drain(world: World, at: float, **more: Any) -> int:
    return world.order(ev.NodeDrainOrdered, at, **{"timeout": None, **more})


def test_a_drain_lets_requests_finish_stops_the_engines_and_answers_last() -> None:
    world = World([spec("a", load=10), spec("b", load=10)])
    running = world.request("a", at=0, service=50)
    world.request("b", at=0)
    order = drain(world, 20)
    late = world.request("a", at=30)
    world.run(62)
    assert (world.core.view().draining, world.core.view().drained) == (True, False)
    world.run(100)
    assert running.cut is None
    assert late.rejected is not None
    assert (late.rejected[1].reason, late.rejected[1].retry_after) == (Rejection.DRAINING, seconds(5))
    assert [(at, c.cause) for at, c in world.log if isinstance(c, Stop)] == [
        (20, UnloadCause.SHUTDOWN),
        (60, UnloadCause.SHUTDOWN),
    ]
    assert (world.answers[order][0], world.answers[order][1].detail) == (63, "the node is drained")
    assert world.core.view().drained


def test_while_it_lingers_ready_models_serve_newcomers_and_those_who_wait_for_a_slot_are_served_to_the_end() -> None:
    world = World([spec("a", load=10, concurrency=1)])
    world.request("a", at=0, service=1)
    drain(world, 20, linger=seconds(10))
    first, second = world.request("a", at=25, service=20), world.request("a", at=26, service=5)
    late = world.request("a", at=31)
    world.run(100)
    assert [a.granted[0][0] if a.granted else None for a in (first, second, late)] == [25, 45, None]
    assert [at for at, c in world.log if isinstance(c, Stop)] == [50]


def test_a_drain_without_work_still_lingers() -> None:
    world = World([spec("a")])
    order = drain(world, 5, linger=seconds(10))
    again = drain(world, 30)
    world.run(40)
    assert (world.answers[order][0], world.answers[again][0]) == (15, 30)


def test_whoever_waits_for_a_load_is_refused_and_loads_are_broken_off() -> None:
    models = [spec("a", load=10), spec("b", load=10), spec("c", load=10)]
    world = World(models, gpus=2, protect=seconds(0), max_concurrent_loads=1)
    world.engines["a"].unload = 20
    world.request("a", at=0)
    load, room = world.request("b", at=30), world.request("c", at=31)
    order = world.order(ev.LoadOrdered, 32, model=ModelName("c"))
    drain(world, 35)
    refused = world.order(ev.LoadOrdered, 36, model=A)
    world.run(100)
    assert [a.rejected[1].reason if a.rejected else None for a in (load, room)] == [Rejection.DRAINING] * 2
    assert [world.answers[o][1].reason for o in (order, refused)] == [Rejection.DRAINING] * 2
    assert [c.result for c in world.of(LoadFinished)] == [LoadResult.READY, LoadResult.ABORTED]


def test_a_reserved_room_is_given_up() -> None:
    world = World([spec("a", load=10, stop_grace=seconds(100)), spec("b", load=10)], gpus=1, protect=seconds(0))
    world.engines["a"].unload = 50
    world.request("a", at=0)
    b = world.request("b", at=20)
    order = drain(world, 30)
    world.run(200)
    assert b.rejected is not None
    assert (world.loads("b"), world.answers[order][0]) == (0, 70)


def test_what_is_left_after_the_deadline_is_cut_and_counted() -> None:
    world = World([spec("a", load=10, concurrency=1)])
    endless = world.request("a", at=0, service=None)
    waits = world.request("a", at=11)
    order = drain(world, 20, timeout=seconds(30))
    world.run(100)
    assert endless.cut == 50
    assert waits.rejected is not None
    assert waits.rejected[0] == 50
    assert world.answers[order][1].detail == "the node is drained; 1 request was cut"


def test_engines_stay_if_asked_to() -> None:
    world = World([spec("a", load=10)])
    world.request("a", at=0, service=30)
    order = drain(world, 20, stop_engines=False)
    world.run(100)
    assert world.answers[order][0] == 40
    assert world.residents() == ["a"]


def test_engines_whose_memory_leaks_do_not_hold_the_answer_up_for_ever() -> None:
    world = World([spec("a", load=10)])
    world.engines["a"].release = None
    world.request("a", at=0)
    order = drain(world, 20)
    world.run(100)
    assert world.answers[order] == (53, world.answers[order][1])
    assert world.answers[order][1].detail == "the node is drained; the memory of 1 instance was not released"


@pytest.mark.parametrize(("final", "answered"), [(True, 23), (False, 53)])
def test_while_the_driver_cannot_be_asked_the_end_of_the_daemon_waits_for_engines_only(
    final: bool, answered: int
) -> None:
    world = GpuWorld([spec("a", load=10)], devices=node(1))
    world.lists, world.engines["a"].lag = False, None
    world.request("a", at=0)
    world.change(20, driver=DriverState.STALLED)
    order = drain(world, 20, final=final)
    world.run(100)
    assert world.answers[order] == (pytest.approx(answered, abs=0.1), world.answers[order][1])
    assert world.answers[order][1].detail == "the node is drained; the memory of 1 instance was not released"


def test_the_node_comes_back_and_restores_its_pins() -> None:
    world = World([spec("a", load=10), spec("p", load=10, pinned=True)], gpus=2)
    endless = world.request("a", at=0, service=100)
    first = drain(world, 20)
    back = world.order(ev.NodeUndrainOrdered, 50)
    served = world.request("a", at=51)
    world.run(200)
    assert (world.answers[first][0], world.answers[first][1].ok) == (50, False)
    assert world.answers[back][1].ok
    assert endless.cut is None
    assert served.waited == 0
    assert world.residents() == ["a", "p"]
    assert world.loads("p") == 2


def test_taking_a_node_back_that_was_in_service_is_no_error_but_a_final_drain_is_final() -> None:
    world = World([spec("a")])
    idle = world.order(ev.NodeUndrainOrdered, 1)
    drain(world, 2, final=True)
    drain(world, 3)
    refused = world.order(ev.NodeUndrainOrdered, 4)
    world.run(10)
    assert world.answers[idle][1].ok
    assert (world.answers[refused][1].ok, world.answers[refused][1].reason) == (False, Rejection.DRAINING)


def test_a_draining_reservation_is_lifted_and_its_victims_finish_in_service() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1)
    world.request("a", at=0, service=200)
    b = world.request("b", at=20)
    queued = world.request("a", at=145, service=5)
    drain(world, 150)
    world.run(400)
    assert b.rejected is not None
    assert b.rejected[0] == 150
    assert queued.rejected is not None
    assert world.of(Stop)


def test_a_broken_answer_during_the_drain_is_not_loaded_for_again() -> None:
    world = World([spec("a", load=10)])
    asked = world.request("a", at=0, service=None)
    drain(world, 20)
    world.fact(ev.InstanceExited, "a", 25, status=1)
    world.plan(26, lambda: ev.UpstreamFailed(world.now, RequestId(asked.number), InstanceId(1)))
    world.run(100)
    assert asked.rejected is not None
    assert asked.rejected[1].reason is Rejection.UPSTREAM_FAILED
    assert world.loads() == 1
    assert len(world.of(Reject)) == 1


def test_an_instance_draining_for_an_operator_refuses_its_queue_when_the_node_drains() -> None:
    world = World([spec("a", load=10)])
    world.request("a", at=0, service=100)
    world.order(ev.UnloadOrdered, 20, model=A)
    waits = world.request("a", at=25)
    drain(world, 30)
    world.run(200)
    assert waits.rejected is not None
    assert (waits.rejected[0], waits.rejected[1].reason) == (30, Rejection.DRAINING)


def test_an_operators_drain_while_the_daemon_exits_does_not_lift_the_terms_of_the_exit() -> None:
    world = World([spec("a", load=10)])
    endless = world.request("a", at=0, service=None)
    leaving = drain(world, 20, timeout=seconds(30), final=True)
    operator = drain(world, 25, linger=seconds(60))
    world.run(200)
    assert endless.cut == 50
    assert [world.answers[order][0] for order in (leaving, operator)] == [53, 53]


def test_looking_at_a_later_moment_ages_what_is_shown_and_changes_nothing() -> None:
    world = World([spec("a", load=10)])
    world.request("a", at=0, service=1)
    world.run(20)
    before = world.core.view()
    later = world.core.view(Instant(seconds(1000)))
    assert (later.at, later.instances) == (seconds(1000), before.instances)
    assert later.load_fraction < before.load_fraction
    assert world.core.view() == before
