"""What others hold on a GPU is told from quiet readings, reckoned with everywhere, and freed by no eviction."""

from swapd.core import events as ev
from swapd.core.commands import Evicted, EvictionBlocked, Start
from swapd.core.ids import InstanceId, ModelName
from swapd.core.reasons import Rejection
from tests.core.driver import spec
from tests.core.gpus import GpuWorld, gib, node


def test_a_quiet_reading_tells_what_others_hold() -> None:
    world = GpuWorld([spec("a", gib=20, load=10)], devices=node(2))
    world.others_take(0, 7, at=0)
    world.read(1)
    world.run(2)
    gpu = world.gpu(0)
    assert (gpu.free_bytes, gpu.foreign_bytes, gpu.reserved_bytes) == (gib(73), gib(7), 0)
    assert world.gpu(1).foreign_bytes == 0


def test_a_model_goes_where_others_leave_room() -> None:
    world = GpuWorld([spec("a", gib=75, load=10)], devices=node(2))
    world.others_take(0, 7, at=0)
    world.read(1)
    world.request("a", at=2)
    world.run(60)
    assert world.gpus_of("a") == [1]


def test_no_eviction_frees_what_others_hold() -> None:
    world = GpuWorld([spec("a", gib=40, load=10), spec("b", gib=60, load=10)], devices=node(1))
    world.request("a", at=0)
    world.others_take(0, 30, at=50)
    world.read(51)
    b = world.request("b", at=200)
    world.run(300)
    assert b.rejected is not None
    assert b.rejected[1].reason is Rejection.NO_CAPACITY
    assert world.of(Evicted) == []


def test_waiting_requests_are_told_when_others_take_the_room_they_wait_for() -> None:
    world = GpuWorld([spec("a", gib=40, load=10), spec("b", gib=60, load=10)], devices=node(1))
    world.request("a", at=0, service=500)
    b, again = world.request("b", at=20), world.request("b", at=21)
    world.others_take(0, 30, at=29)
    world.read(30)
    world.run(31)
    for asked in (b, again):
        assert asked.rejected is not None
        assert "other processes hold 30 GiB on GPU 0" in asked.rejected[1].detail


def test_models_that_still_fit_go_on_waiting() -> None:
    models = [spec("a", gib=40, load=10), spec("b", gib=45, load=10), spec("c", gib=45, load=10)]
    world = GpuWorld(models, devices=node(1))
    world.request("a", at=0, service=40)
    waiting = [world.request("b", at=20), world.request("c", at=21)]
    world.others_take(0, 30, at=29)
    world.read(30)
    world.run(31)
    assert [asked.rejected for asked in waiting] == [None, None]


def test_while_a_model_loads_the_last_word_on_others_stands() -> None:
    world = GpuWorld([spec("a", gib=40, load=10)], devices=node(1))
    world.lists = False
    world.request("a", at=0)
    world.others_take(0, 10, at=3)
    world.read(5)
    world.run(6)
    assert world.gpu(0).foreign_bytes == 0


def test_the_figures_of_our_processes_correct_it_meanwhile() -> None:
    world = GpuWorld([spec("a", gib=40, load=10)], devices=node(1))
    world.others_take(0, 30, at=0)
    world.read(1)
    world.request("a", at=2)
    world.others_take(0, 5, at=5)
    world.read(6)
    world.run(7)
    assert world.gpu(0).foreign_bytes == gib(5)
    world.others_take(0, 35, at=8)
    world.read(9)
    world.run(10)
    # its engine may still take 20 of these, so only 15 are certain
    assert world.gpu(0).foreign_bytes == gib(15)


def test_figures_that_leave_most_of_it_out_correct_nothing_for_the_worse() -> None:
    world = GpuWorld([spec("a", gib=40, load=10)], devices=node(1))
    world.told = 0.1
    world.request("a", at=0)
    world.read(5)
    world.run(6)
    assert world.gpu(0).foreign_bytes == 0


def test_a_list_without_figures_corrects_nothing() -> None:
    world = GpuWorld([spec("a", gib=40, load=10)], devices=node(1))
    world.figures = False
    world.others_take(0, 30, at=0)
    world.read(1)
    world.request("a", at=2)
    world.others_take(0, 5, at=5)
    world.read(6)
    world.run(7)
    assert world.gpu(0).foreign_bytes == gib(30)


def test_a_reading_begun_before_a_load_ended_is_not_quiet() -> None:
    world = GpuWorld([spec("a", gib=40, load=10)], devices=node(1))
    world.lists = False
    world.answers_readings = True
    world.request("a", at=0)
    world.at(9.5, lambda: world.reading(world.now, latency=1.0))
    world.at(9.9, lambda: setattr(world, "answers_readings", False))
    world.run(12)
    assert world.residents() == ["a"]
    assert world.gpu(0).foreign_bytes == 0


def test_readings_that_overtake_each_other_are_put_in_order() -> None:
    world = GpuWorld(devices=node(1))
    world.at(1, lambda: world.reading(world.now, latency=5))
    world.others_take(0, 10, at=2)
    world.at(3, lambda: world.reading(world.now, latency=1))
    world.run(10)
    assert world.gpu(0).foreign_bytes == gib(10)


def test_a_driver_that_shows_more_free_than_there_is_is_not_believed() -> None:
    world = GpuWorld(devices=node(1))
    world.plan(1, lambda: ev.GpuMemoryRead(world.now, world.now, (ev.GpuMemory(0, gib(80), gib(90)),)))
    world.run(2)
    assert (world.gpu(0).free_bytes, world.gpu(0).foreign_bytes) == (gib(80), 0)


def test_readings_of_gpus_that_are_not_measured_or_not_there_are_passed_over() -> None:
    world = GpuWorld([spec("a", gib=40, load=10)], devices=node(1, measured=False))
    readings = tuple(ev.GpuMemory(gpu, gib(10), gib(0)) for gpu in range(3))
    world.plan(1, lambda: ev.GpuMemoryRead(world.now, world.now, readings))
    world.run(2)
    assert (world.gpu(0).memory_bytes, world.gpu(0).free_bytes) == (gib(80), None)
    world.request("a", at=3)
    world.run(60)
    assert world.loads("a") == 1
    assert world.ordered == []


def test_two_models_that_fit_by_count_but_not_by_bytes_do_not_stand_side_by_side() -> None:
    models = [spec("a", gib=60, load=10, shares=True), spec("b", gib=29, load=10, shares=True)]
    world = GpuWorld(models, devices=node(1))
    world.request("a", at=0)
    world.request("b", at=200)
    world.run(300)
    evicted = next(at for at, c in world.log if isinstance(c, Evicted))
    started = next(at for at, c in world.log if isinstance(c, Start) and c.spec.name == "b")
    assert evicted < started


def test_processes_of_instances_that_are_not_there_say_nothing() -> None:
    world = GpuWorld(devices=node(1))
    reading = ev.GpuMemory(0, gib(80), gib(60), {InstanceId(77): gib(20)})
    world.plan(1, lambda: ev.GpuMemoryRead(world.now, world.now, (reading,)))
    world.run(2)
    assert world.gpu(0).foreign_bytes == gib(20)


def test_nobody_waits_for_others_to_be_evicted() -> None:
    world = GpuWorld([spec("a", gib=40, load=10, pinned=True), spec("b", gib=30, load=10)], devices=node(1))
    world.run(50)
    b = world.request("b", at=60)
    world.run(70)
    assert b.rejected is not None
    assert b.rejected[1].reason is Rejection.ALL_PINNED
    assert world.of(EvictionBlocked) == []
    assert world.model("a").model == ModelName("a")
