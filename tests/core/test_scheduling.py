"""Who is resident when: protection, fairness, races, pins, idle limits, the mode."""

import random

import pytest

from swapd.core import events as ev
from swapd.core.catalog import Mode, PolicyName, Priority
from swapd.core.commands import Answer, Grant, Kill, LoadFinished, Reject, Start, Stop
from swapd.core.ids import Duration, Instant, ModelName, RequestId, seconds
from swapd.core.policies import Resident
from swapd.core.reasons import LoadFailure, LoadResult, Outcome, Rejection
from swapd.core.scheduler import Scheduler
from tests.core.driver import World, catalog, spec, topology


def test_once_a_newcomer_has_aged_new_requests_stop_passing_it() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1)
    for at in range(0, 400, 4):
        world.request("a", at=at, service=5)
    b = world.request("b", at=50)
    world.run(1500)
    assert b.waited <= 120 + 5 + 3 + 10
    late = [asked for asked in world.asked.values() if asked.model == "a" and asked.arrived > 180]
    assert min(asked.granted[0][0] for asked in late) > b.granted[0][0]
    assert all(asked.granted for asked in world.asked.values())


def test_the_only_possible_victim_is_spared_for_the_newcomers_bounded_wait_and_no_longer() -> None:
    world = World([spec("a"), spec("b")], gpus=1)
    world.request("a", at=0)
    b = world.request("b", at=61)
    world.run(75)
    assert world.residents() == ["a"]
    world.run(200)
    assert b.waited == 15 + 3 + 60


def test_with_never_as_patience_protection_is_absolute_and_busy_models_starve_the_newcomer() -> None:
    world = World([spec("a"), spec("b", max_wait=seconds(300))], gpus=1, protect_max_wait=None)
    for at in range(0, 600, 20):
        world.request("a", at=at, service=5)
    b = world.request("b", at=100)
    world.run(590)
    assert b.rejected is not None
    assert (b.rejected[0], b.rejected[1].reason) == (400, Rejection.WAIT_TIMEOUT)
    assert world.evictions() == []


def test_a_burst_of_interleaved_requests_for_three_exclusive_models_needs_three_loads() -> None:
    world = World([spec(name, load=10) for name in "abc"], gpus=1)
    for place, name in enumerate("abcabcabc"):
        world.request(name, at=place * 0.001, service=1)
    world.run(900)
    assert world.loads() == 3
    assert all(asked.granted for asked in world.asked.values())


def test_an_alternation_twenty_deep_in_the_queue_needs_no_more_than_two_switches() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1)
    for place in range(20):
        world.request("ab"[place % 2], at=0, service=1)
    world.run(900)
    assert world.loads() == 2


def test_three_agents_on_one_node_wait_but_the_node_does_not_spend_its_time_swapping() -> None:
    world = World([spec(f"m{n}", 4, load=20) for n in range(3)], gpus=8, min_residency_load_times=3.0)
    for agent in range(3):
        for step in range(100):
            world.request(f"m{agent}", at=agent + step * 20.0, service=5)
    world.run(2600)
    assert all(asked.granted for asked in world.asked.values())
    assert world.core.view().load_fraction < 0.3


def test_two_models_that_exclude_each_other_and_come_in_the_same_instant_are_both_served_by_one_load_each() -> None:
    world = World([spec("a", 8), spec("b", 8)])
    a, b = world.request("a", at=0, service=1), world.request("b", at=0, service=1)
    world.run(600)
    assert (a.waited, b.waited, world.loads()) == (60, 61 + 3 + 60, 2)


