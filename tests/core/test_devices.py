"""GPUs fail, are lost and come back, drivers are late or in trouble: what need not stop does not, and all goes on."""

from dataclasses import replace

import pytest

from swapd.core import events as ev
from swapd.core.commands import DriverChanged, Evicted, GpuChanged, LoadFinished, Start, Stop, Transitioned
from swapd.core.ids import ModelName, seconds
from swapd.core.reasons import LoadResult, Rejection, State, UnloadCause
from swapd.core.topology import DriverState, Gpu, GpuHealth, NodeTopology
from tests.core.driver import World, spec
from tests.core.gpus import LATENCY, GpuWorld, gib, linked, node, with_gpu

BAD = [GpuHealth.FAILED, GpuHealth.LOST, GpuHealth.MIG]
TROUBLES = [state for state in DriverState if state not in (DriverState.UP, DriverState.VIRTUAL, DriverState.STARTING)]


def late(**settings: float) -> GpuWorld:
    """Return a node whose driver has not been heard of yet."""
    nothing = NodeTopology((), driver=DriverState.STARTING)
    world = GpuWorld([spec("a", gib=60, load=10), spec("p", gib=60, load=10, pinned=True)], devices=nothing, **settings)
    world.devices = node(2)
    return world


def test_before_the_driver_is_heard_of_requests_wait_and_nothing_is_refused() -> None:
    world = late()
    a = world.request("a", at=1)
    world.run(50)
    assert (a.granted, a.rejected) == ([], None)
    assert world.core.view().gpus == ()
    world.change(60, driver=DriverState.UP)
    world.run(100)
    assert world.residents() == ["a", "p"]
    assert a.waited == pytest.approx(59 + 10 + LATENCY)


def test_the_wait_for_the_driver_is_bounded_as_any_other() -> None:
    world = late()
    a = world.request("a", at=1)
    world.run(400)
    assert a.rejected is not None
    assert (a.rejected[0], a.rejected[1].reason) == (301, Rejection.WAIT_TIMEOUT)


def test_devices_that_appear_are_counted_and_the_driver_is_told_of() -> None:
    world = late()
    world.change(5, driver=DriverState.UP)
    world.run(6)
    assert world.core._node.load.gpus == 2
    assert [(c.before, c.after, c.detail) for _, c in world.log if isinstance(c, DriverChanged)] == [
        (DriverState.STARTING, DriverState.UP, "")
    ]
    assert [(gpu.index, gpu.uuid, gpu.memory_bytes) for gpu in world.core.view().gpus] == [
        (0, "GPU-0", gib(80)),
        (1, "GPU-1", gib(80)),
    ]


def test_a_new_gpu_is_used() -> None:
    world = GpuWorld([spec("a", gib=60, load=10), spec("b", gib=60, load=10)], devices=node(1))
    world.request("a", at=0, service=None)
    b = world.request("b", at=20)
    world.plan(30, lambda: ev.TopologyChanged(world.now, replace(node(2), generation=9)))
    world.at(29, lambda: setattr(world, "devices", node(2)))
    world.run(60)
    assert b.granted
    assert world.core.view().topology.generation == 9


def test_gpus_are_never_taken_out() -> None:
    world = GpuWorld(devices=node(2))
    world.plan(1, lambda: ev.TopologyChanged(world.now, node(1)))
    with pytest.raises(AssertionError, match="taken out"):
        world.run(2)


def test_a_gpu_that_was_never_readable_becomes_known() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=with_gpu(node(1), 0, health=GpuHealth.LOST, memory_bytes=0))
    early = world.request("a", at=1)
    world.run(2)
    assert early.rejected is not None
    assert (early.rejected[1].permanent, early.rejected[1].retry_after) == (False, seconds(60))
    world.turn(0, GpuHealth.HEALTHY, at=5, memory_bytes=gib(80))
    asked = world.request("a", at=6)
    world.run(60)
    assert asked.granted
    assert world.gpu(0).memory_bytes == gib(80)


