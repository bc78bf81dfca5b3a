"""Who waits, how long, in which order, and who is refused."""

import random
from dataclasses import dataclass

import pytest

from swapd.core import events as ev
from swapd.core.catalog import Priority
from swapd.core.commands import Answer, Check, Grant, Reject, Start
from swapd.core.ids import InstanceId, Instant, ModelName, RequestId, seconds
from swapd.core.reasons import LoadFailure, Outcome, Rejection, Stage, WaitingFor
from tests.core.driver import World, spec


def test_no_request_for_a_cold_model_is_refused_while_the_queue_has_room() -> None:
    world = World([spec("a", load=10, concurrency=4)])
    asked = [world.request("a", at=0, service=1) for _ in range(14)]
    world.run(10)
    assert sum(1 for a in asked if a.granted) == 4
    world.run(100)
    assert all(a.granted for a in asked)


def test_five_hundred_requests_for_one_cold_model_make_one_load_while_another_model_loads_elsewhere() -> None:
    world = World([spec("a", load=10, concurrency=500), spec("b", load=10)], gpus=2)
    asked = [world.request("a", at=0) for _ in range(500)]
    b = world.request("b", at=1)
    world.run(100)
    assert (world.loads("a"), b.waited, {a.waited for a in asked}) == (1, 10, {10})


def test_the_queue_is_bounded_and_the_excess_is_told_when_to_come_back() -> None:
    world = World([spec("a", load=10, max_queue=100)])
    asked = [world.request("a", at=0) for _ in range(1000)]
    world.run(1)
    refused = [a.rejected[1] for a in asked if a.rejected]
    assert len(refused) == 900
    assert {(r.reason, r.retry_after) for r in refused} == {(Rejection.QUEUE_FULL, seconds(10))}


def test_a_resident_model_queues_what_exceeds_its_slots_within_the_same_bound() -> None:
    world = World([spec("a", load=10, concurrency=4, max_queue=2)])
    world.request("a", at=0)
    asked = [world.request("a", at=20, service=5) for _ in range(8)]
    world.run(21)
    assert world.model("a").queued == {WaitingFor.ENGINE_SLOT: 2}
    world.run(100)
    assert [a.waited if a.granted else None for a in asked] == [0, 0, 0, 0, 5, 5, None, None]
    assert [c.reason for c in world.of(Reject)] == [Rejection.QUEUE_FULL] * 2
    assert not any(c.cold_start for c in world.of(Grant)[1:])


def test_of_three_who_wait_one_leaves_and_the_others_are_served() -> None:
    world = World([spec("a", load=10)])
    asked = [world.request("a", at=0) for _ in range(3)]
    world.leave(asked[0], at=5)
    world.run(50)
    assert [len(a.granted) for a in asked] == [0, 1, 1]


def test_priority_survives_a_swap_and_age_counts_within_a_class() -> None:
    world = World([spec(n, load=10) for n in "abcd"], gpus=1, protect=seconds(0))
    world.request("a", at=0, service=50)
    world.request("b", at=11, priority=Priority.LOW)
    world.request("c", at=12, priority=Priority.NORMAL)
    world.request("d", at=13, priority=Priority.NORMAL)
    world.run(400)
    assert [str(c.spec.name) for c in world.of(Start)] == ["a", "c", "d", "b"]


def test_within_a_model_the_class_orders_the_waiters_and_the_model_bounds_the_class() -> None:
    world = World([spec("a", load=10, concurrency=1, priority=Priority.NORMAL)])
    low = world.request("a", at=0, service=1, priority=Priority.LOW)
    normal = world.request("a", at=1, service=1, priority=Priority.NORMAL)
    high = world.request("a", at=2, service=1, priority=Priority.HIGH)
    world.run(50)
    assert [a.granted[0][0] for a in (normal, high, low)] == [10, 11, 12]


def test_a_tenant_that_saturates_the_node_does_not_keep_another_from_being_served() -> None:
    world = World([spec("a", load=10, concurrency=2), spec("b", load=10)], gpus=1)
    for at in range(400):
        world.request("a", at=at, service=3)
    b = world.request("b", at=100)
    world.run(400)
    assert b.granted
    assert b.waited < 150


def test_a_slow_model_delays_nobody_else() -> None:
    world = World([spec("slow", load=1, concurrency=1), spec("fast", load=1)], gpus=2)
    world.request("slow", at=0, service=500)
    for at in range(2, 50):
        world.request("slow", at=at)
    fast = [world.request("fast", at=at) for at in range(10, 100)]
    world.run(200)
    assert {a.waited for a in fast[1:]} == {0}


