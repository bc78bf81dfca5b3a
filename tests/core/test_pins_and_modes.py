"""Pins, idle limits, the mode and the policies: what holds whoever asks."""

import random

from swapd.core import events as ev
from swapd.core.catalog import Mode, PolicyName
from swapd.core.commands import Answer, LoadFinished, Start
from swapd.core.ids import Duration, Instant, ModelName, seconds
from swapd.core.policies import Resident
from swapd.core.reasons import LoadFailure, LoadResult, Rejection
from swapd.core.scheduler import Scheduler
from tests.core.driver import World, catalog, spec, topology


def test_three_agents_on_one_node_wait_but_the_node_does_not_spend_its_time_swapping() -> None:
    world = World([spec(f"m{n}", 4, load=20) for n in range(3)], gpus=8, min_residency_load_times=3.0)
    for agent in range(3):
        for step in range(100):
            world.request(f"m{agent}", at=agent + step * 20.0, service=5)
    world.run(2600)
    assert all(asked.granted for asked in world.asked.values())
    assert world.core.view().load_fraction < 0.3


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
