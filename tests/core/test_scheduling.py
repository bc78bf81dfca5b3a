"""Who is resident when: protection, fairness, races, serialised loads."""

import random
from typing import Any

from swapd.core import events as ev
from swapd.core.catalog import Catalog, ModelSpec
from swapd.core.commands import Command, Grant, Reject, Start, Stop
from swapd.core.ids import Duration, Instant, ModelName, RequestId, seconds
from swapd.core.reasons import LoadFailure, Outcome, Rejection
from swapd.core.scheduler import Scheduler
from tests.core.driver import World, spec


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


class Admitting(World):
    """Lets a second core admit and end what it can and handle the rest, and compares the two."""

    def __init__(self, *specs: ModelSpec, **settings: Any) -> None:
        super().__init__(specs, **settings)
        self.twin = Scheduler(self.devices, Catalog(self.specs, self.settings), Instant(0))
        self.admitted = self.ended = 0

    def post(self, event: ev.Event) -> tuple[Command, ...]:
        grant = self.twin.admit(event) if isinstance(event, ev.RequestArrived) else None
        self.admitted += grant is not None
        if isinstance(event, ev.RequestEnded) and self.twin.end(event):
            self.ended += 1
            told: tuple[Command, ...] = ()
        else:
            told = self.twin.handle(event) if grant is None else (grant,)
        commands = super().post(event)
        assert told == commands
        assert self.twin.view() == self.core.view()
        assert self.twin.next_wakeup == self.core.next_wakeup
        return commands


def test_admitting_and_ending_a_request_come_to_the_same_as_handling_them() -> None:
    rng = random.Random(7)
    specs = [spec(f"m{n}", 1 + n % 2, load=5, concurrency=2, max_queue=3) for n in range(5)]
    world = Admitting(*specs, gpus=3, idle_unload=seconds(20), protect=seconds(5))
    for _ in range(600):
        asked = world.request(f"m{rng.randrange(6)}", at=rng.random() * 200, service=rng.random() * 4)
        if rng.random() < 0.1:
            world.leave(asked, at=asked.arrived + rng.random() * 3)
    world.order(ev.NodeDrainOrdered, at=180, timeout=seconds(60), stop_engines=True, final=False)
    world.run(400)
    assert 50 < world.admitted < len(world.of(Grant))
    assert 50 < world.ended < len(world.of(Grant))
    assert world.of(Reject)
