"""A new configuration is applied as a difference."""

from swapd.core import events as ev
from swapd.core.catalog import Mode, PolicyName
from swapd.core.commands import Start, Stop
from swapd.core.ids import InstanceId, ModelName, RequestId, seconds
from swapd.core.reasons import Rejection, UnloadCause
from tests.core.driver import World, spec


def test_an_unchanged_model_keeps_its_instance_and_its_requests() -> None:
    world = World([spec("a", load=10)])
    running = world.request("a", at=0, service=30)
    world.reconfigure(spec("b"), at=20)
    world.run(100)
    assert (running.ended, running.cut, world.loads()) == (True, None, 1)
    assert world.evictions() == []


def test_many_changes_in_a_row_leave_one_instance_per_model() -> None:
    world = World([spec("a", load=10), spec("b", load=10)])
    world.request("a", at=0)
    world.request("b", at=0)
    for number in range(20):
        world.reconfigure(spec("a", load=10, revision=str(number)), at=20 + number / 20)
    world.run(100)
    assert world.residents() == ["a", "b"]
    assert world.loads("b") == 1
    assert world.core._node.models["a"].instance.spec.revision == "19"


def test_a_removed_model_refuses_its_waiters_and_drains() -> None:
    world = World([spec("a", load=10, concurrency=1)])
    running = world.request("a", at=0, service=30)
    waits = world.request("a", at=15)
    world.reconfigure(remove=["a"], at=20)
    late = world.request("a", at=21)
    world.run(41)
    assert [a.rejected[1].reason if a.rejected else None for a in (waits, late)] == [Rejection.UNKNOWN_MODEL] * 2
    assert not world.model("a").configured
    world.run(100)
    assert running.cut is None
    assert world.evictions() == [(40, "a")]
    assert world.core.view().models == ()


def test_a_removed_model_that_loads_or_is_about_to_is_given_up() -> None:
    world = World([spec("a", load=10), spec("b", load=10), spec("c", load=10)], gpus=2, protect=seconds(0))
    world.engines["a"].unload = 60
    world.request("a", at=0)
    world.request("b", at=0)
    world.request("b", at=50, service=100)
    world.request("c", at=50)
    world.run(55)
    world.reconfigure(remove=["c"], at=60)
    world.reconfigure(spec("d", load=50), at=70)
    world.request("d", at=111)
    world.reconfigure(remove=["d"], at=120)
    world.run(300)
    assert (world.loads("c"), world.loads("d")) == (0, 1)
    assert [c.cause for c in world.of(Stop, "d")] == [UnloadCause.REMOVED]


def test_a_model_that_was_never_loaded_can_be_removed_and_comes_back_new() -> None:
    world = World([spec("a"), spec("b", load=10)])
    world.reconfigure(remove=["b"], at=5)
    world.reconfigure(spec("b", load=10), at=6)
    b = world.request("b", at=7)
    world.run(60)
    assert b.waited == 10


def test_a_model_removed_and_put_back_while_it_drains_goes_on_serving() -> None:
    world = World([spec("a", load=10)])
    world.request("a", at=0, service=50)
    world.reconfigure(remove=["a"], at=20)
    world.reconfigure(spec("a", load=10), at=30)
    back = world.request("a", at=40)
    world.run(200)
    assert (back.waited, world.loads()) == (0, 1)


def test_a_change_taken_back_while_the_model_drains_for_it_costs_nothing() -> None:
    world = World([spec("a", load=10, concurrency=1)], drain_after=seconds(20))
    world.request("a", at=0, service=100)
    world.reconfigure(spec("a", load=10, concurrency=1, revision="2"), at=20)
    waits = world.request("a", at=50, service=1)
    world.reconfigure(spec("a", load=10, concurrency=1), at=60)
    world.run(300)
    assert (waits.granted[0][0], world.loads()) == (110, 1)


