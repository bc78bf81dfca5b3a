"""How instances leave: grace, hooks, kills, release, leaks."""

import pytest

from swapd.core import events as ev
from swapd.core.commands import Evicted, Kill, Start, Stop
from swapd.core.ids import ModelName, seconds
from swapd.core.reasons import Rejection, UnloadCause
from tests.core.driver import World, spec


def kills(world: World) -> list[float]:
    return [at for at, c in world.log if isinstance(c, Kill)]


WAYS = ["eviction", "idle limit", "operator", "reload", "removal", "node drain"]


def leaving(world: World, way: str) -> None:
    """Have a leave at 100."""
    match way:
        case "eviction":
            world.request("b", at=85)
        case "idle limit":
            world.reconfigure(at=80, idle_unload=seconds(90))
        case "operator":
            world.order(ev.UnloadOrdered, 100, model=ModelName("a"))
        case "reload":
            world.reconfigure(spec("a", load=10, stop_grace=seconds(60), revision="2"), at=100)
        case "removal":
            world.reconfigure(remove=["a"], at=100)
        case "node drain":
            world.order(ev.NodeDrainOrdered, 100, timeout=None)


@pytest.mark.parametrize("way", WAYS)
def test_an_engine_that_needs_most_of_its_grace_is_killed_on_no_path(way: str) -> None:
    world = World([spec("a", load=10, stop_grace=seconds(60)), spec("b", load=10)], gpus=1)
    world.engines["a"].unload = 40
    world.request("a", at=0)
    leaving(world, way)
    world.run(160)
    assert len(world.of(Stop)) == 1
    assert kills(world) == []


@pytest.mark.parametrize("way", WAYS)
def test_an_engine_that_ignores_the_signal_is_killed_once_when_its_grace_has_passed(way: str) -> None:
    world = World([spec("a", load=10, stop_grace=seconds(60)), spec("b", load=10)], gpus=1)
    world.engines["a"].ignores_stop = True
    world.request("a", at=0)
    leaving(world, way)
    world.run(100)
    stopped = next(at for at, c in world.log if isinstance(c, Stop))
    world.run(500)
    assert kills(world) == [stopped + 60]


def test_the_load_that_follows_a_kill_succeeds() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, protect=seconds(0))
    world.engines["a"].ignores_stop = True
    world.request("a", at=0)
    b = world.request("b", at=100)
    world.run(300)
    assert b.waited == 10 + 3 + 10


def test_no_grace_counts_while_the_stop_hook_runs() -> None:
    world = World([spec("a", load=10, has_stop_command=True, stop_grace=seconds(5))])
    world.engines["a"].hook = 30
    world.engines["a"].ignores_stop = True
    world.request("a", at=0)
    world.order(ev.UnloadOrdered, 50, model=ModelName("a"))
    world.run(300)
    assert kills(world) == [50 + 30 + 5]


def test_a_stop_hook_that_never_ends_is_bounded() -> None:
    world = World([spec("a", load=10, has_stop_command=True, stop_grace=seconds(5))])
    world.engines["a"].hook = 140
    world.engines["a"].unload = 100
    world.request("a", at=0)
    world.order(ev.UnloadOrdered, 50, model=ModelName("a"))
    world.run(1000)
    assert kills(world) == [50 + 120 + 5]


def test_a_victim_that_dies_by_itself_just_before_its_stop_is_cleaned_up_once() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, protect=seconds(100))
    world.request("a", at=0)
    b = world.request("b", at=60)
    world.fact(ev.InstanceExited, "a", 74.9, status=-9)
    world.run(200)
    assert [c.cause for c in world.of(Stop)] == [UnloadCause.EXITED]
    assert kills(world) == []
    assert b.granted[0][0] == 74.9 + 3 + 10


def test_an_exit_reported_after_the_order_to_stop_changes_nothing() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, protect=seconds(0))
    world.request("a", at=0)
    b = world.request("b", at=50)
    world.run(50)
    number = next(i.instance for i in world.core.view().instances if i.model == "a")
    world.plan(51, lambda: ev.InstanceExited(world.now, number, 0))
    world.run(200)
    assert len(world.of(Stop)) == 1
    assert b.waited == 13
    assert world.core.view().stale_facts == 1


def test_no_load_starts_on_a_device_before_its_memory_is_confirmed_free() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, protect=seconds(0))
    world.engines["a"].release = 12
    world.request("a", at=0)
    b = world.request("b", at=50)
    world.run(200)
    assert [at for at, c in world.log if isinstance(c, Start)] == [0, 50 + 3 + 12]
    assert b.waited == 25