def test_clients_that_vanish_at_any_moment_leave_nothing_behind() -> None:
    chance = random.Random(39)
    world = World([spec("a", load=5, concurrency=2), spec("b", load=5)], gpus=1)
    for _ in range(1000):
        at = chance.uniform(0, 2000)
        asked = world.request(chance.choice("ab"), at=at, service=chance.uniform(0, 20))
        world.leave(asked, at=at + chance.uniform(0, 30))
    world.run(4000)
    node = world.core._node
    assert (len(node.requests), len(node.refused), len(node.pending), len(node.deadlines)) == (0, 0, 0, 0)
    assert all(not i.in_flight for i in node.instances.values())
    assert node.stale_facts == 0


def test_a_request_is_refused_when_its_deadline_passes_whatever_it_waits_for() -> None:
    wait = seconds(30)
    models = [
        spec("room", load=20, max_wait=wait),
        spec("load", load=20, max_wait=wait),
        spec("slot", load=1, concurrency=1, max_wait=wait),
    ]
    world = World(models, gpus=2)
    world.engines["load"].load = 300
    world.request("slot", at=0, service=1000)
    slot, load, room = world.request("slot", at=2), world.request("load", at=3), world.request("room", at=4)
    world.run(200)
    assert [a.rejected[0] if a.rejected else None for a in (slot, load, room)] == [32, 33, 34]
    assert {c.reason for c in world.of(Reject)} == {Rejection.WAIT_TIMEOUT}
    assert all(c.retry_after is not None for c in world.of(Reject))


def test_an_eta_beyond_the_promise_is_refused_at_once_but_free_room_is_loaded_ahead() -> None:
    world = World([spec("a", load=100, max_wait=seconds(60))])
    first, second, late = world.request("a", at=0), world.request("a", at=10), world.request("a", at=50)
    world.run(200)
    assert first.rejected is not None
    assert second.rejected is not None
    assert (first.rejected[0], first.rejected[1].retry_after) == (0, seconds(100))
    assert {c.reason for c in world.of(Reject)} == {Rejection.ETA_EXCEEDS_MAX_WAIT}
    assert second.rejected[1].retry_after == seconds(90)
    assert late.waited == 50
    assert world.loads() == 1


def test_an_eta_beyond_the_promise_evicts_nobody_and_delays_nobody() -> None:
    world = World([spec("a", load=1), spec("slow", load=100, max_wait=seconds(60))], gpus=1)
    world.request("a", at=0)
    slow = world.request("slow", at=200)
    world.run(400)
    assert slow.rejected is not None
    assert world.loads() == 1
    assert world.evictions() == []


def test_nothing_is_loaded_ahead_when_the_load_slots_or_the_device_are_busy() -> None:
    models = [spec(n, load=50, shares=True) for n in "ab"]
    slow = spec("slow", load=100, shares=True, max_wait=seconds(60))
    one_slot = World([*models, slow], gpus=2, max_concurrent_loads=1)
    one_slot.request("a", at=0)
    refused = one_slot.request("slow", at=1)
    one_slot.run(40)
    assert refused.rejected is not None
    assert refused.rejected[1].retry_after == seconds(149)
    one_device = World([*models, slow], gpus=1, max_concurrent_loads=4)
    one_device.request("a", at=0)
    one_device.request("slow", at=1)
    one_device.run(40)
    assert (one_slot.loads(), one_device.loads()) == (1, 1)


def test_room_that_is_still_being_freed_is_not_loaded_ahead() -> None:
    world = World([spec("a", load=1), spec("slow", load=100, max_wait=seconds(60))], gpus=1, idle_unload=seconds(20))
    world.request("a", at=0)
    world.request("slow", at=22)
    world.run(100)
    assert world.loads("slow") == 0


def test_the_eta_counts_the_rest_of_a_drain() -> None:
    world = World([spec("a", load=10, concurrency=1), spec("b", load=60, max_wait=seconds(90))], gpus=1)
    world.request("a", at=0, service=100)
    world.request("a", at=110, service=100)
    b = world.request("b", at=120)
    world.run(121)
    assert b.rejected is not None
    assert (b.rejected[1].reason, b.rejected[1].retry_after) == (Rejection.ETA_EXCEEDS_MAX_WAIT, seconds(90 + 3 + 60))


def test_the_eta_behind_models_that_load_and_behind_a_drain_of_ones_own() -> None:
    world = World([spec("a", load=50), spec("b", load=60, max_wait=seconds(80))], gpus=1)
    world.request("a", at=0)
    b = world.request("b", at=20)
    world.run(21)
    assert b.rejected is not None
    assert b.rejected[1].retry_after == seconds(30 + 3 + 60)
    world.run(60)
    world.request("a", at=60, service=500)
    world.order(ev.UnloadOrdered, 70, model=ModelName("a"))
    again = world.request("a", at=80)
    world.run(100)
    assert again.rejected is None