def test_thousands_of_random_switches_leave_nothing_behind() -> None:
    chance = random.Random(3)
    world = World([spec(name, load=1) for name in "abc"], gpus=1, protect=seconds(0))
    for turn in range(1500):
        world.request(chance.choice("abc"), at=turn * 2.0, service=0.5)
    world.run(9000)
    node = world.core._node
    assert all(asked.granted for asked in world.asked.values())
    assert (len(node.requests), len(node.refused), len(node.instances)) == (0, 0, 1)
    assert (len(node.pending), len(node.deadlines), len(node.ages), len(node.limits)) == (0, 0, 0, 0)
    assert not node.needs
    assert len(node.models["a"].story.lines()) <= 16


def test_two_queued_models_that_count_on_the_same_place_both_finish_in_order() -> None:
    world = World([spec(name, load=10) for name in "cab"], gpus=1)
    world.request("c", at=0, service=30)
    a, b = world.request("a", at=11, service=1), world.request("b", at=12, service=1)
    world.run(600)
    assert a.granted[0][0] == 40 + 3 + 10
    assert b.granted[0][0] == 54 + 3 + 10


def test_the_request_a_model_was_loaded_for_is_served_before_it_can_be_evicted() -> None:
    world = World([spec("a", load=30), spec("b", load=10)], gpus=1, protect=seconds(0))
    a, b = world.request("a", at=0, service=7), world.request("b", at=1)
    world.run(200)
    assert (a.waited, len(a.granted)) == (30, 1)
    assert b.granted[0][0] == 37 + 3 + 10


def test_a_model_that_generates_a_long_answer_is_no_candidate() -> None:
    world = World([spec("a", load=10), spec("b", load=10, max_wait=seconds(100))], gpus=1)
    world.request("a", at=0, service=1000)
    b = world.request("b", at=20)
    world.run(900)
    assert b.rejected is not None
    assert b.rejected[1].reason is Rejection.WAIT_TIMEOUT
    assert world.evictions() == []


def test_requests_that_race_with_the_idle_limit_are_all_served() -> None:
    chance = random.Random(14)
    world = World([spec("a", load=0.2)], gpus=1, idle_unload=seconds(1))
    world.engines["a"].unload = 0.05
    at = 0.0
    for _ in range(500):
        world.request("a", at=round(at, 4))
        at += chance.uniform(0.9, 1.2)
    world.run(at + 50)
    assert all(asked.granted and asked.ended for asked in world.asked.values())
    assert 100 < world.loads() < 500
    assert world.residents() == []


def test_a_pinned_model_stays_whatever_the_pressure_and_however_idle() -> None:
    world = World([spec("p", pinned=True), spec("a"), spec("b")], gpus=2, idle_unload=seconds(100))
    for turn in range(10):
        world.request("ab"[turn % 2], at=200.0 + turn * 80)
    world.run(1500)
    assert world.residents() == ["p"]
    assert world.loads("p") == 1


def test_pins_are_loaded_at_start_without_anybody_asking() -> None:
    core = Scheduler(topology(2), catalog([spec("p", pinned=True)]), Instant(seconds(7)))
    assert core.next_wakeup == seconds(7)
    assert [c.spec.name for c in core.handle(ev.Tick(Instant(seconds(7)))) if isinstance(c, Start)] == ["p"]


def test_the_node_goes_back_to_its_pin_list_when_others_have_become_idle() -> None:
    world = World([spec("p", load=10), spec("a", load=10)], gpus=1)
    world.request("a", at=0, service=30)
    order = world.order(ev.PinOrdered, 20, model=ModelName("p"), pinned=True)
    world.run(49)
    assert world.answers[order][1].ok
    assert world.residents() == ["a"]
    world.run(100)
    assert world.residents() == ["p"]
    assert world.evictions() == [(50, "a")]


def test_a_pin_never_evicts_what_is_protected_or_busy_and_never_another_pin() -> None:
    world = World([spec("p", pinned=True), spec("q", pinned=True), spec("a")], gpus=1)
    world.run(1000)
    assert world.residents() == ["p"]
    assert world.evictions() == []


