"""What a model really takes is measured when it is ready, charged at once, and reckoned with in later plans."""

import pytest

from swapd.core import events as ev
from swapd.core.commands import Evicted, FootprintMeasured
from swapd.core.ids import ModelName
from swapd.core.reasons import Rejection
from tests.core.driver import spec
from tests.core.gpus import GpuWorld, gib, node


def notes(world: GpuWorld) -> list[FootprintMeasured]:
    return [c for _, c in world.log if isinstance(c, FootprintMeasured)]


def shared(*sizes: tuple[str, float, float]) -> list[object]:
    return [spec(name, gib=size, load=load, shares=True) for name, size, load in sizes]


@pytest.mark.parametrize("lists", [True, False])
def test_declared_ten_measured_fourteen_is_charged_at_once_and_planned_with_later(lists: bool) -> None:
    world = GpuWorld([*shared(("a", 10, 10), ("b", 68, 10))], devices=node(1))  # type: ignore[misc]
    world.lists = lists
    world.engines["a"].size = 14
    world.request("a", at=0)
    world.run(12)
    (note,) = notes(world)
    assert (note.declared, note.measured, note.differs) == (gib(10), gib(14), True)
    assert (world.gpu(0).reserved_bytes, world.gpu(0).foreign_bytes) == (gib(14), 0)
    assert world.model("a").measured_bytes == gib(14)
    world.request("b", at=200)
    world.run(300)
    assert [name for _, name in world.evictions()] == ["a"]
    world.request("a", at=400)
    world.run(400)
    assert next(i for i in world.core.view().instances if i.model == "a").bytes_per_gpu == gib(14)


def test_what_takes_less_than_declared_leaves_the_rest_to_others() -> None:
    world = GpuWorld([*shared(("a", 60, 10), ("b", 40, 10))], devices=node(1))  # type: ignore[misc]
    world.engines["a"].size = 30
    world.request("a", at=0)
    b = world.request("b", at=100)
    world.run(200)
    assert b.granted
    assert world.of(Evicted) == []


def test_a_tenth_more_or_less_is_no_difference() -> None:
    world = GpuWorld([spec("a", gib=40, load=10), spec("b", gib=40, load=10)], devices=node(2))
    world.engines["a"].size, world.engines["b"].size = 44, 35.9
    world.request("a", at=0)
    world.request("b", at=0)
    world.run(60)
    assert {(note.model, note.differs) for note in notes(world)} == {("a", False), ("b", True)}


def test_the_largest_share_among_its_gpus_counts() -> None:
    world = GpuWorld([spec("a", 2, gib=40, load=10)], devices=node(2))
    world.lists = False
    world.request("a", at=0)
    world.others_take(1, 2, at=5)
    world.run(60)
    assert notes(world)[0].measured == gib(42)


def test_figures_of_its_processes_tell_it_from_others_that_came_meanwhile() -> None:
    world = GpuWorld([spec("a", gib=40, load=10)], devices=node(1))
    world.request("a", at=0)
    world.others_take(0, 10, at=5)
    world.run(60)
    assert notes(world)[0].measured == gib(40)
    assert world.gpu(0).foreign_bytes == gib(10)


def test_figures_of_half_of_what_is_configured_are_believed_however_much_others_took_meanwhile() -> None:
    world = GpuWorld([spec("a", gib=20, load=10)], devices=node(1))
    world.told = 0.5
    world.request("a", at=0)
    world.others_take(0, 58, at=5)
    world.run(60)
    assert notes(world)[0].measured == gib(10)
    assert world.gpu(0).foreign_bytes == gib(68)


def test_managed_memory_that_the_process_list_leaves_out_is_measured_on_the_gpu() -> None:
    world = GpuWorld([spec("a", gib=40, load=10)], devices=node(1))
    world.told = 0.1
    world.request("a", at=0)
    world.run(60)
    assert notes(world)[0].measured == gib(40)
    assert world.gpu(0).foreign_bytes == 0


