"""The end of a process frees nothing: the driver's word does, and what never comes back is quarantined."""

import pytest

from swapd.core import events as ev
from swapd.core.commands import LoadFinished, ReleaseConfirmed, Transitioned
from swapd.core.ids import ModelName, seconds
from swapd.core.reasons import ReleaseEvidence, Stage, State
from swapd.core.topology import GpuHealth
from tests.core.driver import World, spec
from tests.core.gpus import LATENCY, GpuWorld, gib, node


def two(gib: float = 60, **settings: float) -> GpuWorld:
    """Return one GPU on which only one of two models fits; b is asked for at 100 s."""
    world = GpuWorld([spec("a", gib=gib, load=10), spec("b", gib=gib, load=10)], devices=node(1), **settings)
    world.request("a", at=0)
    world.request("b", at=100)
    return world


def started(world: GpuWorld, model: str) -> float:
    return next(at for at, c in world.log if isinstance(c, Transitioned) and (c.model, c.after) == (model, "loading"))


def test_no_load_starts_before_the_memory_is_back_twelve_seconds_after_the_exit() -> None:
    world = two()
    world.lists = False
    world.engines["a"].lag = 12
    world.run(300)
    assert 103 + 12 < started(world, "b") < 103 + 12 + 2 + 2 * LATENCY
    note = next(c for _, c in world.log if isinstance(c, ReleaseConfirmed))
    assert note.by is ReleaseEvidence.FREE
    assert seconds(12) < note.after < seconds(14.1)
    load = world.of(LoadFinished, "b")[0]
    assert load.stages[Stage.STOP] == seconds(3)
    assert load.stages[Stage.RELEASE] == seconds(started(world, "b") - 103)


def test_memory_that_is_free_already_ends_the_wait_with_the_first_reading() -> None:
    world = two()
    world.at(100.5, world.held.clear)
    world.run(300)
    assert started(world, "b") == pytest.approx(103 + LATENCY)


def test_a_list_that_shows_the_victim_no_more_frees_what_another_process_hides() -> None:
    world = two(gib=20)
    world.reconfigure(spec("b", gib=70, load=10), at=50)
    world.others_take(0, 12, at=101)
    world.run(125)
    note = next(c for _, c in world.log if isinstance(c, ReleaseConfirmed))
    assert (note.by, note.after) == (ReleaseEvidence.PROCESSES, seconds(LATENCY))
    assert world.loads("b") == 0
    world.others_take(0, 2, at=130)
    world.run(300)
    assert world.loads("b") == 1


def lingering(lag: float | None, *, size: float = 20) -> GpuWorld:
    """Return one GPU whose first model is gone from the list at 103 s, and from its memory ``lag`` later."""
    world = GpuWorld([spec("a", gib=size, load=10), spec("b", gib=70, load=10)], devices=node(1))
    world.engines["a"].lag = lag
    world.request("a", at=0)
    world.order(ev.UnloadOrdered, 100, model=ModelName("a"))
    return world


def test_what_is_on_its_way_back_is_not_held_by_others_and_is_waited_for() -> None:
    world = lingering(5)
    b = world.request("b", at=104)
    world.run(107)
    note = next(c for _, c in world.log if isinstance(c, ReleaseConfirmed))
    assert note.by is ReleaseEvidence.PROCESSES
    assert (world.gpu(0).free_bytes, world.gpu(0).foreign_bytes) == (gib(60), 0)
    assert world.loads("b") == 0
    world.run(200)
    assert 108 < started(world, "b") < 110.1
    assert b.granted


@pytest.mark.parametrize("beside", [False, True])
def test_nobody_waits_for_what_is_on_its_way_back_while_another_gpu_is_free(beside: bool) -> None:
    specs = [spec(name, gib=size, load=10, shares=True) for name, size in (("c", 10), ("a", 50), ("b", 60))]
    world = GpuWorld(specs, devices=node(2))
    world.engines["a"].lag = 15
    if beside:
        world.request("c", at=0)
    world.request("a", at=20)
    world.order(ev.UnloadOrdered, 100, model=ModelName("a"))
    world.request("b", at=104)
    world.run(120)
    assert 104 <= started(world, "b") < 105
    assert world.gpus_of("b") == [1]


def test_what_does_not_come_back_in_the_time_of_a_release_is_held_by_others() -> None:
    world = lingering(None)
    world.read(130)
    world.run(131)
    assert world.gpu(0).foreign_bytes == 0
    world.read(134)
    world.run(135)
    assert world.gpu(0).foreign_bytes == gib(20)
    b = world.request("b", at=140)
    world.run(141)
    assert b.rejected is not None
    assert "other processes hold 20 GiB on GPU 0" in b.rejected[1].detail


def test_a_load_that_waited_long_enough_for_it_takes_it_for_somebody_elses() -> None:
    world = lingering(None)
    b = world.request("b", at=104)
    world.run(140)
    assert b.rejected is not None
    assert b.rejected[0] == pytest.approx(134, abs=0.1)
    assert "other processes hold 20 GiB" in b.rejected[1].detail


