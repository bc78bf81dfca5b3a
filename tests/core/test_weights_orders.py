"""Who has weights fetched, and what ends a fetch: requests, operators, pins, drains, another configuration."""

from dataclasses import replace
from typing import Any

import pytest

from swapd.core import events as ev
from swapd.core.catalog import Mode, Source
from swapd.core.commands import CancelFetch, Command, FetchEnded, FetchWeights, KeepWeights, LoadFinished, Start
from swapd.core.ids import Bytes, Duration, ModelName, RequestId, seconds
from swapd.core.reasons import FetchFailure, Rejection
from tests.core.driver import World, catalog, spec
from tests.core.test_weights import far

A = ModelName("a")


def fetches(world: World) -> list[tuple[float, bool]]:
    """Return when fetches were ordered, and whether ahead."""
    return [(when, c.ahead) for when, c in world.log if isinstance(c, FetchWeights)]


def ends(world: World) -> list[float]:
    return [when for when, c in world.log if isinstance(c, CancelFetch)]


def drain(world: World, at: float) -> int:
    return world.order(ev.NodeDrainOrdered, at, timeout=None)


def test_a_fetch_that_nobody_wants_any_more_goes_on_and_serves_the_next_request() -> None:
    world = World([far("a")], gpus=1)
    world.store.remote("a", fetch=100)
    world.leave(world.request("a", at=0), at=10)
    later = world.request("a", at=200)
    world.run(300)
    assert fetches(world) == [(0, False)]
    assert ends(world) == []
    assert later.waited == 10
    assert next(iter(world.asked.values())).granted == []


def test_a_request_that_comes_back_does_not_order_the_fetch_again() -> None:
    world = World([far("a")], gpus=1)
    world.store.remote("a", fetch=100)
    for second in range(0, 40, 10):
        world.leave(world.request("a", at=second), at=second + 5)
    world.request("a", at=60)
    world.run(300)
    assert fetches(world) == [(0, False)]


def test_a_prefetch_is_answered_when_the_weights_are_here_and_nothing_is_loaded() -> None:
    world = World([far("a")], gpus=1)
    world.store.remote("a", fetch=40)
    first = world.order(ev.PrefetchOrdered, 0, model=A)
    second = world.order(ev.PrefetchOrdered, 10, model=A)
    third = world.order(ev.PrefetchOrdered, 50, model=A)
    world.run(100)
    assert fetches(world) == [(0, True)]
    assert [world.answers[n][0] for n in (first, second, third)] == [40, 40, 50]
    assert all(world.answers[n][1].ok for n in (first, second, third))
    assert world.loads() == 0


def test_a_prefetch_that_fails_is_answered_with_the_sentence_and_may_be_tried_again_at_once() -> None:
    world = World([far("a")], gpus=1)
    remote = world.store.remote("a", fetch=10, fails=FetchFailure.REFUSED)
    first = world.order(ev.PrefetchOrdered, 0, model=A)
    world.run(20)
    remote.fails = None
    second = world.order(ev.PrefetchOrdered, 21, model=A)
    world.run(50)
    assert (world.answers[first][1].ok, world.answers[first][1].reason) == (False, Rejection.LOAD_FAILED)
    assert world.answers[first][1].detail == "the source of a says: refused"
    assert (world.answers[second][0], world.answers[second][1].ok) == (31, True)
    ended = world.of(FetchEnded)
    assert [(c.failure, c.fetched) for c in ended] == [(FetchFailure.REFUSED, 900_000), (None, 1_000_000)]


def test_a_prefetch_of_weights_that_are_not_fetched_or_of_no_model_is_answered_at_once() -> None:
    world = World([spec("a")], gpus=1)
    plain = world.order(ev.PrefetchOrdered, 0, model=A)
    unknown = world.order(ev.PrefetchOrdered, 0, model=ModelName("x"))
    world.run(0)
    assert world.answers[plain][1].ok
    assert world.answers[unknown][1].reason is Rejection.UNKNOWN_MODEL


def test_a_request_makes_a_fetch_ahead_go_before_others() -> None:
    world = World([far("a")], gpus=1)
    world.store.remote("a", fetch=100)
    world.order(ev.PrefetchOrdered, 0, model=A)
    a = world.request("a", at=30)
    world.run(200)
    assert fetches(world) == [(0, True), (30, False)]
    assert a.waited == 70 + 10


def test_pinned_models_have_their_weights_fetched_at_the_start_and_are_loaded_then() -> None:
    world = World([far("a", pinned=True), far("b")], gpus=2)
    world.store.remote("a", fetch=50)
    world.run(0)
    world.run(100)
    assert fetches(world) == [(0, True)]
    assert world.residents() == ["a"]
    assert next(when for when, c in world.log if isinstance(c, Start)) == 50


