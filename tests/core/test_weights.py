"""Fetch first, evict late: when a model whose weights are not here is placed, and what the others notice of it."""

from typing import Any

import pytest

from swapd.core import events as ev
from swapd.core.catalog import ModelSpec, Source
from swapd.core.commands import Evicted, FetchWeights, LoadFinished, Start, Transitioned
from swapd.core.ids import SECOND, Bytes, ModelName, seconds
from swapd.core.reasons import FetchFailure, Rejection, State, WaitingFor
from tests.core.driver import World, spec


def far(name: str, gpus: int = 1, *, fetch: float = 120, load: float = 10, wait: float = 900, **more: Any) -> ModelSpec:
    """Return a model whose weights come from elsewhere."""
    return spec(name, gpus, load=load, fetched=True, fetch_estimate=seconds(fetch), max_wait=seconds(wait), **more)


def at(world: World, kind: Any, model: str) -> list[float]:
    """Return when commands of a kind were given for a model."""
    given = [(when, c) for when, c in world.log if isinstance(c, kind)]
    return [when for when, c in given if (c.spec.name if isinstance(c, Start) else c.model) == model]


def test_residents_serve_on_during_a_six_minute_fetch_and_leave_for_its_last_stretch() -> None:
    world = World([far("a"), spec("b", load=10)], gpus=1)
    world.store.remote("a", fetch=360)
    for second in range(0, 370, 20):
        world.request("b", at=second, service=1)
    a = world.request("a", at=50)
    world.run(800)
    assert at(world, Evicted, "b")[0] == pytest.approx(50 + 360 - 3, abs=0.001)
    assert all(asked.waited == 0 for asked in world.asked.values() if asked.model == "b" and 10 < asked.arrived < 400)
    assert a.waited == pytest.approx(360 + 10, abs=0.001)


def test_the_end_of_a_fetch_overlaps_with_drain_stop_and_release() -> None:
    world = World([far("a"), spec("b", load=10)], gpus=1, drain_after=seconds(5))
    for second in range(0, 200, 10):
        world.request("b", at=second, service=15)
    world.store.remote("a", fetch=100)
    a = world.request("a", at=60)
    world.run(500)
    assert at(world, FetchWeights, "a") == [60]
    drains = [when for when, c in world.log if isinstance(c, Transitioned) and c.after is State.DRAINING]
    assert 60 + 100 - 15 - 3 - 2 <= drains[0] < 160
    assert at(world, Start, "a")[0] < 160 + 15 + 3
    assert a.waited < 100 + 10 + 15 + 3


def test_a_fetch_holds_neither_a_load_slot_nor_a_gpu_nor_the_reservation() -> None:
    world = World(
        [far("a"), spec("b", load=10), spec("c", load=10)], gpus=2, max_concurrent_loads=1, drain_after=seconds(20)
    )
    world.store.remote("a", fetch=300)
    world.request("a", at=0)
    waits = [world.request(name, at=second) for second, name in ((10, "b"), (30, "c"), (50, "b"))]
    world.run(250)
    assert [asked.waited for asked in waits] == [10, 10, 0]
    assert (world.core.view().loads_running, world.core.view().reservation) == (0, None)
    assert world.model("a").queued == {WaitingFor.WEIGHTS: 1}


def test_with_weights_at_hand_a_model_is_placed_at_once() -> None:
    world = World([far("a")], gpus=1)
    world.store.put("a", at=0)
    a = world.request("a", at=1)
    world.run(100)
    assert (a.waited, at(world, FetchWeights, "a")) == (10, [])


def test_what_waits_for_a_fetch_is_told_by_name_and_then_what_else_it_waits_for() -> None:
    world = World([far("a"), spec("b", load=10)], gpus=1)
    world.store.remote("a", fetch=60)
    world.request("b", at=0, service=70)
    world.request("a", at=20)
    seen = []
    for moment in (30, 79, 81, 84):
        world.run(moment)
        seen.append(next(iter(world.model("a").queued), None))
    assert seen == [WaitingFor.WEIGHTS, WaitingFor.ROOM, WaitingFor.VICTIMS, WaitingFor.LOAD]


def test_a_fetch_that_falls_silent_near_its_end_gives_its_room_back() -> None:
    world = World([far("a"), spec("b", load=10)], gpus=1)
    world.store.remote("a", fetch=60, silent_after=59)
    world.request("b", at=0)
    a = world.request("a", at=30)
    world.run(95)
    assert world.model("a").instance is not None
    assert world.model("a").queued == {WaitingFor.WEIGHTS: 1}
    b = world.request("b", at=100)
    world.run(200)
    given_up = [c.why for _, c in world.log if isinstance(c, Transitioned) and c.after is State.GONE and c.model == "a"]
    assert len(given_up) == 1
    assert "its weights" in given_up[0]
    assert b.granted
    world.store.finish("a", 210)
    world.run(400)
    assert a.granted