@pytest.mark.parametrize(("lag", "rest"), [(20, 0), (None, 20)])
def test_a_model_beside_it_is_measured_when_it_is_clear_whose_it_is(lag: float | None, rest: float) -> None:
    world = lingering(lag)
    world.figures = False
    world.reconfigure(spec("b", gib=40, load=10), at=50)
    world.request("b", at=104)
    world.run(116)
    assert world.model("b").measured_bytes is None
    world.run(140)
    assert (world.model("b").measured_bytes, world.gpu(0).foreign_bytes) == (gib(40), gib(rest))


def test_figures_of_its_processes_tell_what_a_model_beside_it_takes() -> None:
    world = lingering(None)
    world.reconfigure(spec("b", gib=40, load=10), at=50)
    world.request("b", at=104)
    world.run(116)
    assert world.model("b").measured_bytes == gib(40)


def test_a_gpu_that_cannot_be_read_any_more_shows_nothing_of_others() -> None:
    world = lingering(None)
    world.request("b", at=104)
    world.at(110, lambda: world.unreadable.add(0))
    world.run(140)
    assert world.gpu(0).foreign_bytes == 0


def test_an_empty_list_that_never_showed_the_victim_is_no_proof() -> None:
    world = two()
    world.figures = False
    world.engines["a"].lag = None
    world.at(0, lambda: setattr(world, "lists", True))
    hidden = world._read
    world._read = lambda gpu: ev.GpuMemory(gpu, gib(80), hidden(gpu).free_bytes, {})  # type: ignore[method-assign]
    world.run(120)
    assert world.loads("b") == 0
    assert not [c for _, c in world.log if isinstance(c, ReleaseConfirmed)]


def test_what_is_not_back_in_time_is_leaked_with_what_is_missing_and_freed_by_a_later_reading() -> None:
    models = [spec("a", gib=40, load=10, shares=True), spec("b", gib=70, load=10, shares=True)]
    world = GpuWorld([*models, spec("c", gib=40, load=10, shares=True)], devices=node(1))
    world.lists = False
    world.engines["a"].lag = None
    world.request("a", at=0)
    b = world.request("b", at=100)
    world.at(120, lambda: setattr(world.held[world_instance(world)], "amount", gib(30)))
    world.run(134)
    assert [c.after for _, c in world.log if isinstance(c, Transitioned) and c.model == "a"][-1] is State.LEAKED
    assert world.gpu(0).quarantined_bytes == gib(30)
    assert b.rejected is not None
    assert "never released" in b.rejected[1].detail
    c = world.request("c", at=140)
    world.run(200)
    assert c.waited == pytest.approx(10 + LATENCY)
    world.at(201, world.held.clear)
    world.read(202)
    world.run(203)
    assert world.gpu(0).quarantined_bytes == 0
    assert [n.after for _, n in world.log if isinstance(n, ReleaseConfirmed)] == [seconds(99 + LATENCY)]


def world_instance(world: GpuWorld) -> int:
    return next(iter(world.held))


def test_a_leak_is_charged_no_more_than_was_booked() -> None:
    world = two(gib=40)
    world.lists = False
    world.engines["a"].lag = None
    world.others_take(0, 30, at=101)
    world.run(140)
    assert world.gpu(0).quarantined_bytes == gib(40)


def test_a_leak_whose_engine_lives_on_is_charged_in_full_until_the_engine_is_gone() -> None:
    world = two(gib=60, release_timeout=seconds(20))
    world.engines["a"].release = 50
    world.run(130)
    assert world.gpu(0).quarantined_bytes == gib(60)
    world.run(152)
    assert world.gpu(0).quarantined_bytes == gib(60)
    world.read(154)
    world.run(155)
    assert world.gpu(0).quarantined_bytes == 0


def test_where_pages_linger_the_accounts_are_trusted_after_the_deadline() -> None:
    models = [spec("a", gib=60, load=10), spec("b", gib=60, load=10)]
    world = GpuWorld(models, devices=node(1, lingers=True))
    world.lists = False
    world.engines["a"].lag = None
    world.request("a", at=0)
    b = world.request("b", at=100)
    world.run(132)
    assert world.loads("b") == 0
    world.run(133.5)
    note = next(c for _, c in world.log if isinstance(c, ReleaseConfirmed))
    assert (note.by, note.after) == (ReleaseEvidence.ACCOUNTS, seconds(30))
    world.run(140)
    assert world.gpu(0).foreign_bytes == 0
    world.held = {number: held for number, held in world.held.items() if held.listed}
    world.run(200)
    assert b.granted
    world.read(201)
    world.run(202)
    assert world.gpu(0).foreign_bytes == 0