def test_a_changed_model_that_is_put_back_while_it_drains_still_outdated_drains_on() -> None:
    world = World([spec("a", load=10)], gpus=1, drain_after=seconds(20))
    world.request("a", at=0, service=100)
    world.reconfigure(spec("a", load=10, revision="2"), at=20)
    world.reconfigure(spec("a", load=10, revision="3"), at=60)
    world.run(300)
    assert [c.spec.revision for c in world.of(Start)] == ["", "3"]


def test_an_outdated_model_leaves_only_when_no_neighbour_loads() -> None:
    models = [spec(n, load=30, gib=2, shares=True) for n in "ab"]
    world = World(models, gpus=1)
    world.request("a", at=0)
    world.request("b", at=40)
    world.reconfigure(spec("a", load=30, gib=2, shares=True, revision="2"), at=50)
    world.run(200)
    assert [at for at, c in world.log if isinstance(c, Stop)] == [70]
    assert world.residents() == ["a", "b"]


def test_a_changed_model_reloads_when_idle_without_anybody_asking() -> None:
    world = World([spec("a", load=10)])
    world.request("a", at=0, service=40)
    world.reconfigure(spec("a", load=10, revision="2"), at=20)
    world.run(40)
    assert world.model("a").instance is not None
    assert world.model("a").instance.outdated
    world.run(100)
    assert [at for at, c in world.log if isinstance(c, Start)] == [0, 50]
    assert [c.cause for c in world.of(Stop)] == [UnloadCause.CHANGED]
    assert world.residents() == ["a"]


def test_a_changed_model_comes_back_only_if_its_room_is_free() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1)
    world.request("a", at=0, service=40)
    b = world.request("b", at=30)
    world.reconfigure(spec("a", load=10, revision="2"), at=20)
    world.run(300)
    assert b.waited == 20 + 3 + 10
    assert world.loads("a") == 1
    assert world.core._node.wishes == {}


def test_new_settings_take_over_within_a_bounded_wait_under_steady_traffic() -> None:
    world = World([spec("a", load=10, concurrency=50)])
    for tenth in range(3000):
        world.request("a", at=10 + tenth / 10, service=1.5)
    world.reconfigure(spec("a", load=10, concurrency=50, revision="2"), at=50)
    world.run(500)
    starts = [at for at, c in world.log if isinstance(c, Start)]
    assert len(starts) == 2
    assert starts[1] < 50 + 120 + 2 + 3.1
    assert all(a.granted for a in world.asked.values())


def test_a_change_that_is_taken_back_before_the_reload_costs_nothing() -> None:
    world = World([spec("a", load=10)])
    world.request("a", at=0, service=100)
    world.reconfigure(spec("a", load=10, revision="2"), at=20)
    world.reconfigure(spec("a", load=10), at=30)
    world.run(300)
    assert world.loads() == 1


def test_a_load_under_way_with_the_old_configuration_is_broken_off_and_begun_anew() -> None:
    world = World([spec("a", load=40)], gpus=1)
    a = world.request("a", at=0)
    world.reconfigure(spec("a", load=40, revision="2"), at=10)
    world.run(100)
    assert a.granted[0][0] == 10 + 3 + 40
    assert [c.spec.revision for c in world.of(Start)] == ["", "2"]


def test_a_room_reserved_for_the_old_configuration_is_booked_anew() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, protect=seconds(0))
    world.request("a", at=0)
    b = world.request("b", at=50)
    world.reconfigure(spec("b", load=10, gib=2, revision="2"), at=51)
    world.run(100)
    assert b.waited == 13
    assert [c.spec.revision for c in world.of(Start)] == ["", "2"]


def test_limits_count_at_once() -> None:
    world = World([spec("a", load=10, concurrency=1)])
    world.request("a", at=0, service=100)
    waiters = [world.request("a", at=20 + n, service=100) for n in range(6)]
    world.reconfigure(spec("a", load=10, concurrency=3), at=30)
    world.run(30)
    assert [bool(w.granted) for w in waiters] == [True, True, False, False, False, False]
    world.reconfigure(spec("a", load=10, concurrency=3, max_queue=2), at=40)
    world.run(40)
    assert [w.rejected[1].reason if w.rejected else None for w in waiters[4:]] == [Rejection.QUEUE_FULL] * 2
    world.reconfigure(spec("a", load=10, concurrency=1, max_queue=2, max_wait=seconds(30)), at=50)
    world.run(55)
    assert [w.rejected[0] if w.rejected else None for w in waiters[2:4]] == [52, 53]