@pytest.mark.parametrize("health", BAD)
def test_a_model_on_a_gpu_that_fails_finishes_its_requests_and_is_placed_elsewhere_if_wanted(health: GpuHealth) -> None:
    world = GpuWorld([spec("a", gib=60, load=10), spec("b", gib=60, load=10)], devices=node(3))
    served = world.request("a", at=0, service=30)
    other = world.request("b", at=0, service=200)
    world.run(14)
    (bad,) = world.gpus_of("a")
    world.turn(bad, health, at=15, why="Xid 48")
    late_ = world.request("a", at=20)
    world.run(39)
    assert {str(i.model): str(i.state) for i in world.core.view().instances} == {"a": "draining", "b": "ready"}
    world.run(300)
    assert (served.cut, other.cut) == (None, None)
    assert late_.granted[0][0] == pytest.approx(40 + 10, abs=0.1)
    assert world.gpus_of("a") not in ([bad], world.gpus_of("b"))
    assert [c.cause for c in world.of(Evicted, "a")] == [UnloadCause.GPU_FAILED]
    (note,) = [c for _, c in world.log if isinstance(c, GpuChanged)]
    assert note == GpuChanged(bad, f"GPU-{bad}", GpuHealth.HEALTHY, health, "Xid 48")


def test_what_is_still_in_flight_on_a_failed_gpu_is_cut_at_the_drain_timeout() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1), drain_timeout=seconds(20))
    served = world.request("a", at=0, service=None)
    world.turn(0, GpuHealth.FAILED, at=30)
    world.run(100)
    assert served.cut == 50


def test_a_pinned_model_is_placed_elsewhere_at_once() -> None:
    world = GpuWorld([spec("p", gib=60, load=10, pinned=True)], devices=node(2))
    world.turn(0, GpuHealth.LOST, at=50)
    world.run(80)
    assert world.gpus_of("p") == [1]


def test_a_load_on_a_gpu_that_is_lost_is_broken_off_and_its_waiters_get_another_place() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(2))
    asked = world.request("a", at=0)
    world.turn(0, GpuHealth.LOST, at=5)
    world.run(60)
    assert asked.granted[0][0] == pytest.approx(5 + 10, abs=0.1)
    assert [c.result for c in world.of(LoadFinished)] == [LoadResult.ABORTED, LoadResult.READY]
    assert [c.cause for c in world.of(Stop)] == [UnloadCause.GPU_FAILED]
    assert world.gpus_of("a") == [1]


def test_a_booking_on_a_gpu_that_is_lost_is_forgotten() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(2))
    world.answers_readings = False
    world.request("a", at=0)
    world.turn(0, GpuHealth.LOST, at=5)
    world.run(5)
    assert [(c.before, c.after) for _, c in world.log if isinstance(c, Transitioned)][:2] == [
        (None, State.RESERVED),
        (State.RESERVED, State.GONE),
    ]
    assert world.gpus_of("a") == [1]


def test_one_lost_gpu_of_eight_leaves_the_other_seven_in_service() -> None:
    links = linked(8, range(8))
    world = GpuWorld([spec("a", gib=60, load=10), spec("t", 4, gib=60, load=10)], devices=node(8, links=links))
    world.turn(3, GpuHealth.LOST, at=1)
    a, t = world.request("a", at=2), world.request("t", at=3)
    world.run(60)
    assert a.granted
    assert t.granted
    assert 3 not in [*world.gpus_of("a"), *world.gpus_of("t")]
    view = world.core.view()
    assert not view.free.gpus >> 3 & 1
    assert [gpu.health for gpu in view.gpus].count(GpuHealth.LOST) == 1
    assert world.core._node.load.gpus == 7


def test_a_lost_gpu_is_neither_free_nor_evicted_for_and_who_needs_it_is_told_to_ask_later() -> None:
    world = GpuWorld([spec("a", gib=60, load=10), spec("t", 2, gib=60, load=10)], devices=node(2))
    world.request("a", at=0)
    world.turn(1, GpuHealth.LOST, at=50, why="it has left the bus")
    t = world.request("t", at=200)
    world.run(201)
    assert t.rejected is not None
    refusal = t.rejected[1]
    assert (refusal.reason, refusal.permanent, refusal.retry_after) == (Rejection.NO_CAPACITY, False, seconds(60))
    assert refusal.detail == "t needs 2 GPUs with 60 GiB each; GPU 1 is lost (it has left the bus)"
    assert world.residents() == ["a"]


def test_who_waits_for_a_gpu_that_is_lost_meanwhile_is_told() -> None:
    world = GpuWorld([spec("a", gib=60, load=10), spec("t", 2, gib=60, load=10)], devices=node(2))
    world.request("a", at=0, service=100)
    t = world.request("t", at=20)
    world.turn(1, GpuHealth.LOST, at=50)
    world.run(51)
    assert t.rejected is not None