def test_while_a_neighbour_comes_or_goes_nothing_is_measured_and_later_it_is() -> None:
    models = shared(("a", 20, 10), ("b", 20, 30))
    world = GpuWorld([*models, spec("c", gib=20, load=10, shares=True)], devices=node(1))  # type: ignore[misc]
    world.lists = False
    world.engines["a"].size = 25
    world.answers_readings = False
    world.request("a", at=0)
    world.read(0.5)
    world.run(11)
    node_ = world.core._node
    assert node_.instances[next(iter(node_.instances))].unmeasured
    world.request("b", at=12)
    world.fact(ev.InstanceExited, "a", at=12.5, status=1)
    world.run(13)
    assert notes(world) == []


def test_a_neighbour_that_loads_makes_it_untellable_until_it_is_ready() -> None:
    world = GpuWorld([*shared(("a", 20, 10), ("b", 20, 30))], devices=node(1))  # type: ignore[misc]
    world.lists = False
    world.engines["a"].size = 24
    world.request("a", at=0)
    world.run(9)
    world.unreadable = {0}
    world.run(11)
    instance = next(iter(world.core._node.instances.values()))
    assert instance.unmeasured
    world.unreadable = set()
    world.engines["b"].size = 20
    world.request("b", at=11.5)
    world.run(12)
    assert [(n.model, n.measured) for n in notes(world)] == [("a", gib(24))]
    world.run(60)
    assert [(n.model, n.measured) for n in notes(world)] == [("a", gib(24)), ("b", gib(20))]


@pytest.mark.parametrize("size", [0, 0.03])
def test_figures_that_make_no_sense_are_passed_over(size: float) -> None:
    world = GpuWorld([spec("a", gib=40, load=10)], devices=node(1))
    world.engines["a"].size = size
    world.request("a", at=0)
    world.run(60)
    assert notes(world) == []
    assert world.gpu(0).reserved_bytes == gib(40)
    story = world.core._node.instances[world.instance("a")].story.lines()
    assert any("makes no sense" in line for _, line in story)


def test_a_figure_beyond_the_gpu_makes_no_sense() -> None:
    world = GpuWorld([spec("a", gib=40, load=10)], devices=node(1))
    world.told = 3.0
    world.request("a", at=0)
    world.run(60)
    assert notes(world) == []


def test_footprints_of_earlier_runs_are_planned_with_from_the_start() -> None:
    world = GpuWorld([spec("a", gib=40, load=10), spec("b", gib=40, load=10)], devices=node(1))
    known = {ModelName("a"): gib(70), ModelName("b"): gib(0.001), ModelName("gone"): gib(5)}
    world.plan(0, lambda: ev.FootprintsKnown(world.now, known))
    world.request("a", at=1)
    world.run(2)
    assert world.gpu(0).reserved_bytes == gib(70)
    assert (world.model("a").measured_bytes, world.model("b").measured_bytes) == (gib(70), None)
    world.run(60)
    assert (notes(world)[0].declared, notes(world)[0].measured) == (gib(40), gib(40))
    world.plan(61, lambda: ev.FootprintsKnown(world.now, {ModelName("a"): gib(9)}))
    world.run(62)
    assert world.model("a").measured_bytes == gib(40)


def test_a_footprint_of_an_earlier_run_that_fits_no_more_refuses_whoever_waits() -> None:
    world = GpuWorld([spec("a", gib=40, load=10), spec("b", gib=10, load=10)], devices=node(1))
    world.request("b", at=0, service=100)
    a = world.request("a", at=20)
    world.plan(21, lambda: ev.FootprintsKnown(world.now, {ModelName("a"): gib(90)}))
    world.run(22)
    assert a.rejected is not None
    assert a.rejected[1].reason is Rejection.NO_CAPACITY
    wants = "a needs 1 GPU with 90 GiB each (as measured; configured are 40 GiB)"
    assert a.rejected[1].detail == f"{wants}; this node can never hold that: the largest GPU for it has 80 GiB"


def test_others_that_left_during_the_load_do_not_spoil_the_measurement_for_good() -> None:
    world = GpuWorld([spec("a", gib=20, load=10)], devices=node(1))
    world.lists = False
    world.others_take(0, 30, at=0)
    world.read(1)
    world.request("a", at=2)
    world.others_take(0, 0, at=5)
    world.run(60)
    assert [note.measured for note in notes(world)] == [gib(20)]
    assert world.gpu(0).foreign_bytes == 0