def test_a_booked_model_without_an_end_of_its_fetch_is_placed_again_only_with_its_weights() -> None:
    world = World([far("a", fetch=2)], gpus=1, release_timeout=seconds(30))
    world.store.remote("a", fetch=2, silent_after=0, progress=False)
    a = world.request("a", at=0)
    world.run(100)
    books = [when for when, c in world.log if isinstance(c, Transitioned) and c.before is None]
    assert books == [0]
    assert world.model("a").instance is None
    world.store.finish("a", 110)
    world.run(200)
    assert a.waited == 110 + 10


def test_a_copy_that_is_deleted_while_room_is_made_is_fetched_again_first() -> None:
    world = World([far("a"), spec("b", load=10)], gpus=1)
    world.engines["b"].unload = 20
    world.store.put("a", at=0)
    world.store.remote("a", fetch=100)
    world.request("b", at=0)
    a = world.request("a", at=60)
    world.store.delete("a", at=65)
    world.run(400)
    assert at(world, FetchWeights, "a") == [65]
    assert a.waited == 5 + 100 + 10


def test_a_load_goes_on_although_its_copy_is_deleted() -> None:
    world = World([far("a")], gpus=1)
    world.store.put("a", at=0)
    a = world.request("a", at=0)
    world.store.delete("a", at=5)
    world.run(100)
    assert (a.waited, at(world, FetchWeights, "a")) == (10, [])


@pytest.mark.parametrize(("told", "expected"), [(False, 120 + 10), (True, 50 + 10)])
def test_who_waits_is_told_an_eta_with_the_rest_of_the_fetch(told: bool, expected: float) -> None:
    world = World([far("a", max_queue=1)], gpus=1)
    world.store.remote("a", fetch=100, progress=told)
    world.request("a", at=0)
    late = world.request("a", at=50.5 if told else 0)
    world.run(60)
    assert late.rejected is not None
    assert late.rejected[1].reason is Rejection.QUEUE_FULL
    assert late.rejected[1].retry_after == pytest.approx(seconds(expected), rel=0.02)


def test_the_first_fetch_after_a_restart_is_reckoned_from_what_earlier_runs_have_measured() -> None:
    world = World([far("a", fetch=1, wait=50)], gpus=1)
    world.run(0)
    earlier = ((Bytes(500_000), seconds(1)), (Bytes(1_000_000), seconds(90)))
    world.post(ev.WeightsCached(world.now, {ModelName("a"): Bytes(1_000_000)}, earlier))
    world.post(ev.WeightsCached(world.now, {}))
    a = world.request("a", at=1)
    world.run(1)
    assert a.rejected is not None
    expected = (90 + 1 / 2) / (1 + 0.5 / 2) + 10
    assert a.rejected[1].reason is Rejection.ETA_EXCEEDS_MAX_WAIT
    assert a.rejected[1].retry_after == pytest.approx(seconds(expected))


def test_room_and_fetch_count_side_by_side_in_an_eta() -> None:
    world = World([far("a", fetch=20, max_queue=0), spec("b", load=200, max_wait=seconds(900))], gpus=1)
    world.request("b", at=0)
    a = world.request("a", at=50)
    world.run(60)
    assert a.rejected is not None
    assert a.rejected[1].retry_after == seconds(150 + 3 + 10)


def test_a_request_refused_for_its_eta_has_the_weights_fetched_for_the_next_one() -> None:
    world = World([far("a", wait=60)], gpus=1)
    world.store.remote("a", fetch=120)
    known = {(ModelName("a"), Source.REMOTE): (seconds(130),)}
    world.plan(0, lambda: ev.LoadTimesKnown(world.now, known))
    first = world.request("a", at=0)
    second = world.request("a", at=5)
    later = world.request("a", at=100)
    world.run(300)
    assert first.rejected is not None
    assert first.rejected[1].reason is Rejection.ETA_EXCEEDS_MAX_WAIT
    assert second.rejected is not None
    assert [c.ahead for c in world.of(FetchWeights)] == [True, False]
    assert later.waited == 20 + 10


