"""Situations that made comparable systems thrash, starve or hang, played through in virtual time."""

import itertools
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from swapd.core.catalog import SchedulingSettings
from swapd.core.commands import Evicted, Transitioned
from swapd.core.events import Event, RequestArrived, RequestEnded
from swapd.core.ids import Duration, Instant, ModelName, RequestId, seconds
from swapd.core.reasons import Rejection, State, UnloadCause, Verdict
from swapd.sim.replay import Origin
from swapd.sim.workload import Arrival, burst, merged, ping_pong
from swapd.sim.world import Timings
from tests.properties.nodes import catalog, topology
from tests.sim.rigs import Played, one_slot, plain, play

A, B, C = ModelName("a"), ModelName("b"), ModelName("c")
FAST = Timings(default_load=seconds(0.2), stop=seconds(0.1), release=seconds(0.1), default_service=seconds(0.1))
SLOW = Timings(default_load=seconds(40), stop=seconds(2), release=seconds(1), default_service=seconds(2))


def in_turn(models: Sequence[ModelName], count: int) -> Callable[[RequestEnded], Event | None]:
    """Return a client that asks for the next model in turn whenever its last request has ended."""
    following = itertools.count(2)

    def follow(ended: RequestEnded) -> Event | None:
        number = next(following)
        if number > count:
            return None
        return RequestArrived(Instant(ended.at + seconds(0.01)), RequestId(number), models[(number - 1) % len(models)])

    return follow


def first(of: ModelName) -> list[Arrival]:
    """Return the request a client begins with."""
    return burst([of], service=seconds(0.1))


def residencies(played: Played) -> Iterator[Duration]:
    """Yield how long each evicted instance had been ready."""
    ready: dict[int, Instant] = {}
    for at, command in played.commands:
        if isinstance(command, Transitioned) and command.after is State.READY:
            ready[command.instance] = at
        if isinstance(command, Evicted) and command.cause is UnloadCause.EVICTED:
            yield Duration(at - ready[command.instance])


def test_protection_paces_a_strict_alternation_and_the_pair_is_reported() -> None:
    settings = SchedulingSettings(protect=seconds(2))
    played = play(
        one_slot("a", "b", settings=settings), first(A), FAST, until=Instant(seconds(600)), follow=in_turn((A, B), 12)
    )

    assert played.report.node.served == 12
    assert played.report.node.loads == 12
    assert min(residencies(played)) >= seconds(2)
    pair = played.report.thrashing()
    assert {name: note.partner for name, note in pair.items()} == {A: B, B: A}


def test_a_router_and_the_model_it_selects_are_a_thrashing_pair_and_minimum_residency_is_honoured() -> None:
    settings = SchedulingSettings(min_residency=seconds(30))
    origin = Origin(topology(1), catalog(plain("router"), plain("large"), settings=settings))
    names = (ModelName("router"), ModelName("large"))
    played = play(origin, first(names[0]), FAST, until=Instant(seconds(3600)), follow=in_turn(names, 20))

    assert played.report.node.served == 20
    assert min(residencies(played)) >= seconds(30)


def test_a_router_without_minimum_residency_is_reported_with_its_partner() -> None:
    names = (ModelName("router"), ModelName("large"))
    played = play(one_slot(*names), first(names[0]), FAST, until=Instant(seconds(3600)), follow=in_turn(names, 20))

    pair = played.report.thrashing()
    assert {name: note.partner for name, note in pair.items()} == {names[0]: names[1], names[1]: names[0]}


def test_a_burst_for_three_exclusive_models_is_grouped_by_model() -> None:
    played = play(one_slot("a", "b", "c"), burst([A, B, C] * 3, service=seconds(2)), SLOW, until=Instant(seconds(900)))

    assert (played.report.node.served, played.report.node.loads) == (9, 3)


def test_a_deep_alternation_needs_no_more_than_two_switches() -> None:
    deep = tuple(replace(plain(name), max_queue=32, max_wait=seconds(600)) for name in "ab")
    origin = Origin(topology(1), catalog(*deep, settings=SchedulingSettings()))
    played = play(origin, ping_pong([A, B], 40, gap_s=0.01, service=seconds(2)), SLOW, until=Instant(seconds(900)))

    assert (played.report.node.served, played.report.node.loads) == (40, 2)