def test_a_broken_answer_is_tried_once_more_and_the_engine_is_checked_first() -> None:
    world = World([spec("a", load=10, concurrency=1)])
    first = world.request("a", at=0, service=None)
    second = world.request("a", at=11, service=None)
    world.plan(12, lambda: ev.UpstreamFailed(world.now, RequestId(first.number), InstanceId(1)))
    world.run(15)
    assert len(world.of(Check)) == 1
    assert world.model("a").queued == {WaitingFor.ENGINE_SLOT: 2}
    world.fact(ev.InstanceHealthy, "a", 16)
    world.run(17)
    assert [at for at, _ in first.granted] == [10, 16]
    world.plan(18, lambda: ev.UpstreamFailed(world.now, RequestId(first.number), InstanceId(1)))
    world.fact(ev.InstanceHealthy, "a", 19)
    world.run(30)
    assert first.rejected is not None
    assert (first.rejected[0], first.rejected[1].reason) == (18, Rejection.UPSTREAM_FAILED)
    assert second.granted[0][0] == 19
    assert len(world.of(Check)) == 2


def test_an_engine_found_dead_by_the_check_is_replaced_and_the_request_served_by_the_fresh_one() -> None:
    world = World([spec("a", load=10)], gpus=1)
    asked = world.request("a", at=0, service=None)
    world.plan(12, lambda: ev.UpstreamFailed(world.now, RequestId(asked.number), InstanceId(1)))
    world.fact(ev.InstanceUnhealthy, "a", 13)
    world.run(60)
    assert [(at, int(g.instance), g.cold_start) for at, g in asked.granted] == [(10, 1, True), (13 + 3 + 10, 2, True)]


def test_a_retry_finds_the_fresh_instance_ready_and_is_sent_there_at_once() -> None:
    world = World([spec("a", load=10, concurrency=2)])
    first = world.request("a", at=0, service=None)
    world.fact(ev.InstanceUnhealthy, "a", 12)
    world.request("a", at=13, service=None)
    world.plan(40, lambda: ev.UpstreamFailed(world.now, RequestId(first.number), InstanceId(1)))
    world.run(50)
    assert [(at, int(g.instance)) for at, g in first.granted] == [(10, 1), (40, 2)]


def test_a_retry_whose_engine_is_gone_has_the_model_loaded_again() -> None:
    world = World([spec("a", load=10)], gpus=1)
    asked = world.request("a", at=0, service=None)
    world.fact(ev.InstanceExited, "a", 20, status=1)
    world.plan(21, lambda: ev.UpstreamFailed(world.now, RequestId(asked.number), InstanceId(1)))
    world.run(60)
    assert [(at, int(g.instance)) for at, g in asked.granted] == [(10, 1), (23 + 10, 2)]


def test_a_retry_that_could_not_be_served_in_time_is_refused() -> None:
    world = World([spec("a", load=10, max_wait=seconds(30), max_queue=1, concurrency=2)])
    late = world.request("a", at=0, service=None)
    world.plan(50, lambda: ev.UpstreamFailed(world.now, RequestId(late.number), InstanceId(1)))
    world.fact(ev.InstanceHealthy, "a", 51)
    full = [world.request("a", at=60, service=None) for _ in range(3)]
    world.plan(61, lambda: ev.UpstreamFailed(world.now, RequestId(full[0].number), InstanceId(1)))
    world.run(62)
    assert [a.rejected[1].reason if a.rejected else None for a in (late, full[0])] == [Rejection.UPSTREAM_FAILED] * 2


def test_facts_about_requests_that_are_gone_are_counted_and_ignored() -> None:
    world = World([spec("a", load=1)])
    world.request("a", at=0)
    world.plan(5, lambda: ev.RequestEnded(world.now, RequestId(1), Outcome.SERVED))
    world.plan(6, lambda: ev.UpstreamFailed(world.now, RequestId(1), InstanceId(1)))
    world.run(10)
    assert world.core.view().stale_facts == 2


def test_an_unknown_model_is_refused_for_good() -> None:
    world = World([spec("a")])
    asked = world.request("zz", at=0)
    world.run(1)
    assert asked.rejected is not None
    assert (asked.rejected[1].reason, asked.rejected[1].permanent) == (Rejection.UNKNOWN_MODEL, True)


