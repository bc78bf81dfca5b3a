"""The driver is asked while somebody waits for its word: one order at a time, with growing pauses, never in vain."""

from swapd.core import events as ev
from swapd.core.commands import ReadMemory
from swapd.core.ids import ModelName, seconds
from swapd.core.reasons import State
from swapd.core.topology import DriverState
from tests.core.driver import World, spec
from tests.core.gpus import LATENCY, GpuWorld, gib, node


def test_the_pause_between_orders_grows_to_two_seconds() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.others_take(0, 30, at=0)
    world.request("a", at=0)
    world.run(29)
    gaps = [round(later - earlier, 3) for earlier, later in zip(world.ordered, world.ordered[1:], strict=False)]
    assert gaps[:6] == [0.12, 0.22, 0.42, 0.82, 1.62, 2.02]
    assert set(gaps[6:]) == {2.02}


def test_who_begins_to_wait_does_not_wait_for_the_pause_of_the_others() -> None:
    world = GpuWorld([spec("a", gib=60, load=10), spec("b", gib=60, load=10)], devices=node(2))
    world.others_take(0, 30, at=0)
    world.request("a", at=0.001)
    world.request("b", at=9)
    world.run(20)
    assert 9 in world.ordered or any(0 < at - 9 <= 2 * LATENCY for at in world.ordered)
    assert world.residents() == ["b"]


def test_an_answer_begun_before_somebody_began_to_wait_is_followed_by_the_next_order_at_once() -> None:
    world = GpuWorld([spec("a", gib=60, load=10), spec("b", gib=60, load=10)], devices=node(2))
    world.request("a", at=0)
    world.request("b", at=0.01)
    world.run(5)
    assert world.ordered[:2] == [0, 0.02]


def test_an_answer_that_never_comes_is_given_up_after_ten_seconds() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.answers_readings = False
    world.request("a", at=0)
    world.at(15, lambda: setattr(world, "answers_readings", True))
    world.run(40)
    assert world.ordered[:3] == [0, 10, 20]
    assert world.residents() == ["a"]


def test_an_answer_without_readings_is_an_answer() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.unreadable = {0}
    world.request("a", at=0)
    world.run(5)
    assert world.ordered[:2] == [0, 0.12]
    assert world.gpu(0).free_bytes is None


def test_a_regular_reading_begun_before_the_order_is_not_its_answer() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.answers_readings = False
    world.request("a", at=5)
    world.plan(5.5, lambda: ev.GpuMemoryRead(world.now, type(world.now)(seconds(4)), ()))
    world.run(9)
    assert world.ordered == [5]


def test_nobody_is_asked_where_nobody_waits() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.request("a", at=0)
    world.run(500)
    assert len(world.ordered) == 2
    assert world.core.next_wakeup is None


def test_nobody_is_asked_while_the_driver_is_let_go() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.engines["a"].lag = 20
    world.request("a", at=0)
    world.change(50, driver=DriverState.RELEASED)
    world.order(ev.UnloadOrdered, 60, model=ModelName("a"))
    world.run(90)
    assert len(world.ordered) == 2
    world.change(91, driver=DriverState.UP)
    world.run(92)
    assert len(world.ordered) == 3
    assert world.core.view().instances == ()


def test_virtual_devices_are_never_asked() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1)
    world.request("a", at=0)
    world.request("b", at=50)
    world.run(500)
    assert not [c for _, c in world.log if isinstance(c, ReadMemory)]


def test_a_leak_is_left_to_the_regular_readings() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(1))
    world.lists = False
    world.engines["a"].lag = None
    world.request("a", at=0)
    world.order(ev.UnloadOrdered, 20, model=ModelName("a"))
    world.run(60)
    assert [i.state for i in world.core.view().instances] == [State.LEAKED]
    before = len(world.ordered)
    world.run(600)
    assert len(world.ordered) == before
    assert world.gpu(0).quarantined_bytes == gib(60)


def test_a_gpu_whose_reading_is_missing_is_not_known_now() -> None:
    world = GpuWorld([spec("a", gib=60, load=10)], devices=node(2))
    world.read(1)
    world.at(2, lambda: world.unreadable.add(1))
    world.read(3)
    world.run(4)
    assert (world.gpu(0).free_bytes, world.gpu(1).free_bytes) == (gib(80), None)