def test_a_mere_guess_of_a_fetch_refuses_nobody() -> None:
    world = World([far("a", fetch=120, wait=60)], gpus=1)
    world.store.remote("a", fetch=30, progress=False)
    waiting = [world.request("a", at=second) for second in (0, 5)]
    world.run(300)
    assert [asked.waited for asked in waiting] == [40, 35]


def test_who_waits_on_a_mere_guess_is_refused_after_its_limit_while_the_fetch_goes_on() -> None:
    world = World([far("a", fetch=5, wait=60)], gpus=1)
    world.store.remote("a", fetch=200, progress=False)
    a = world.request("a", at=0)
    later = world.request("a", at=190)
    world.run(300)
    assert a.rejected is not None
    assert (a.rejected[0], a.rejected[1].reason) == (60, Rejection.WAIT_TIMEOUT)
    assert later.waited == 10 + 10


def test_a_fetch_that_tells_how_it_gets_on_may_refuse() -> None:
    world = World([far("a", fetch=5, wait=60)], gpus=1)
    world.store.remote("a", fetch=200)
    world.request("a", at=0)
    late = world.request("a", at=10.5)
    world.run(20)
    assert late.rejected is not None
    assert (late.rejected[0], late.rejected[1].reason) == (10.5, Rejection.ETA_EXCEEDS_MAX_WAIT)


def test_a_mere_guess_hides_nothing_else_that_takes_too_long() -> None:
    world = World([far("a", fetch=5, wait=60), spec("b", load=200)], gpus=1)
    world.request("b", at=0)
    a = world.request("a", at=10)
    world.run(20)
    assert a.rejected is not None
    assert (a.rejected[1].reason, a.rejected[1].retry_after) == (
        Rejection.ETA_EXCEEDS_MAX_WAIT,
        seconds(190 + 3 + 10),
    )


def test_a_measured_bandwidth_and_a_known_size_tell_how_long_a_fetch_takes() -> None:
    world = World([far("a"), far("b", fetch=5)], gpus=2)
    world.store.remote("a", fetch=40)
    world.store.remote("b", fetch=40)
    world.request("a", at=0)
    world.store.put("b", at=1)
    world.store.delete("b", at=60)
    world.order(ev.PrefetchOrdered, 61, model=ModelName("b"))
    world.run(61)
    fetch = world.model("b").fetch
    assert fetch is not None
    assert fetch.remaining == seconds(40)


def test_what_remote_loads_took_beyond_local_ones_is_expected_of_the_next_fetch() -> None:
    world = World([far("a", fetch=5)], gpus=1)
    times = {
        (ModelName("a"), Source.REMOTE): (seconds(90), seconds(100), seconds(110)),
        (ModelName("a"), Source.CACHE): (seconds(20),),
    }
    world.plan(0, lambda: ev.LoadTimesKnown(world.now, times))
    world.run(0)
    assert world.model("a").load_estimate == seconds(20)
    assert world.model("a").load_times[Source.REMOTE] == seconds(100)
    assert world.core.standings()[ModelName("a")].refetch == seconds(80)


def test_losing_a_resident_whose_copy_is_gone_costs_the_fetch_too() -> None:
    world = World([far("a", fetch=500), spec("b", load=30), spec("c", load=10)], gpus=2, protect=seconds(0))
    world.store.put("a", at=0)
    for name in ("a", "b"):
        world.request(name, at=0)
    world.store.delete("a", at=50)
    world.request("a", at=60)
    world.request("b", at=61)
    world.request("c", at=100)
    world.run(200)
    assert [model for _, model in world.evictions()] == ["b"]


def test_the_view_tells_how_far_a_fetch_is() -> None:
    world = World([far("a")], gpus=1)
    world.store.remote("a", fetch=100, queued=5)
    world.request("a", at=0)
    world.run(1)
    queued = world.model("a").fetch
    assert queued is not None
    assert (queued.running, queued.since, queued.remaining) == (False, 0, seconds(120))
    world.run(55)
    fetch = world.model("a").fetch
    assert fetch is not None
    assert (fetch.running, fetch.done, fetch.total) == (True, 500_000, 1_000_000)
    assert fetch.remaining == seconds(50)
    world.run(300)
    assert (world.model("a").fetch, world.model("a").cached_bytes) == (None, 1_000_000)


def test_a_fetch_that_waits_for_the_disk_says_so_to_who_waits_too_long() -> None:
    world = World([far("a", wait=200)], gpus=1)
    world.store.remote("a", fetch=100, silent_after=0)
    a = world.request("a", at=0)
    world.plan(10, lambda: ev.FetchWaits(world.now, ModelName("a"), "the cache is full of pinned copies", Bytes(0)))
    world.run(300)
    assert a.rejected is not None
    assert a.rejected[0] == 200
    assert a.rejected[1].detail.endswith("its weights cannot be fetched yet: the cache is full of pinned copies")