def test_each_gpu_is_given_out_as_soon_as_it_is_free() -> None:
    world = GpuWorld([spec("a", 2, gib=60, load=10), spec("b", gib=60, load=10)], devices=node(2))
    world.lists = False
    world.engines["a"].lag = None
    world.request("a", at=0)
    b = world.request("b", at=100)
    world.at(105, lambda: setattr(world.held[world_instance(world)], "gpus", 0b01))
    world.run(136)
    assert world.gpus_of("b") in ([0], [1])
    states = {str(i.model): (str(i.state), int(i.gpus)) for i in world.core.view().instances}
    assert states["a"] == ("leaked", 0b11)
    world.run(200)
    assert b.granted
    assert world.gpu(0).quarantined_bytes == gib(60)
    assert world.gpu(1).quarantined_bytes == 0


def test_the_driver_need_not_speak_of_a_lost_gpu_and_what_stays_there_is_foreign_later() -> None:
    world = two()
    world.lists = False
    world.engines["a"].lag = None
    world.turn(0, GpuHealth.LOST, at=101)
    world.run(104)
    note = next(c for _, c in world.log if isinstance(c, ReleaseConfirmed))
    assert (note.by, note.after) == (ReleaseEvidence.ACCOUNTS, 0)
    assert world.core.view().instances == ()
    world.turn(0, GpuHealth.HEALTHY, at=110)
    world.read(111)
    world.run(112)
    assert world.gpu(0).foreign_bytes == gib(60)


def test_a_gpu_lost_while_its_release_is_awaited_is_not_waited_for() -> None:
    world = two()
    world.lists = False
    world.engines["a"].lag = None
    world.turn(0, GpuHealth.LOST, at=110)
    world.run(111)
    assert world.core.view().instances == ()


def test_an_engine_that_is_gone_without_a_word_on_its_processes_is_released_all_the_same() -> None:
    world = World([spec("a", load=10)], gpus=1)
    world.engines["a"].ignores_stop = True
    world.request("a", at=0)
    world.order(ev.UnloadOrdered, 20, model=ModelName("a"))
    world.run(21)
    number = world.core.view().instances[0].instance
    world.post(ev.EngineGone(world.now, number))
    assert world.core.view().instances == ()


def test_a_neighbour_that_loads_does_not_make_up_for_memory_that_is_missing() -> None:
    models = [spec(name, gib=30, load=load, shares=True) for name, load in (("a", 10), ("b", 40))]
    world = GpuWorld(models, devices=node(1), release_timeout=seconds(5))
    world.lists = False
    world.engines["a"].lag = None
    world.request("a", at=0)
    world.run(11)
    world.order(ev.UnloadOrdered, 12, model=ModelName("a"))
    world.request("b", at=13)
    world.run(40)
    leak = next(i for i in world.core.view().instances if i.model == "a")
    assert leak.state is State.LEAKED
    world.run(90)
    assert world.gpu(0).quarantined_bytes == gib(30)
    assert next(i for i in world.core.view().instances if i.model == "b").bytes_per_gpu == gib(30)


def test_of_two_that_have_ended_the_list_tells_which_one_still_holds_memory() -> None:
    models = [spec(name, gib=30, load=10, shares=True) for name in "ab"]
    world = GpuWorld(models, devices=node(1))
    world.engines["a"].lag, world.engines["b"].lag = None, 0
    world.engines["b"].release = 50
    for name in "ab":
        world.request(name, at=0)
        world.order(ev.UnloadOrdered, 60, model=ModelName(name))
    world.ghosts = True
    world.run(70)
    assert {str(i.model): str(i.state) for i in world.core.view().instances} == {"a": "unloading", "b": "unloading"}


def test_virtual_devices_are_free_with_the_end_of_the_engine() -> None:
    world = World([spec("a", load=10)], gpus=1)
    world.request("a", at=0)
    world.order(ev.UnloadOrdered, 20, model=ModelName("a"))
    world.run(100)
    (note,) = [c for _, c in world.log if isinstance(c, ReleaseConfirmed)]
    assert (note.by, note.after) == (ReleaseEvidence.ACCOUNTS, 0)


def test_a_newcomer_that_finds_only_memory_on_its_way_back_waits_in_the_stage_release() -> None:
    world = GpuWorld([spec("a", gib=60, load=10), spec("b", gib=60, load=10)], devices=node(1))
    world.engines["a"].lag = 9
    world.lists = False
    world.request("a", at=0)
    world.order(ev.UnloadOrdered, 50, model=ModelName("a"))
    world.request("b", at=55)
    world.run(200)
    assert next(iter(world.of(LoadFinished, "b")[0].stages)) is Stage.RELEASE


def test_the_words_of_several_gpus_make_one() -> None:
    world = GpuWorld([spec("a", 2, gib=20, load=10), spec("b", 2, gib=20, load=10)], devices=node(2))
    world.others_take(1, 30, at=101)
    world.request("a", at=0)
    world.request("b", at=100)
    world.run(110)
    note = next(c for _, c in world.log if isinstance(c, ReleaseConfirmed))
    assert note.by is ReleaseEvidence.PROCESSES
