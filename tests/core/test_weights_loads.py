"""Loads of weights that come from elsewhere: where they came from, what went on when, and copies that are damaged."""

import pytest

from swapd.core import events as ev
from swapd.core.catalog import Source
from swapd.core.commands import (
    FetchWeights,
    Grant,
    LoadFinished,
    RefetchWeights,
    Start,
    StopWarming,
    VerifyWeights,
    WarmWeights,
)
from swapd.core.ids import SECOND, ModelName, seconds
from swapd.core.reasons import FetchFailure, LoadFailure, Rejection, Stage, WaitingFor
from tests.core.driver import World, spec
from tests.core.test_weights import at, far


def shown(note: LoadFinished) -> list[tuple[str, float, float]]:
    """Return the timeline of a load in seconds."""
    return [(span.stage.value, span.begin / SECOND, span.end / SECOND) for span in note.timeline]


def staged(note: LoadFinished) -> dict[str, float]:
    """Return the stages of a load in seconds, without those that took no time."""
    return {stage.value: took / SECOND for stage, took in note.stages.items() if took}


def test_a_first_load_is_remote_and_the_next_one_comes_from_the_cache() -> None:
    world = World([far("a"), spec("b", load=10)], gpus=1)
    world.store.remote("a", fetch=100)
    world.request("a", at=0)
    world.request("b", at=150)
    world.request("a", at=200)
    world.run(300)
    first, second = world.of(LoadFinished, "a")
    assert (first.source, first.load_time) == (Source.REMOTE, seconds(110))
    assert (second.source, second.load_time) == (Source.PAGE_CACHE, seconds(10))
    assert world.model("a").load_times == {Source.PAGE_CACHE: seconds(10), Source.REMOTE: seconds(110)}


@pytest.mark.parametrize(
    ("read", "whole", "expected"),
    [(2, True, Source.PAGE_CACHE), (2, False, Source.CACHE), (5, True, Source.CACHE)],
)
@pytest.mark.parametrize("kind", ["fetched", "local"])
def test_only_what_was_whole_in_memory_before_the_start_comes_from_there(
    read: float, whole: bool, expected: Source, kind: str
) -> None:
    model = far("a") if kind == "fetched" else spec("a", load=10, local_weights=True)
    world = World([model, spec("b", load=10)], gpus=1)
    world.store.put("a", at=0)
    world.store.remote("a", read=read, whole=whole)
    world.request("b", at=0)
    world.request("a", at=40)
    world.run(100)
    (load,) = world.of(LoadFinished, "a")
    assert load.source is expected
    assert at(world, WarmWeights, "a") == [40]


def test_weights_that_nobody_keeps_track_of_come_from_the_cache_and_are_not_read() -> None:
    world = World([spec("a", load=10)], gpus=1)
    world.request("a", at=0)
    world.run(50)
    assert [c.source for c in world.of(LoadFinished)] == [Source.CACHE]
    assert not world.of(WarmWeights)


def test_reading_goes_on_while_the_engine_loads_and_ends_with_the_load() -> None:
    world = World([far("a")], gpus=1)
    world.store.put("a", at=0)
    world.store.remote("a", read=60)
    world.request("a", at=1)
    world.run(100)
    assert (at(world, WarmWeights, "a"), at(world, StopWarming, "a")) == ([1], [11])


def test_reading_ends_when_nobody_waits_any_more_and_begins_again_with_the_next_load() -> None:
    world = World([far("a"), spec("b", load=10)], gpus=1)
    world.engines["b"].unload = 20
    world.store.put("a", at=0)
    world.store.remote("a", read=15)
    world.request("b", at=0)
    world.leave(world.request("a", at=50), at=55)
    world.request("a", at=60)
    world.run(200)
    assert at(world, StopWarming, "a") == [55]
    assert at(world, WarmWeights, "a") == [50, 60]


def test_a_reading_that_was_ended_is_ordered_again_once_it_is_answered() -> None:
    world = World([far("a"), spec("b", load=10)], gpus=1)
    world.engines["b"].unload = 20
    world.store.put("a", at=0)
    world.request("b", at=0)
    world.run(49)
    world.store.carry_out = lambda _command, _now: None  # type: ignore[method-assign]
    gone = world.request("a", at=50)
    world.leave(gone, at=51)
    world.request("a", at=52)
    world.run(53)
    assert at(world, WarmWeights, "a") == [50]
    world.plan(54, lambda: ev.WeightsWarmed(world.now, ModelName("a"), read=1, present=0, whole=False))  # type: ignore[arg-type]
    world.run(55)
    assert at(world, WarmWeights, "a") == [50, 54]


