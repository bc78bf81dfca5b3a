"""Single readings, word by word: what each one proves about releases, measurements and starts, and what it does not."""

from collections.abc import Iterable

from swapd.core import events as ev
from swapd.core.catalog import ModelSpec
from swapd.core.gate import is_shown_free
from swapd.core.ids import InstanceId, Instant, ModelName, seconds
from tests.core.driver import spec
from tests.core.gpus import GpuWorld, gib, node


def quiet(models: Iterable[ModelSpec], **settings: object) -> GpuWorld:
    """Return one GPU whose driver says nothing but what the test makes it say."""
    world = GpuWorld(
        models, devices=node(1, **{k: v for k, v in settings.items() if k == "lingers"}), release_timeout=seconds(10)
    )
    world.answers_readings = False
    for engine in world.engines.values():
        engine.lag = None
    return world


def say(
    world: GpuWorld, at: float, free: float, told: dict[int, float] | None = None, *, taken: float | None = None
) -> None:
    """Have the driver say how much is free, and what it lists: GiB by instance."""
    listed = None if told is None else {InstanceId(number): gib(size) for number, size in told.items()}
    began = Instant(seconds(at if taken is None else taken))
    world.plan(at, lambda: ev.GpuMemoryRead(world.now, began, (ev.GpuMemory(0, gib(80), gib(free), listed),)))


def states(world: GpuWorld) -> dict[str, str]:
    return {str(i.model): str(i.state) for i in world.core.view().instances}


def two(**settings: object) -> GpuWorld:
    """Return a and b, 30 GiB each, ready side by side from 40 s on."""
    world = quiet([spec(name, gib=30, load=10, shares=True) for name in "ab"], **settings)
    world.request("a", at=0)
    say(world, 0.1, 80)
    say(world, 11, 50)
    world.request("b", at=20)
    say(world, 20.1, 50)
    say(world, 31, 20)
    world.run(40)
    assert states(world) == {"a": "ready", "b": "ready"}
    return world


def unload(world: GpuWorld, model: str, at: float) -> None:
    world.order(ev.UnloadOrdered, at, model=ModelName(model))


def test_enough_free_memory_does_not_release_whom_the_list_still_shows() -> None:
    world = two()
    world.engines["b"].release = 100
    for name in "ab":
        unload(world, name, 50)
    say(world, 54, 50, {1: 30})
    world.run(55)
    assert states(world) == {"a": "unloading", "b": "unloading"}
    say(world, 56, 80, {})
    world.run(57)
    assert states(world) == {"b": "unloading"}


def test_who_has_left_the_list_does_not_account_for_memory_that_is_missing() -> None:
    world = two()
    world.engines["b"].release = 100
    say(world, 41, 20, {2: 30})
    for name in "ab":
        unload(world, name, 50)
    say(world, 54, 50, {})
    world.run(55)
    assert states(world) == {"a": "unloading", "b": "unloading"}


def test_a_reading_begun_before_the_processes_ended_releases_nobody() -> None:
    world = two()
    unload(world, "a", 50)
    say(world, 54, 50, taken=52.9)
    world.run(55)
    assert states(world) == {"a": "unloading", "b": "ready"}
    say(world, 56, 50)
    world.run(57)
    assert states(world) == {"b": "ready"}


def leaked(missing: float) -> GpuWorld:
    """Return a leaked with so much missing, and b, 20 GiB, that has begun to load at 70 s; it is ready at 80 s."""
    world = quiet([spec("a", gib=30, load=10, shares=True), spec("b", gib=20, load=10, shares=True)])
    world.request("a", at=0)
    say(world, 0.1, 80)
    say(world, 11, 50)
    unload(world, "a", 50)
    say(world, 60, 80 - missing)
    world.request("b", at=69)
    say(world, 70, 80 - missing)
    world.run(71)
    assert states(world) == {"a": "leaked", "b": "loading"}
    return world


def test_a_neighbour_that_has_just_begun_to_load_accounts_for_nothing() -> None:
    world = leaked(20)
    say(world, 72, 59)
    world.run(73)
    assert states(world) == {"a": "leaked", "b": "loading"}


def test_a_neighbour_that_was_loading_when_a_reading_began_accounts_for_nothing_in_it() -> None:
    world = leaked(20)
    say(world, 81, 59, taken=72)
    world.run(82)
    assert states(world) == {"a": "leaked", "b": "ready"}


def test_what_the_list_says_of_a_loading_neighbour_accounts_for_so_much() -> None:
    world = leaked(20)
    say(world, 72, 65, {2: 15})
    world.run(73)
    assert states(world) == {"b": "loading"}


def test_a_leak_is_not_charged_more_for_what_a_neighbour_loads() -> None:
    world = leaked(10)
    assert world.gpu(0).quarantined_bytes == gib(10)
    say(world, 72, 55)
    world.run(73)
    assert world.gpu(0).quarantined_bytes == gib(10)


def test_a_reading_begun_before_a_model_was_ready_does_not_measure_it() -> None:
    world = quiet([spec("a", gib=30, load=10)])
    world.request("a", at=0)
    say(world, 0.1, 80)
    say(world, 12, 65, taken=5)
    world.run(13)
    assert world.model("a").measured_bytes is None
    say(world, 14, 50)
    world.run(15)
    assert world.model("a").measured_bytes == gib(30)


def test_where_the_accounts_were_trusted_an_old_reading_shows_no_others() -> None:
    world = quiet([spec("a", gib=30, load=10)], lingers=True)
    world.request("a", at=0)
    say(world, 0.1, 80)
    say(world, 11, 50)
    unload(world, "a", 50)
    world.run(70)
    assert states(world) == {}
    say(world, 71, 50, taken=40)
    world.run(72)
    assert world.gpu(0).foreign_bytes == 0
    say(world, 73, 45)
    world.run(74)
    assert world.gpu(0).foreign_bytes == gib(5)


def test_free_memory_that_is_promised_to_others_lets_no_load_begin() -> None:
    world = leaked(10)
    core = world.core._node
    gpu, instance = core.gpus[0], core.instances[InstanceId(2)]
    del gpu.instances[instance.id]
    gpu.taken, gpu.free_bytes = core.at, gib(80)
    gpu.foreign_bytes = gib(50)
    assert is_shown_free(gpu, instance)
    gpu.foreign_bytes = gib(51)
    assert not is_shown_free(gpu, instance)