def test_another_revision_is_planned_as_configured_and_the_same_as_measured() -> None:
    world = GpuWorld([spec("a", gib=40, load=10, revision="1")], devices=node(1))
    world.engines["a"].size = 30
    world.request("a", at=0)
    world.run(20)
    world.reconfigure(spec("a", gib=40, load=10, revision="1", max_queue=9), at=21)
    world.run(22)
    assert world.model("a").measured_bytes == gib(30)
    world.reconfigure(spec("a", gib=40, load=10, revision="2"), at=23)
    world.run(23)
    assert world.model("a").measured_bytes is None


def test_what_an_outdated_instance_takes_says_nothing_of_the_new_revision() -> None:
    world = GpuWorld([spec("a", gib=40, load=10, revision="1")], devices=node(1))
    world.engines["a"].size = 30
    world.answers_readings = False
    world.request("a", at=0, service=30)
    world.read(0.5)
    world.run(11)
    world.reconfigure(spec("a", gib=40, load=10, revision="2"), at=12)
    world.read(13)
    world.run(14)
    assert [(n.revision, n.measured) for n in notes(world)] == [("1", gib(30))]
    assert world.model("a").measured_bytes is None


def test_nothing_is_measured_on_a_gpu_that_was_lost() -> None:
    from swapd.core.topology import GpuHealth

    world = GpuWorld([spec("a", gib=40, load=10)], devices=node(1))
    world.unreadable = set()
    world.request("a", at=0, service=60)
    world.at(9, lambda: world.unreadable.add(0))
    world.turn(0, GpuHealth.FAILED, at=12)
    world.read(13)
    world.run(14)
    assert notes(world) == []


def mistaken(gpus: int = 1, **more: float) -> GpuWorld:
    """Return a node without process list on which a takes 20 GiB and was measured with 58 GiB of others on GPU 0."""
    models = [spec("a", gpus, gib=20, load=10, shares=True), spec("b", gib=20, load=10, shares=True)]
    world = GpuWorld(models, devices=node(gpus))
    world.lists = False
    world.engines["a"].size = more.get("size", 20)
    world.request("a", at=0)
    world.others_take(0, 58, at=5)
    world.run(20)
    return world


@pytest.mark.parametrize(("size", "left", "measured"), [(20, 0, 20), (12, 0, 20), (22, 3, 25), (20, 10, 30)])
def test_what_was_taken_for_the_models_is_corrected_once_its_gpu_shows_less(
    size: float, left: float, measured: float
) -> None:
    world = mistaken(size=size)
    assert world.gpu(0).reserved_bytes == gib(size + 58)
    world.others_take(0, left, at=30)
    world.read(31)
    world.read(32)
    world.run(33)
    first, second = notes(world)
    assert (first.measured, second.measured) == (gib(size + 58), gib(measured))
    assert (second.declared, second.differs) == (gib(20), measured > 22)
    assert (world.gpu(0).reserved_bytes, world.model("a").measured_bytes) == (gib(measured), gib(measured))
    assert world.gpu(0).foreign_bytes == 0


def test_a_little_less_than_was_measured_corrects_nothing() -> None:
    world = mistaken()
    world.others_take(0, 56.5, at=30)
    world.read(31)
    world.run(33)
    assert [note.measured for note in notes(world)] == [gib(78)]


def test_every_gpu_of_the_model_has_to_show_less() -> None:
    world = mistaken(2)
    world.others_take(1, 58, at=21)
    world.others_take(0, 0, at=30)
    world.read(31)
    world.run(33)
    assert len(notes(world)) == 1
    world.others_take(1, 0, at=40)
    world.at(40, lambda: world.unreadable.add(1))
    world.read(41)
    world.run(42)
    assert len(notes(world)) == 1
    world.at(43, world.unreadable.clear)
    world.read(44)
    world.run(45)
    assert [note.measured for note in notes(world)] == [gib(78), gib(20)]


def test_nothing_is_corrected_while_a_neighbour_is_there() -> None:
    world = mistaken(size=2)
    world.others_take(0, 0, at=30)
    world.request("b", at=31)
    world.run(60)
    assert [(note.model, note.measured) for note in notes(world)] == [("a", gib(60))]
    assert world.model("b").instance is not None
    world.order(ev.UnloadOrdered, 100, model=ModelName("b"))
    world.run(110)
    world.read(111)
    world.run(112)
    assert [(note.model, note.measured) for note in notes(world)][1:] == [("a", gib(20))]