def test_a_gpu_that_is_back_is_used_again_once_it_is_read() -> None:
    world = GpuWorld([spec("a", gib=60, load=10), spec("b", gib=60, load=10)], devices=node(2))
    world.turn(1, GpuHealth.LOST, at=1)
    world.turn(1, GpuHealth.HEALTHY, at=50)
    world.request("a", at=60)
    world.request("b", at=60)
    world.run(100)
    assert world.residents() == ["a", "b"]


def test_a_model_that_drains_for_a_fault_is_not_taken_back_when_the_gpu_recovers() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.request("a", at=0, service=50)
    world.turn(0, GpuHealth.FAILED, at=20)
    world.turn(0, GpuHealth.HEALTHY, at=25)
    again = world.request("a", at=30)
    world.run(200)
    assert world.loads("a") == 2
    assert again.granted


@pytest.mark.parametrize("exits", [False, True])
def test_who_waits_for_the_only_gpu_that_failed_is_told_as_soon_as_the_model_has_left_it(exits: bool) -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.request("a", at=0, service=50)
    world.turn(0, GpuHealth.FAILED, at=20)
    queued = world.request("a", at=30)
    if exits:
        world.fact(ev.InstanceExited, "a", at=40, status=1)
    world.run(100)
    assert queued.rejected is not None
    assert queued.rejected[0] == pytest.approx(40 if exits else 60, abs=0.1)
    assert queued.rejected[1].detail == "a needs 1 GPU with 60 GiB each; GPU 0 has failed"


def test_a_victim_of_a_reservation_whose_gpu_fails_is_not_lifted_with_it() -> None:
    models = [spec("a", gib=60, load=10), spec("b", gib=60, load=10)]
    world = GpuWorld(models, devices=node(1))
    world.request("a", at=0, service=400)
    b = world.request("b", at=20)
    world.run(141)
    assert world.core.view().reservation is not None
    world.turn(0, GpuHealth.FAILED, at=150)
    world.run(151)
    assert world.core.view().reservation is None
    assert b.rejected is not None
    world.run(500)
    assert [c.cause for c in world.of(Evicted)] == [UnloadCause.GPU_FAILED]


def test_a_model_that_drains_for_another_reason_goes_on_draining() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.request("a", at=0, service=50)
    world.order(ev.UnloadOrdered, 20, model=ModelName("a"), drain_timeout=seconds(15))
    world.turn(0, GpuHealth.FAILED, at=25)
    world.run(100)
    assert [c.cause for c in world.of(Evicted)] == [UnloadCause.OPERATOR]


@pytest.mark.parametrize("state", TROUBLES)
def test_while_the_driver_is_in_trouble_residents_serve_and_whoever_needs_a_load_is_refused(state: DriverState) -> None:
    world = GpuWorld([spec("a", gib=60, load=10), spec("b", gib=60, load=10)], devices=node(1))
    running = world.request("a", at=0, service=100)
    waiting = world.request("b", at=20)
    world.change(30, driver=state, trouble="no driver: see the manual")
    order = world.order(ev.LoadOrdered, 31, model=ModelName("b"))
    resident, cold = world.request("a", at=40), world.request("b", at=41)
    world.run(42)
    assert resident.granted
    assert running.cut is None
    for asked, at in ((waiting, 30), (cold, 41)):
        assert asked.rejected is not None
        assert asked.rejected[0] == at
        refusal = asked.rejected[1]
        assert (refusal.reason, refusal.retry_after, refusal.permanent) == (Rejection.DEGRADED, seconds(10), False)
        assert refusal.detail == "no model can be loaded now: no driver: see the manual"
    assert world.answers[order][1].reason is Rejection.DEGRADED
    world.change(150, driver=DriverState.UP, trouble="")
    again = world.request("b", at=152)
    world.run(400)
    assert again.granted


def test_a_pin_given_in_trouble_is_loaded_when_it_is_over() -> None:
    world = GpuWorld([spec("p", gib=60, load=10)], devices=node(1))
    world.change(10, driver=DriverState.STALLED)
    world.order(ev.PinOrdered, 20, model=ModelName("p"), pinned=True)
    world.run(60)
    assert world.loads() == 0
    world.change(70, driver=DriverState.UP)
    world.run(90)
    assert world.residents() == ["p"]