def test_a_pin_that_fails_is_tried_again_after_its_cool_down() -> None:
    world = World([spec("p", load=5, pinned=True)], gpus=1)
    world.engines["p"].fails = LoadFailure.EXITED
    world.run(3)
    world.engines["p"].fails = None
    world.run(100)
    assert [at for at, c in world.log if isinstance(c, Start)] == [0, 15]
    assert world.residents() == ["p"]


def test_an_unpinned_pin_that_has_not_started_is_given_up() -> None:
    world = World([spec("a", load=10), spec("p", load=10)], gpus=1)
    world.engines["a"].unload = 50
    world.request("a", at=0)
    world.order(ev.PinOrdered, 100, model=ModelName("p"), pinned=True)
    world.order(ev.PinOrdered, 120, model=ModelName("p"), pinned=False)
    world.run(600)
    assert world.loads("p") == 0
    assert world.residents() == []


def test_manual_mode_neither_loads_nor_unloads_by_itself() -> None:
    world = World(
        [spec("a", load=10), spec("b", load=10), spec("p", pinned=True)],
        gpus=1,
        mode=Mode.MANUAL,
        idle_unload=seconds(5),
    )
    a = world.request("a", at=1)
    world.order(ev.LoadOrdered, 2, model=ModelName("a"))
    waits, later = world.request("a", at=3), world.request("b", at=500)
    world.run(600)
    assert [r.rejected[1].reason if r.rejected else None for r in (a, waits, later)] == [
        Rejection.MANUAL_MODE,
        None,
        Rejection.MANUAL_MODE,
    ]
    assert waits.waited == 9
    assert world.residents() == ["a"]
    assert world.evictions() == []


def test_an_operators_order_makes_room_in_manual_mode() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, mode=Mode.MANUAL)
    first = world.order(ev.LoadOrdered, 0, model=ModelName("a"))
    second = world.order(ev.LoadOrdered, 100, model=ModelName("b"))
    world.run(300)
    assert [world.answers[o] for o in (first, second)] == [
        (10, Answer(first, ok=True, detail="a is ready")),
        (113, Answer(second, ok=True, detail="b is ready")),
    ]


def test_a_change_to_manual_mode_refuses_whoever_waits_for_room() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1)
    world.request("a", at=0, service=100)
    b = world.request("b", at=20)
    world.reconfigure(at=30, mode=Mode.MANUAL)
    world.run(200)
    assert b.rejected is not None
    assert (b.rejected[0], b.rejected[1].reason) == (30, Rejection.MANUAL_MODE)


def test_a_model_in_use_is_not_unloaded_by_its_idle_limit() -> None:
    world = World([spec("a", load=10)], idle_unload=seconds(300))
    world.request("a", at=0, service=1800)
    world.run(5000)
    assert world.evictions() == [(10 + 1800 + 300, "a")]


def test_the_idle_limit_plays_no_part_during_a_load() -> None:
    world = World([spec("a", load=90)], idle_unload=seconds(30))
    world.order(ev.LoadOrdered, 0, model=ModelName("a"))
    world.run(1000)
    assert [c.result for c in world.of(LoadFinished)] == [LoadResult.READY]
    assert world.evictions() == [(120, "a")]


def test_no_more_loads_at_once_than_allowed_and_the_oldest_first() -> None:
    world = World([spec(name, load=10) for name in "abcd"], gpus=4)
    for place, name in enumerate("abcd"):
        world.request(name, at=place)
    world.run(100)
    assert [(at, str(c.spec.name)) for at, c in world.log if isinstance(c, Start)] == [
        (0, "a"),
        (1, "b"),
        (10, "c"),
        (11, "d"),
    ]


def test_loads_on_one_device_follow_each_other_even_where_both_fit() -> None:
    world = World([spec(name, load=10, shares=True) for name in "abc"], gpus=1, max_concurrent_loads=8)
    for name in "abc":
        world.request(name, at=0)
    world.run(100)
    assert [at for at, c in world.log if isinstance(c, Start)] == [0, 10, 20]