def test_the_timeline_of_a_remote_load_shows_what_went_on_side_by_side() -> None:
    world = World([far("a"), spec("b", load=10)], gpus=1)
    world.store.remote("a", fetch=100, queued=4)
    world.request("b", at=0)
    world.request("a", at=20)
    world.run(200)
    (load,) = world.of(LoadFinished, "a")
    assert shown(load) == [
        ("queued", 0, 101),
        ("fetch", 4, 104),
        ("stop", 101, 104),
        ("spawn", 104, 106.5),
        ("page_cache", 104, 106),
        ("load", 106.5, 111.5),
        ("warmup", 111.5, 114),
    ]
    assert staged(load) == {"fetch": 101, "stop": 3, "spawn": 2.5, "load": 5, "warmup": 2.5}
    assert load.duration == seconds(13)
    (granted,) = world.of(Grant, "a")
    assert granted.stages[Stage.FETCH] == seconds(101)
    assert granted.stages[Stage.QUEUED] == 0


def test_a_load_that_waits_for_room_after_its_fetch_is_not_said_to_wait_for_the_fetch() -> None:
    world = World([far("a"), spec("b", load=10)], gpus=1)
    world.store.remote("a", fetch=20)
    world.request("b", at=0, service=90)
    world.request("a", at=30)
    world.run(200)
    (load,) = world.of(LoadFinished, "a")
    assert shown(load)[:3] == [("queued", 0, 70), ("fetch", 0, 20), ("stop", 70, 73)]
    assert staged(load)["fetch"] == pytest.approx(17)
    assert load.load_time == seconds(30)


def test_a_fetch_ends_when_its_copy_is_here_although_that_is_answered_later() -> None:
    world = World([far("a")], gpus=1)
    world.store.remote("a", fetch=30, silent_after=0)
    world.request("a", at=0)
    world.store.put("a", at=30)
    world.store.finish("a", 33)
    world.run(100)
    (load,) = world.of(LoadFinished, "a")
    assert shown(load)[:3] == [("queued", 0, 30), ("fetch", 0, 30), ("spawn", 30, 32.5)]
    assert (load.source, load.load_time) == (Source.REMOTE, seconds(30 + 10))


def test_a_load_whose_room_was_free_first_waits_for_the_last_stretch_of_the_fetch() -> None:
    world = World([far("a")], gpus=1)
    world.store.remote("a", fetch=10)
    world.request("a", at=0)
    world.run(8)
    assert world.model("a").queued == {WaitingFor.WEIGHTS: 1}
    assert world.model("a").instance is not None
    world.run(50)
    (load,) = world.of(LoadFinished, "a")
    assert staged(load) == {"fetch": 10, "spawn": 2.5, "load": 5, "warmup": 2.5}
    assert load.duration == seconds(10 + 3)


def test_a_pin_without_waiters_counts_its_timeline_from_the_booking() -> None:
    world = World([far("a", pinned=True)], gpus=1)
    world.store.remote("a", fetch=50)
    world.run(0)
    world.run(100)
    (load,) = world.of(LoadFinished, "a")
    assert (load.source, load.load_time) == (Source.REMOTE, seconds(60))
    assert shown(load)[0] == ("fetch", 0, 3)


def damaged(failure: LoadFailure, *, intact: bool) -> World:
    """Return a node with a copy from an earlier run on which the engine fails."""
    world = World([far("a", wait=300)], gpus=1)
    world.store.put("a", at=0)
    world.store.remote("a", fetch=20, intact=intact, verify=5)
    world.engines["a"].fails = failure
    return world


@pytest.mark.parametrize("failure", [LoadFailure.EXITED, LoadFailure.WARMUP])
def test_a_damaged_copy_is_fetched_anew_while_who_waits_goes_on_waiting(failure: LoadFailure) -> None:
    world = damaged(failure, intact=False)
    a = world.request("a", at=0)
    world.run(14)
    assert at(world, VerifyWeights, "a") == [10]
    assert world.model("a").queued == {WaitingFor.WEIGHTS: 1}
    world.engines["a"].fails = None
    world.run(100)
    assert at(world, RefetchWeights, "a") == [15]
    assert not world.of(FetchWeights)
    assert a.waited == 10 + 5 + 20 + 10
    assert [c.source for c in world.of(LoadFinished)] == [Source.CACHE, Source.REMOTE]
    assert world.model("a").consecutive_failures == 0