def test_a_pin_whose_source_does_not_answer_is_tried_again_after_its_cool_down() -> None:
    world = World([far("a", pinned=True)], gpus=1)
    remote = world.store.remote("a", fetch=5, fails=FetchFailure.UNREACHABLE)
    world.run(14)
    remote.fails = None
    world.run(40)
    assert [when for when, _ in fetches(world)] == [0, 15]
    assert world.residents() == ["a"]


def test_in_manual_mode_only_operators_have_weights_fetched() -> None:
    world = World([far("a", pinned=True), far("b")], gpus=2, mode=Mode.MANUAL)
    refused = world.request("b", at=0)
    world.run(5)
    assert fetches(world) == []
    assert refused.rejected is not None
    assert refused.rejected[1].reason is Rejection.MANUAL_MODE
    world.order(ev.PrefetchOrdered, 10, model=A)
    order = world.order(ev.LoadOrdered, 10, model=ModelName("b"))
    world.run(100)
    assert sorted(fetches(world)) == [(10, False), (10, True)]
    assert world.answers[order][1].ok
    assert world.residents() == ["b"]


def test_a_node_that_leaves_service_ends_its_fetches_and_begins_none() -> None:
    world = World([far("a"), far("b")], gpus=1)
    world.store.remote("a", fetch=100)
    waits = world.request("a", at=0)
    prefetch = world.order(ev.PrefetchOrdered, 5, model=ModelName("b"))
    drain(world, 10)
    late = world.order(ev.PrefetchOrdered, 20, model=A)
    world.run(30)
    assert ends(world) == [10, 10]
    assert waits.rejected is not None
    assert waits.rejected[1].reason is Rejection.DRAINING
    assert [world.answers[n][1].reason for n in (prefetch, late)] == [Rejection.DRAINING] * 2
    assert world.model("a").fetch is None
    world.order(ev.NodeUndrainOrdered, 40)
    world.request("a", at=50)
    world.run(60)
    assert fetches(world)[-1] == (50, False)


def test_a_node_back_in_service_waits_for_the_end_of_what_it_ended() -> None:
    world = World([far("a")], gpus=1)
    world.run(0)
    world.post(ev.PrefetchOrdered(world.now, RequestId(90), A))
    world.store.carry_out = lambda _command, _now: None  # type: ignore[method-assign]
    world.post(ev.NodeDrainOrdered(world.now, RequestId(91), timeout=None))
    world.post(ev.NodeUndrainOrdered(world.now, RequestId(92)))
    world.post(ev.PrefetchOrdered(world.now, RequestId(93), A))
    assert fetches(world) == [(0, True)]
    world.post(ev.FetchFailed(world.now, A, FetchFailure.CANCELLED, "cancelled"))
    assert fetches(world) == [(0, True), (0, True)]
    assert world.model("a").cooling_until is None


def test_a_fetch_that_ends_unasked_is_not_begun_again_at_once() -> None:
    world = World([far("a", pinned=True)], gpus=1)
    world.run(0)
    world.post(ev.FetchFailed(world.now, A, FetchFailure.CANCELLED, "the cache is closing"))
    assert world.model("a").cooling_until == seconds(10)
    assert len(fetches(world)) == 1


def test_removing_a_model_ends_its_fetch_and_refuses_who_waits() -> None:
    world = World([far("a"), spec("b")], gpus=1)
    world.store.remote("a", fetch=100)
    waits = world.request("a", at=0)
    order = world.order(ev.PrefetchOrdered, 1, model=A)
    world.reconfigure(at=10, remove=["a"])
    world.run(20)
    assert ends(world) == [10]
    assert waits.rejected is not None
    assert waits.rejected[1].reason is Rejection.UNKNOWN_MODEL
    assert world.answers[order][1].reason is Rejection.UNKNOWN_MODEL
    assert [m.model for m in world.core.view().models] == ["b"]


def test_another_source_ends_the_fetch_of_the_old_one_and_begins_that_of_the_new_one() -> None:
    world = World([far("a")], gpus=1)
    world.store.remote("a", fetch=100)
    waits = world.request("a", at=0)
    world.reconfigure(far("a", revision="2"), at=10)
    world.run(200)
    assert ends(world) == [10]
    assert fetches(world) == [(0, False), (10, False)]
    assert waits.waited == 10 + 100 + 10


def test_a_resident_of_an_old_configuration_serves_until_its_new_weights_are_here() -> None:
    world = World([far("a")], gpus=1)
    world.store.put("a", at=0)
    world.store.remote("a", fetch=100)
    world.request("a", at=0)
    world.reconfigure(far("a", revision="2"), at=50)
    world.store.delete("a", at=50.5)  # what is cached is not what is configured any more
    during = world.request("a", at=100)
    world.engines["a"].unload = 3
    world.run(49)
    world.request("a", at=49.9, service=1)
    world.run(400)
    assert fetches(world) == [(50.5, True)]
    assert during.waited == 0
    starts = [when for when, c in world.log if isinstance(c, Start)]
    assert starts == [0, 50.5 + 100 + 3]