def test_a_trouble_without_a_sentence_is_told_in_the_cores_own_words() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.change(1, driver=DriverState.STALLED)
    asked = world.request("a", at=2)
    world.run(3)
    assert asked.rejected is not None
    assert asked.rejected[1].detail == "no model can be loaded now: the NVIDIA driver does not answer"
    assert [c.detail for _, c in world.log if isinstance(c, DriverChanged)] == ["the NVIDIA driver does not answer"]


def test_a_booking_that_has_not_begun_is_given_up_in_trouble_and_a_load_goes_on() -> None:
    world = GpuWorld([spec("a", gib=60, load=10), spec("b", gib=60, load=10)], devices=node(2))
    loading = world.request("a", at=0)
    world.at(1, lambda: setattr(world, "answers_readings", False))
    booked = world.request("b", at=2)
    world.change(3, driver=DriverState.STALLED)
    world.run(60)
    assert loading.granted
    assert booked.rejected is not None
    assert booked.rejected[1].reason is Rejection.DEGRADED


def test_who_waits_behind_a_draining_instance_is_refused_in_trouble() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.request("a", at=0, service=100)
    world.order(ev.UnloadOrdered, 20, model=ModelName("a"))
    before = world.request("a", at=21)
    world.change(30, driver=DriverState.FAILED)
    after = world.request("a", at=31)
    world.run(32)
    assert [asked.rejected is not None for asked in (before, after)] == [True, True]


def test_who_waits_for_an_engine_that_dies_in_trouble_is_refused() -> None:
    world = GpuWorld([spec("a", gib=60, load=10, concurrency=1)], devices=node(1))
    world.request("a", at=0, service=100)
    queued = world.request("a", at=20)
    world.change(30, driver=DriverState.STALLED)
    world.fact(ev.InstanceExited, "a", at=35, status=1)
    world.run(36)
    assert queued.rejected is not None
    assert queued.rejected[1].reason is Rejection.DEGRADED


def test_no_gpu_is_cordoned_while_nobody_can_tell_how_it_is() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.request("a", at=0)
    world.change(30, driver=DriverState.FAILED, gpus=with_gpu(node(1), 0, health=GpuHealth.LOST).gpus)
    served = world.request("a", at=40)
    world.run(50)
    assert served.granted
    world.change(60, driver=DriverState.UP)
    world.run(61)
    assert world.residents() == []


def test_an_outdated_model_stays_while_it_could_not_be_loaded_again() -> None:
    world = GpuWorld([spec("a", gib=60, load=10, revision="1")], devices=node(1))
    world.request("a", at=0)
    world.change(20, driver=DriverState.STALLED)
    world.reconfigure(spec("a", gib=60, load=10, revision="2"), at=30)
    world.run(100)
    assert world.residents() == ["a"]
    world.change(110, driver=DriverState.UP)
    world.run(200)
    assert world.loads("a") == 2


def test_a_reservation_is_dropped_in_trouble_and_its_victims_serve_again() -> None:
    world = GpuWorld([spec("a", gib=60, load=10), spec("b", gib=60, load=10)], devices=node(1))
    world.request("a", at=0, service=400)
    world.request("b", at=20)
    world.run(141)
    held = world.request("a", at=145)
    world.change(150, driver=DriverState.STALLED)
    world.run(151)
    assert held.granted
    assert world.core.view().reservation is None


def test_a_virtual_device_that_shrinks_keeps_what_is_on_it_and_takes_no_more() -> None:
    models = [spec("a", gib=60, load=10, shares=True), spec("b", gib=15, load=10, shares=True)]
    world = World(models, gpus=1)
    world.request("a", at=0)
    small = NodeTopology((Gpu(0, "virtual-0", gib(50)),))
    world.plan(20, lambda: ev.TopologyChanged(world.now, small))
    b = world.request("b", at=100)
    world.run(200)
    assert b.granted
    assert world.evictions() == [(100, "a")]


def test_a_load_that_was_never_begun_by_the_driver_is_told_its_devices_in_order() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1, cpus=(0, 1, 2)))
    world.request("a", at=0)
    world.run(20)
    (order,) = world.of(Start)
    assert (order.devices, order.numa, order.cpus) == (("GPU-0",), (0,), (0, 1, 2))