def test_nobody_leaves_a_device_while_a_neighbour_loads_there() -> None:
    world = World(
        [spec("a", load=10, gib=40, shares=True), spec("b", load=50, gib=40, shares=True)],
        gpus=1,
        max_concurrent_loads=8,
        idle_unload=seconds(20),
    )
    world.request("a", at=0)
    world.request("b", at=15)
    world.run(200)
    assert world.evictions() == [(65, "a"), (85, "b")]


def test_an_unplaceable_model_does_not_stop_the_others() -> None:
    world = World([spec("big", 8), spec("busy", load=1), spec("late", load=1)], max_concurrent_loads=3)
    world.request("busy", at=0, service=100)
    big, late = world.request("big", at=10), world.request("late", at=11)
    world.run(400)
    assert late.waited == 1
    assert big.granted[0][0] == 101 + 3 + 60


def test_while_devices_are_reserved_the_others_go_on_with_the_rest() -> None:
    world = World([spec("big", 2, load=10), spec("busy", load=1), spec("other", load=1)], gpus=3)
    world.request("busy", at=0, service=200)
    world.request("other", at=0, service=200)
    big = world.request("big", at=10)
    world.run(131)
    reservation = world.core.view().reservation
    assert reservation is not None
    assert (reservation.model, int(reservation.gpus), reservation.draining) == ("big", 0b101, ("busy",))
    world.run(150)
    late = world.request("busy")
    world.run(500)
    assert big.granted[0][0] == 201 + 3 + 10
    assert late.granted[0][0] > 201


def test_a_reservation_nobody_waits_for_any_more_is_dropped_and_its_victims_serve_again() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1)
    world.request("a", at=0, service=300)
    b = world.request("b", at=20)
    held = world.request("a", at=150, service=1)
    world.leave(b, at=170)
    world.run(400)
    assert held.granted[0][0] == 170
    assert world.evictions() == []
    assert world.core.view().reservation is None


def test_a_reservation_draining_for_an_engine_that_never_finishes_ends_at_the_drain_deadline() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, drain_timeout=seconds(30))
    stuck = world.request("a", at=0, service=None)
    b = world.request("b", at=20)
    world.run(400)
    assert stuck.cut == 20 + 120 + 30
    assert b.granted[0][0] == 170 + 3 + 10


def test_a_short_promise_makes_the_drain_begin_early_enough() -> None:
    world = World([spec("a", load=10), spec("b", load=40, max_wait=seconds(90))], gpus=1, protect=seconds(0))
    for at in range(0, 300, 5):
        world.request("a", at=at, service=8)
    b = world.request("b", at=100)
    world.run(600)
    assert b.granted
    assert b.waited <= 90


def test_a_pin_given_to_a_draining_victim_ends_the_reservation() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1)
    world.request("a", at=0, service=300)
    b = world.request("b", at=20)
    world.order(ev.PinOrdered, 150, model=ModelName("a"), pinned=True)
    held = world.request("a", at=145, service=1)
    world.run(400)
    assert held.granted[0][0] == 150
    assert b.rejected is not None
    assert b.rejected[1].reason is Rejection.ALL_PINNED


def test_an_abandoned_load_goes_on_if_nobody_needs_its_place_and_is_an_ordinary_resident_then() -> None:
    world = World([spec("a", load=60), spec("b", load=10)], gpus=1)
    a = world.request("a", at=0)
    world.leave(a, at=20)
    world.run(70)
    assert world.residents() == ["a"]
    b = world.request("b", at=200)
    world.run(400)
    assert b.waited == 13


def test_an_abandoned_load_is_broken_off_for_a_model_somebody_waits_for() -> None:
    world = World([spec("a", load=60, stop_grace=seconds(30)), spec("b", load=10)], gpus=1)
    a = world.request("a", at=0)
    world.leave(a, at=20)
    b = world.request("b", at=25)
    world.run(400)
    assert b.waited == 3 + 10
    assert [(c.model, c.result) for c in world.of(LoadFinished)] == [("a", LoadResult.ABORTED), ("b", LoadResult.READY)]