def test_the_parts_of_a_wait_are_told_and_add_up() -> None:
    world = World([spec("a", load=10, concurrency=1), spec("b", load=40)], gpus=1)
    world.engines["a"].release = 5
    world.request("a", at=0, service=150)
    b = world.request("b", at=20, service=1)
    world.run(400)
    grant = b.granted[0][1]
    parts = {stage.value: duration / seconds(1) for stage, duration in grant.stages.items()}
    assert parts == {"queued": 120, "drain": 20, "stop": 3, "release": 5, "spawn": 10, "load": 20, "warmup": 10}
    assert sum(grant.stages.values()) == grant.waited
    assert grant.cold_start


def test_who_comes_late_has_waited_through_the_rest_of_the_load_only() -> None:
    world = World([spec("a", load=40, concurrency=1)])
    world.request("a", at=0, service=5)
    late = world.request("a", at=25)
    world.run(100)
    assert dict(late.granted[0][1].stages) == {
        Stage.QUEUED: seconds(5),
        Stage.LOAD: seconds(5),
        Stage.WARMUP: seconds(10),
    }


def test_what_a_queue_waits_for_is_told_apart() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, drain_after=seconds(30))
    world.request("a", at=0, service=100)
    world.request("b", at=20)
    seen = []
    for at in (21, 51, 111, 115):
        world.run(at)
        seen.append(next(iter(world.model("b").queued)))
    assert seen == [WaitingFor.ROOM, WaitingFor.VICTIMS, WaitingFor.VICTIMS, WaitingFor.LOAD]
    world.request("b", at=300, service=10)
    world.run(300)
    world.order(ev.UnloadOrdered, 301, model=ModelName("b"))
    world.request("b", at=302)
    world.run(303)
    assert world.model("b").queued == {WaitingFor.ROOM: 1}


def test_an_operator_who_waits_for_room_is_answered_by_the_deadline_too() -> None:
    world = World([spec("a", load=10), spec("b", load=10, max_wait=seconds(50))], gpus=1)
    world.request("a", at=0, service=1000)
    order = world.order(ev.LoadOrdered, 20, model=ModelName("b"))
    world.run(200)
    at, answer = world.answers[order]
    assert (at, answer.ok, answer.reason) == (70, False, Rejection.WAIT_TIMEOUT)
    assert isinstance(answer, Answer)


def test_a_request_may_not_arrive_twice() -> None:
    world = World([spec("a")])
    event = ev.RequestArrived(Instant(seconds(5)), RequestId(1), ModelName("a"))
    world.core.handle(event)
    with pytest.raises(AssertionError, match="request 1 arrived twice"):
        world.core.handle(event)


def test_time_may_not_go_back() -> None:
    world = World([spec("a")])
    world.core.handle(ev.Tick(Instant(6)))
    with pytest.raises(AssertionError, match="time went back from 6 to 5"):
        world.core.handle(ev.Tick(Instant(5)))


def test_a_fact_of_an_unknown_kind_is_an_error() -> None:
    world = World([spec("a")])
    with pytest.raises(AssertionError, match="Asked"):
        world.core.handle(AskedAt(Instant(5)))


@dataclass
class AskedAt:
    at: Instant


def test_a_refusal_says_how_long_the_request_had_waited_and_whether_for_a_load() -> None:
    late = spec("late", load=8, max_wait=seconds(10), max_queue=1)
    world = World([late, spec("dead", load=5), spec("busy", load=1, concurrency=1, max_wait=seconds(10))])
    world.engines["late"].load = 100
    world.engines["dead"].fails = LoadFailure.EXITED
    world.request("busy", at=0, service=100)
    asked = [world.request(name, at=at) for name, at in (("late", 5), ("late", 6), ("dead", 5), ("busy", 7))]
    world.run(30)
    told = [(a.rejected[1].reason, a.rejected[1].cold_start, a.rejected[1].waited) for a in asked if a.rejected]
    assert told == [
        (Rejection.WAIT_TIMEOUT, True, seconds(10)),
        (Rejection.QUEUE_FULL, False, 0),
        (Rejection.LOAD_FAILED, True, seconds(5)),
        (Rejection.WAIT_TIMEOUT, False, seconds(10)),
    ]


def test_reading_ahead_is_told_beside_the_parts_that_add_up() -> None:
    world = World([spec("a", load=10), spec("b", load=40, fetched=True)], gpus=1, protect=seconds(0))
    world.engines["a"].release = 5
    world.store.put("b")
    world.store.remote("b", read=6)
    world.request("a", at=0, service=1)
    b = world.request("b", at=20)
    late = world.request("b", at=24)
    world.run(200)
    stages = dict(b.granted[0][1].stages)
    assert stages.pop(Stage.PAGE_CACHE) == seconds(6)
    assert sum(stages.values()) == b.granted[0][1].waited
    assert late.granted[0][1].stages[Stage.PAGE_CACHE] == seconds(2)