def test_a_reservation_is_given_up_when_the_weights_prove_to_be_far_off() -> None:
    world = World([far("a", fetch=10), spec("b", load=10)], gpus=1, drain_after=seconds(5), protect=seconds(0))
    world.store.remote("a", fetch=100, silent_after=0)
    world.request("b", at=0, service=30)
    world.request("b", at=45, service=500)
    world.request("a", at=50)
    world.run(56)
    assert world.core.view().reservation is not None
    assert world.model("a").queued == {WaitingFor.VICTIMS: 1}
    done, total = Bytes(1), Bytes(1_000_000)
    world.plan(57, lambda: ev.FetchProgressed(world.now, ModelName("a"), done, total, rate=1_000.0))
    world.run(57)
    assert world.core.view().reservation is None
    assert world.model("a").queued == {WaitingFor.WEIGHTS: 1}
    assert world.residents() == ["b"]


def test_who_waits_too_long_for_a_fetch_is_told_how_long_it_still_takes() -> None:
    world = World([far("a", wait=120, fetch=20)], gpus=1)
    world.store.remote("a", fetch=200)
    a = world.request("a", at=0)
    world.run(130)
    assert a.rejected is not None
    assert a.rejected[1].detail == (
        "waited 120 s for a; its weights are being fetched, and it is expected to take 90 s more"
    )


@pytest.mark.parametrize(
    ("failure", "permanent"),
    [
        (FetchFailure.REFUSED, True),
        (FetchFailure.TOO_LARGE, True),
        (FetchFailure.CORRUPT, True),
        (FetchFailure.UNREACHABLE, False),
        (FetchFailure.DISK, False),
    ],
)
def test_a_fetch_that_fails_is_told_to_everybody_who_waits(failure: FetchFailure, permanent: bool) -> None:
    world = World([far("a")], gpus=1)
    world.store.remote("a", fetch=10, fails=failure)
    waiting = [world.request("a", at=second) for second in (0, 5)]
    late = world.request("a", at=12)
    world.run(15)
    for asked in waiting:
        assert asked.rejected is not None
        assert asked.rejected[1].detail == f"the source of a says: {failure}"
        assert (asked.rejected[1].reason, asked.rejected[1].permanent) == (Rejection.LOAD_FAILED, permanent)
    assert late.rejected is not None
    assert late.rejected[1].reason is Rejection.COOLING_DOWN
    assert (late.rejected[1].retry_after is None) is permanent


def test_a_booked_model_whose_fetch_fails_leaves_its_room() -> None:
    world = World([far("a"), spec("b", load=10)], gpus=1)
    world.store.remote("a", fetch=20, fails=FetchFailure.UNREACHABLE)
    world.request("b", at=0)
    a = world.request("a", at=30)
    world.run(49)
    assert world.model("a").instance is not None
    b = world.request("b", at=50.5)
    world.run(100)
    assert a.rejected is not None
    assert b.granted
    assert not world.of(LoadFinished, "a")


def test_a_failed_fetch_disturbs_nobody_who_is_served() -> None:
    world = World([far("a", pinned=True, concurrency=1)], gpus=1)
    world.store.put("a", at=0)
    world.store.remote("a", fetch=5, fails=FetchFailure.REFUSED)
    world.request("a", at=20, service=60)
    waits = world.request("a", at=21)
    world.store.delete("a", at=30)
    world.run(200)
    assert waits.waited == 59
    assert world.model("a").last_error == "the source of a says: refused"


def test_standings_tell_what_is_held_pinned_and_worth_how_much() -> None:
    world = World([far("a"), far("b", pinned=True, fetch=77), spec("c")], gpus=2)
    world.store.remote("b", fetch=50)
    world.request("a", at=10)
    world.run(10)
    told = world.core.standings(seconds(10))  # type: ignore[arg-type]
    assert list(told) == ["a", "b"]
    assert (told[ModelName("a")].held, told[ModelName("a")].pinned, told[ModelName("a")].frequency) == (
        True,
        False,
        1.0,
    )
    assert (told[ModelName("a")].last_used, told[ModelName("b")].last_used) == (10 * SECOND, None)
    assert (told[ModelName("b")].held, told[ModelName("b")].pinned, told[ModelName("b")].refetch) == (
        True,
        True,
        seconds(77),
    )