def test_weights_that_are_local_now_end_the_fetch() -> None:
    world = World([far("a")], gpus=1)
    order = world.order(ev.PrefetchOrdered, 0, model=A)
    waits = world.request("a", at=1)
    world.reconfigure(spec("a", load=10, local_weights=True, revision="2"), at=5)
    world.run(50)
    assert ends(world) == [5]
    assert world.answers[order][1].ok
    assert waits.waited == 4 + 10


def test_copies_told_before_their_model_is_configured_are_known_then() -> None:
    world = World([spec("b")], gpus=1)
    world.store.put("a", at=0)
    world.reconfigure(far("a"), at=1)
    a = world.request("a", at=2)
    world.run(50)
    assert (a.waited, fetches(world)) == (10, [])


def test_a_copy_that_is_gone_again_as_soon_as_it_came_is_a_failure_like_others() -> None:
    world = World([far("a")], gpus=1)
    world.run(0)
    world.store.carry_out = lambda _command, _now: None  # type: ignore[method-assign]
    world.request("a", at=0)
    world.run(0)
    world.post(ev.WeightsFetched(world.now, A, fetched=world.store.cached.get(A, 5), took=seconds(1)))  # type: ignore[arg-type]
    assert world.asked[1].rejected is not None
    assert "gone again" in world.asked[1].rejected[1].detail


def test_a_copy_that_was_here_already_makes_no_load_remote() -> None:
    world = World([far("a")], gpus=1)
    world.run(0)
    world.store.carry_out = lambda _command, _now: None  # type: ignore[method-assign]
    world.request("a", at=0)
    world.run(0)
    world.post(ev.WeightsCached(world.now, {A: Bytes(5)}))
    world.post(ev.WeightsFetched(world.now, A, fetched=Bytes(0), took=Duration(0)))
    world.run(50)
    assert [c.source for c in world.of(LoadFinished)] == [Source.CACHE]


def test_a_fetch_that_ends_well_although_its_end_was_ordered_is_no_failure() -> None:
    world = World([far("a")], gpus=1)
    world.run(0)
    world.post(ev.PrefetchOrdered(world.now, RequestId(90), A))
    world.store.carry_out = lambda _command, _now: None  # type: ignore[method-assign]
    world.post(ev.CatalogChanged(world.now, catalog([far("a", revision="2")])))
    world.post(ev.WeightsFetched(world.now, A, fetched=Bytes(5), took=Duration(1)))
    assert fetches(world) == [(0, True), (0, True)]
    assert world.model("a").cooling_until is None


def test_the_cache_is_told_what_to_keep_before_it_is_used_and_only_when_that_changes() -> None:
    world = World([far("a"), far("b")], gpus=1)
    world.store.remote("a", fetch=20)
    world.request("a", at=0)
    world.request("a", at=5)
    world.request("b", at=100)
    world.run(80)
    world.order(ev.PinOrdered, 81, model=A, pinned=True)
    world.run(90)
    steps: dict[float, list[type[Command]]] = {}
    for when, command in world.log:
        steps.setdefault(when, []).append(type(command))
    told = [when for when, kinds in steps.items() if KeepWeights in kinds]
    assert told == [0, 81]
    assert all(steps[when][0] is KeepWeights for when in told)


@pytest.mark.parametrize(
    "fact",
    [
        lambda at: ev.FetchStarted(at, A),
        lambda at: ev.FetchWaits(at, A, "full", 0),
        lambda at: ev.FetchProgressed(at, A, 1, 2, 3.0),
        lambda at: ev.WeightsFetched(at, A, 1, 1),
        lambda at: ev.FetchFailed(at, A, FetchFailure.DISK, "no"),
        lambda at: ev.WeightsWarmed(at, A, 1, 0, whole=True),
        lambda at: ev.WeightsVerified(at, ModelName("x"), intact=True),
    ],
)
def test_facts_about_orders_that_were_never_given_are_stale(fact: Any) -> None:
    world = World([far("a")], gpus=1)
    world.run(0)
    world.post(fact(world.now))
    assert world.core.view().stale_facts == 1


def test_an_operators_look_at_a_copy_changes_nothing_by_itself() -> None:
    world = World([far("a")], gpus=1)
    world.store.put("a", at=0)
    world.run(0)
    assert world.post(ev.WeightsVerified(world.now, A, intact=True)) == ()


def test_a_spec_without_a_source_is_never_fetched_kept_or_told() -> None:
    world = World([replace(far("a"), fetched=False)], gpus=1)
    world.request("a", at=0, service=1)
    world.run(50)
    assert not world.of(FetchWeights)
    assert not world.of(KeepWeights)
    assert world.core.standings() == {}
    assert world.asked[1].granted