def test_memory_that_is_never_released_is_quarantined_and_gets_no_placement() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=2, protect=seconds(0))
    world.engines["a"].release = None
    world.request("a", at=0)
    order = world.order(ev.UnloadOrdered, 50, model=ModelName("a"))
    world.run(83)
    view = world.core.view()
    assert [(g.reserved_bytes >> 30, g.quarantined_bytes >> 30) for g in view.gpus] == [(1, 1), (0, 0)]
    assert (world.answers[order][0], world.answers[order][1].ok) == (83, False)
    world.request("b", at=100)
    world.run(200)
    assert [int(c.gpus) for c in world.of(Start)] == [0b01, 0b10]


def test_late_confirmation_frees_leaked_memory() -> None:
    world = World([spec("a", load=10)], gpus=1, release_timeout=seconds(30))
    world.engines["a"].release = 100
    world.request("a", at=0)
    world.order(ev.UnloadOrdered, 50, model=ModelName("a"))
    refused = world.request("a", at=120)
    served = world.request("a", at=200)
    world.run(400)
    assert refused.rejected is not None
    assert (refused.rejected[1].reason, refused.rejected[1].permanent) == (Rejection.NO_CAPACITY, False)
    assert "never released" in refused.rejected[1].detail
    assert served.waited == 10


def test_processes_that_survive_the_kill_are_given_up_after_the_release_deadline() -> None:
    world = World([spec("a", load=10)], gpus=1)
    world.engines["a"].ignores_stop = True
    world.engines["a"].unload = 10_000
    world.request("a", at=0)
    world.order(ev.UnloadOrdered, 50, model=ModelName("a"))
    world.run(500)
    assert kills(world) == [60]
    assert [str(i.state) for i in world.core.view().instances] == ["leaked"]


def test_a_newcomer_whose_promised_room_leaks_looks_for_another_one() -> None:
    world = World([spec("a", load=10), spec("b", load=20), spec("x", load=10)], gpus=2, protect=seconds(0))
    world.engines["a"].release = None
    world.request("a", at=0)
    world.request("b", at=0)
    x = world.request("x", at=50)
    world.run(200)
    assert [(at, name) for at, name in world.evictions()] == [(50, "a"), (83, "b")]
    assert x.granted[0][0] == 83 + 3 + 10


def test_a_newcomer_that_shares_stays_beside_leaked_memory_if_it_still_fits() -> None:
    models = [spec(name, gib=2, load=10, shares=True) for name in "ax"]
    world = World(models, gpus=1, gib=5, idle_unload=seconds(40))
    world.engines["a"].release = None
    world.request("a", at=0)
    x = world.request("x", at=51)
    world.run(95)
    assert x.granted[0][0] == 50 + 3 + 30 + 10
    assert {str(i.model): str(i.state) for i in world.core.view().instances} == {"a": "leaked", "x": "ready"}


def test_a_newcomer_that_shares_and_no_longer_fits_beside_leaked_memory_is_told_so() -> None:
    world = World([spec(name, gib=2, load=10, shares=True) for name in "ax"], gpus=1, gib=3, protect=seconds(0))
    world.engines["a"].release = None
    world.request("a", at=0)
    x = world.request("x", at=50)
    world.run(100)
    assert x.rejected is not None
    assert (x.rejected[0], x.rejected[1].reason) == (83, Rejection.NO_CAPACITY)


def test_waiters_for_whom_a_leak_leaves_no_room_are_told_at_once() -> None:
    world = World([spec("a", load=10), spec("x", load=10)], gpus=1, protect=seconds(0))
    world.engines["a"].release = None
    world.request("a", at=0)
    x = world.request("x", at=50)
    world.run(200)
    assert x.rejected is not None
    assert (x.rejected[0], x.rejected[1].reason) == (83, Rejection.NO_CAPACITY)


def test_every_departure_but_a_shutdown_is_told_with_its_cause() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, protect=seconds(0))
    world.request("a", at=0)
    world.request("b", at=50)
    world.order(ev.UnloadOrdered, 100, model=ModelName("b"))
    world.request("a", at=150)
    world.order(ev.NodeDrainOrdered, 200, timeout=None)
    world.run(300)
    told = [(c.model, c.cause, c.successor) for c in world.of(Evicted)]
    assert told == [("a", UnloadCause.EVICTED, "b"), ("b", UnloadCause.OPERATOR, None)]