def test_breaking_off_a_load_has_a_short_grace() -> None:
    world = World([spec("a", load=60, stop_grace=seconds(30)), spec("b", load=10)], gpus=1)
    world.engines["a"].ignores_stop = True
    a = world.request("a", at=0)
    world.leave(a, at=20)
    world.request("b", at=25)
    world.run(400)
    assert [at for at, c in world.log if isinstance(c, Kill)] == [30]


@pytest.mark.parametrize("kind", [ev.LoadOrdered, ev.PinOrdered])
def test_ordered_loads_and_pins_are_not_broken_off(kind: type) -> None:
    world = World([spec("a", load=60), spec("b", load=10)], gpus=1)
    more = {"pinned": True} if kind is ev.PinOrdered else {}
    world.order(kind, 0, model=ModelName("a"), **more)
    b = world.request("b", at=5)
    world.run(300)
    assert world.of(LoadFinished, "a")[0].result is LoadResult.READY
    assert bool(b.granted) == (kind is ev.LoadOrdered)


def test_all_leave_before_the_load_has_started_then_it_never_starts() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, protect=seconds(0))
    world.engines["a"].unload = 20
    world.request("a", at=0)
    leavers = [world.request("b", at=50), world.request("b", at=51)]
    for asked in leavers:
        world.leave(asked, at=60)
    back = world.request("a", at=65)
    world.run(300)
    assert world.loads("b") == 0
    assert back.granted[0][0] == 70 + 10


def test_a_victim_whose_successor_failed_comes_back_only_when_asked_for_and_without_penalty() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, protect=seconds(0))
    world.engines["b"].fails = LoadFailure.EXITED
    world.request("a", at=0)
    world.request("b", at=50)
    world.run(200)
    assert world.residents() == []
    back = world.request("a", at=200)
    world.run(300)
    assert back.waited == 10


def test_gdsf_keeps_what_is_asked_for_often_and_costs_much_to_load_and_forgets_with_time() -> None:
    world = World([spec("a", load=10), spec("b", load=10), spec("x", load=10)], gpus=2, protect=seconds(0))
    for at in range(0, 100, 10):
        world.request("a", at=at)
    world.request("b", at=99)
    world.request("x", at=200)
    world.run(300)
    assert world.evictions() == [(200, "b")]
    assert 9 < world.model("a").frequency < 10
    node = world.core._node
    assert node.clock > 0
    assert node.models["x"].worth > node.clock


def test_lru_takes_the_longest_unused() -> None:
    world = World(
        [spec("a", load=10), spec("b", load=10), spec("x", load=10)], gpus=2, protect=seconds(0), policy=PolicyName.LRU
    )
    for at in range(0, 90, 10):
        world.request("a", at=at)
    world.request("b", at=99)
    world.request("x", at=200)
    world.run(300)
    assert world.evictions() == [(200, "a")]


def test_a_policy_given_from_outside_counts_over_the_configured_one_and_stays() -> None:
    class Never:
        def value(self, resident: Resident) -> float:
            return 1.0 if resident.model == "a" else 2.0

    models = [spec("a", load=10), spec("b", load=10), spec("x", load=10)]
    world = World(models, gpus=2, protect=seconds(0))
    world.core = Scheduler(topology(2), catalog(models, protect=Duration(0)), Instant(0), policy=Never())
    world.reconfigure(at=0, policy=PolicyName.LRU)
    for at in range(0, 90, 10):
        world.request("a", at=at)
    world.request("b", at=30)
    world.request("x", at=200)
    world.run(300)
    assert world.evictions() == [(200, "a")]