def test_rules_count_from_the_next_decision_on() -> None:
    models = [spec("a", load=10), spec("b", load=10), spec("x", load=10)]
    world = World(models, gpus=2)
    for at in range(0, 90, 10):
        world.request("a", at=at)
    world.request("b", at=99)
    world.reconfigure(at=150, policy=PolicyName.LRU, protect=seconds(0))
    world.request("x", at=200)
    world.run(300)
    assert world.evictions() == [(200, "a")]


def test_pins_may_come_and_go_with_the_configuration() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1)
    world.reconfigure(spec("a", load=10, pinned=True), at=5)
    world.run(50)
    assert world.residents() == ["a"]
    b = world.request("b", at=50)
    world.reconfigure(spec("a", load=10), at=60)
    again = world.request("b", at=61)
    world.run(200)
    assert b.rejected is not None
    assert b.rejected[1].reason is Rejection.ALL_PINNED
    assert again.waited == 13


def test_a_changed_estimate_counts_until_a_load_was_measured() -> None:
    world = World([spec("a", load=10)])
    world.reconfigure(spec("a", load=25), at=1)
    world.run(2)
    assert world.model("a").load_estimate == seconds(25)


def test_a_pending_model_may_change_its_footprint() -> None:
    world = World([spec("a", load=10), spec("b", 2, load=10)], gpus=2)
    world.request("a", at=0, service=100)
    b = world.request("b", at=20)
    world.reconfigure(spec("b", 1, load=10, revision="2"), at=30)
    world.run(100)
    assert b.granted[0][0] == 40
    assert world.core._node.needs == {}


def test_a_request_on_an_engine_whose_model_was_removed_is_not_tried_again() -> None:
    world = World([spec("a", load=10)])
    asked = world.request("a", at=0, service=None)
    world.reconfigure(remove=["a"], at=20)
    world.plan(25, lambda: ev.UpstreamFailed(world.now, RequestId(asked.number), InstanceId(1)))
    world.run(100)
    assert asked.rejected is not None
    assert asked.rejected[1].reason is Rejection.UPSTREAM_FAILED
    assert ModelName("a") not in world.core._node.models


def test_a_change_is_an_operators_word_and_reloads_in_manual_mode_too() -> None:
    models = [spec("a", load=10, concurrency=2), spec("p", load=10, pinned=True)]
    world = World(models, gpus=2, mode=Mode.MANUAL, drain_after=seconds(20))
    for name in "ap":
        world.order(ev.LoadOrdered, 0, model=ModelName(name))
    world.request("a", at=30, service=100)
    world.reconfigure(
        spec("a", load=10, concurrency=2, revision="2"), spec("p", load=10, pinned=True, revision="2"), at=50
    )
    waits = world.request("a", at=100)
    world.run(300)
    assert waits.granted[0][0] == 130 + 3 + 10
    assert world.residents() == ["a", "p"]
    assert (world.loads("a"), world.loads("p")) == (2, 2)


def test_in_manual_mode_a_changed_model_whose_room_is_lost_refuses_those_who_hoped_for_it() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, mode=Mode.MANUAL, drain_after=seconds(20))
    world.order(ev.LoadOrdered, 0, model=ModelName("a"))
    world.request("a", at=30, service=100)
    world.reconfigure(spec("a", load=10, revision="2"), at=50)
    hopes = world.request("a", at=100)
    world.order(ev.LoadOrdered, 110, model=ModelName("b"))
    world.run(300)
    assert hopes.rejected is not None
    assert hopes.rejected[1].reason is Rejection.MANUAL_MODE
    assert world.residents() == ["b"]