def test_a_fresh_copy_that_fails_too_is_told_so_and_not_fetched_again() -> None:
    world = damaged(LoadFailure.EXITED, intact=False)
    a = world.request("a", at=0)
    world.run(100)
    assert a.rejected is not None
    assert a.rejected[0] == 10 + 5 + 20 + 10
    assert a.rejected[1].reason is Rejection.LOAD_FAILED
    assert a.rejected[1].detail == (
        "a says: boom; the copy of its weights was damaged, and with a fresh one it failed, too"
    )
    assert world.model("a").consecutive_failures == 1
    assert len(world.of(RefetchWeights)) == 1


def test_an_intact_copy_is_cleared_and_the_failure_counts_as_any_other() -> None:
    world = damaged(LoadFailure.EXITED, intact=True)
    a = world.request("a", at=0)
    again = world.request("a", at=30)
    world.run(100)
    assert a.rejected is not None
    assert (a.rejected[0], a.rejected[1].detail) == (15, "a says: boom")
    assert world.model("a").consecutive_failures == 2
    assert again.rejected is not None
    assert again.rejected[0] == 40, "verified once, the copy is not looked at again"
    assert at(world, VerifyWeights, "a") == [10]


@pytest.mark.parametrize("failure", [LoadFailure.DEADLINE, LoadFailure.STALLED, LoadFailure.FOREIGN_SERVER])
def test_failures_that_no_damage_explains_put_no_copy_in_doubt(failure: LoadFailure) -> None:
    world = damaged(failure, intact=False)
    a = world.request("a", at=0)
    world.run(50)
    assert a.rejected is not None
    assert a.rejected[0] == 10
    assert not world.of(VerifyWeights)


def test_a_permanent_failure_puts_no_copy_in_doubt() -> None:
    world = World([far("a")], gpus=1)
    world.store.put("a", at=0)
    world.request("a", at=0)
    world.fact(ev.LoadFailed, "a", 2, failure=LoadFailure.SPAWN, detail="no such file", permanent=True)
    world.run(5)
    assert not world.of(VerifyWeights)


def test_a_copy_that_has_just_been_fetched_is_not_in_doubt_but_is_after_a_success() -> None:
    world = World([far("a"), spec("b", load=10)], gpus=1)
    world.store.remote("a", fetch=20)
    world.engines["a"].fails = LoadFailure.EXITED
    first = world.request("a", at=0)
    world.run(35)
    assert first.rejected is not None
    assert not world.of(VerifyWeights)
    world.engines["a"].fails = None
    world.request("a", at=60)
    world.request("b", at=100)
    world.run(130)
    world.engines["a"].fails = LoadFailure.EXITED
    world.request("a", at=150)
    world.run(200)
    assert at(world, VerifyWeights, "a") == [163]


def test_what_a_verification_finds_of_an_old_configuration_matters_to_nobody() -> None:
    world = damaged(LoadFailure.EXITED, intact=False)
    a = world.request("a", at=0)
    world.engines["a"].progress = None
    world.reconfigure(far("a", wait=300, revision="2"), at=12)
    world.run(14)
    world.engines["a"].fails = None
    world.run(100)
    assert not world.of(RefetchWeights)
    assert at(world, FetchWeights, "a") == [15]
    assert a.waited == 15 + 20 + 10
    assert world.model("a").consecutive_failures == 0


def test_who_waits_too_long_while_a_copy_is_verified_is_told_why() -> None:
    world = damaged(LoadFailure.EXITED, intact=True)
    world.reconfigure(far("a", wait=20), at=0)
    world.store.remote("a", verify=50)
    a = world.request("a", at=0.5)
    world.run(25)
    assert a.rejected is not None
    assert a.rejected[1].reason is Rejection.WAIT_TIMEOUT
    assert "its weights are being verified" in a.rejected[1].detail


def test_a_refetch_that_fails_is_told_with_its_own_sentence() -> None:
    world = damaged(LoadFailure.EXITED, intact=False)
    world.store.remotes["a"].fails = FetchFailure.UNREACHABLE
    a = world.request("a", at=0)
    world.run(100)
    assert a.rejected is not None
    assert (a.rejected[0], a.rejected[1].detail) == (35, "the source of a says: unreachable")


def test_a_damaged_copy_of_a_node_that_leaves_service_is_not_fetched_anew() -> None:
    world = damaged(LoadFailure.EXITED, intact=False)
    world.request("a", at=0)
    world.order(ev.NodeDrainOrdered, 12, timeout=None)
    world.run(100)
    assert not world.of(RefetchWeights)
    assert not world.of(FetchWeights)
    assert at(world, Start, "a") == [0]