def test_one_request_after_another_on_a_ready_model_settles_nothing_and_wakes_nobody() -> None:
    world = World([spec("a", load=1)])
    world.request("a", at=0)
    world.run(5)
    number, ready = RequestId(99), world.instance("a")
    arrival = world.core.handle(ev.RequestArrived(Instant(seconds(6)), number, ModelName("a")))
    assert arrival == (Grant(number, ready, ModelName("a"), cold_start=False, waited=Duration(0), stages={}),)
    assert world.core.handle(ev.RequestEnded(Instant(seconds(7)), number, Outcome.SERVED)) == ()
    assert world.core.next_wakeup is None


def test_three_hundred_models_can_be_configured_and_placed() -> None:
    world = World([spec(f"m{n:03}", 1 + n % 2, load=10) for n in range(300)], max_concurrent_loads=8)
    asked = [world.request(f"m{n:03}", at=n * 0.01) for n in range(60)]
    world.run(600)
    assert all(a.granted or a.rejected for a in asked)
    assert not [c for c in world.of(Reject) if c.reason is not Rejection.WAIT_TIMEOUT]
    assert world.of(Stop)


def test_a_reservation_whose_devices_are_lost_to_a_pin_is_made_anew_elsewhere() -> None:
    world = World([spec("a", load=10), spec("b", load=10), spec("x", load=10)], gpus=2)
    world.request("a", at=0, service=250)
    world.request("b", at=0, service=260)
    x = world.request("x", at=20)
    world.run(141)
    first = world.core.view().reservation
    victim = ModelName(first.draining[0]) if first else ModelName("")
    world.order(ev.PinOrdered, 150, model=victim, pinned=True)
    world.run(150)
    second = world.core.view().reservation
    assert second is not None
    assert first is not None
    assert second.gpus != first.gpus
    world.run(400)
    assert x.granted
    assert victim in world.residents()


def test_nothing_is_reserved_while_only_loads_are_in_the_way() -> None:
    world = World([spec("a", load=200, max_wait=seconds(900)), spec("b", load=10, max_wait=seconds(900))], gpus=1)
    world.request("a", at=0)
    b = world.request("b", at=10)
    world.run(180)
    assert world.core.view().reservation is None
    world.run(400)
    assert b.granted[0][0] == 200 + 3 + 10


def test_a_load_nobody_waited_for_that_is_wanted_again_inside_a_reservation_serves_first() -> None:
    models = [spec("a", load=10), spec("late", load=200, max_wait=seconds(900))]
    world = World([*models, spec("big", 2, load=10, max_wait=seconds(900))], gpus=2)
    world.request("a", at=0, service=300)
    gone = world.request("late", at=0)
    world.leave(gone, at=1)
    big = world.request("big", at=20)
    back = world.request("late", at=150, service=1)
    world.run(600)
    assert back.granted[0][0] == 200
    assert big.granted[0][0] == 310 + 3 + 10


def test_patience_is_asked_for_again_when_the_one_who_had_it_has_left() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, protect=seconds(100))
    world.request("a", at=0, service=150)
    old = world.request("b", at=20)
    young = world.request("b", at=155)
    world.leave(old, at=158)
    world.run(400)
    assert young.granted[0][0] == 155 + 15 + 3 + 10


def test_a_young_request_of_a_higher_class_does_not_reserve_before_its_time() -> None:
    models = [
        spec("a", load=10),
        spec("low", load=10, max_wait=seconds(900)),
        spec("high", load=10, max_wait=seconds(900)),
    ]
    world = World(models, gpus=1)
    world.request("a", at=0, service=400)
    low = world.request("low", at=20, priority=Priority.LOW)
    high = world.request("high", at=130)
    world.run(141)
    reservation = world.core.view().reservation
    assert reservation is not None
    assert (reservation.model, reservation.since) == ("low", seconds(140))
    world.run(900)
    assert low.granted[0][0] < high.granted[0][0]