def test_five_models_in_rotation_on_room_for_three_are_reported_and_loading_stays_bounded() -> None:
    names = [ModelName(f"m{number}") for number in range(5)]
    settings = SchedulingSettings(min_residency_load_times=1, protect_max_wait=seconds(5))
    specs = [replace(plain(name), max_wait=seconds(120), load_estimate=seconds(20)) for name in names]
    origin = Origin(topology(3), catalog(*specs, settings=settings))
    timings = replace(SLOW, default_load=seconds(20))
    rotation = ping_pong(names, 400, gap_s=9, service=seconds(2))
    played = play(origin, rotation, timings, until=Instant(seconds(4200)))
    report = played.report

    assert report.node.served + sum(report.node.rejected.values()) == 400
    assert set(report.node.rejected) <= {Rejection.ETA_EXCEEDS_MAX_WAIT, Rejection.WAIT_TIMEOUT, Rejection.QUEUE_FULL}
    assert report.node.load_fraction <= 0.6
    assert report.thrashing()
    assert all(
        view.caused_gpu_seconds > 0 for view in played.scheduler.view().models if view.model in report.thrashing()
    )


def test_perfectly_regular_use_is_reported_when_it_is_cold_each_time() -> None:
    settings = SchedulingSettings(idle_unload=seconds(1))
    patient = replace(plain("a"), load_estimate=seconds(40), max_wait=seconds(120))
    origin = Origin(topology(1), catalog(patient, settings=settings))
    minutely = ping_pong([A], 120, gap_s=60, service=seconds(0.1))
    played = play(origin, minutely, replace(SLOW, default_service=seconds(0.1)), until=Instant(seconds(7230)))

    assert played.report.node.cold_starts == 120
    assert played.report.verdicts[-1].after is Verdict.THRASHING
    assert 0.6 < played.report.verdicts[-1].load_ratio < 0.7


def test_three_agents_on_two_slots_spend_no_more_than_the_limit_on_swapping() -> None:
    settings = SchedulingSettings(min_residency_load_times=1)
    specs = [replace(plain(name), load_estimate=seconds(20), max_wait=seconds(300)) for name in "abc"]
    origin = Origin(topology(2), catalog(*specs, settings=settings))
    agents = {RequestId(n): name for n, name in enumerate((A, B, C), start=1)}
    fresh = itertools.count(4)

    def follow(ended: RequestEnded) -> Event | None:
        name, number = agents.pop(ended.request), RequestId(next(fresh))
        agents[number] = name
        return RequestArrived(Instant(ended.at + seconds(1)), number, name)

    timings = replace(SLOW, default_load=seconds(20), default_service=seconds(5))
    played = play(origin, burst((A, B, C), service=seconds(5)), timings, until=Instant(seconds(7200)), follow=follow)
    report = played.report

    assert report.node.rejected == {}
    assert report.node.load_fraction <= 0.5
    assert min(model.served for model in report.models.values()) > 50


@pytest.mark.parametrize("switches", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_random_switches_leave_every_counter_flat(switches: int) -> None:
    chance = random.Random(10_000)
    numbers = itertools.count(2)
    last = A

    def follow(ended: RequestEnded) -> Event | None:
        nonlocal last
        number = next(numbers)
        last = chance.choice([name for name in (A, B, C) if name != last])
        return RequestArrived(ended.at, RequestId(number), last) if number <= switches else None

    played = play(one_slot("a", "b", "c"), first(A), FAST, until=Instant(seconds(20_000)), follow=follow, brief=True)
    view = played.scheduler.view()

    assert (played.report.node.served, played.report.node.loads) == (switches, switches)
    assert (played.most_alive, played.most_open) == (1, 1)
    assert len(view.instances) == 1
    assert all(len(model.story) <= 100 for model in view.models)
    assert len(pickle.dumps(played.scheduler)) < 100_000


def test_requests_around_the_idle_limit_are_all_served() -> None:
    chance = random.Random(14)
    settings = SchedulingSettings(idle_unload=seconds(1))
    numbers = itertools.count(2)

    def follow(ended: RequestEnded) -> Event | None:
        number = next(numbers)
        later = Instant(ended.at + seconds(chance.uniform(0.9, 1.2)))
        return RequestArrived(later, RequestId(number), A) if number <= 500 else None

    played = play(one_slot("a", settings=settings), first(A), FAST, until=Instant(seconds(3600)), follow=follow)

    assert (played.report.node.served, played.report.node.rejected) == (500, {})
    assert 1 < played.report.node.loads < 500


def test_a_tenant_that_saturates_the_node_does_not_starve_another() -> None:
    spec = replace(plain("a"), max_queue=64, max_wait=seconds(300))
    origin = Origin(topology(1), catalog(spec, replace(spec, name=B), settings=SchedulingSettings()))
    flood = ping_pong([A], 1200, gap_s=0.5, service=seconds(2))
    quiet = burst([B], at_s=100, service=seconds(2))
    played = play(origin, merged(flood, quiet), replace(SLOW, default_load=seconds(20)), until=Instant(seconds(1200)))

    assert played.report.models[B].served == 1
    assert played.report.models[B].max_wait_s <= 120 + 2 + 3 + 20 + 1
