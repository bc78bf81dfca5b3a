"""Models that share a copy of their weights: one place on the disk, one fetch, and nobody leaves for half of it."""

from typing import Any

from swapd.core import events as ev
from swapd.core.catalog import CopyKey, ModelSpec
from swapd.core.commands import CancelFetch, FetchWeights, LoadFinished, VerifyWeights
from swapd.core.ids import Bytes, Duration, ModelName, seconds
from swapd.core.reasons import LoadFailure, WaitingFor
from tests.core.driver import World, spec
from tests.core.test_disk_room import MB, small_disk
from tests.core.test_weights import far

A, B, C = ModelName("a"), ModelName("b"), ModelName("c")


def same(name: str, **more: Any) -> ModelSpec:
    """Return a model that has its copy in common with others of this kind."""
    return far(name, copy=CopyKey("one"), **more)


def test_nobody_leaves_whose_copy_somebody_else_holds() -> None:
    world = small_disk(same("a"), same("b"), far("c", wait=100), fits=1, gpus=3)
    world.request("a", at=0)
    world.request("b", at=0, service=900)
    c = world.request("c", at=100)
    world.run(400)
    assert world.evictions() == []
    assert c.rejected is not None


def test_those_who_share_a_copy_leave_together() -> None:
    world = small_disk(same("a"), same("b"), far("c"), fits=1, gpus=3)
    world.request("a", at=0)
    world.request("b", at=0)
    c = world.request("c", at=100)
    world.run(400)
    assert sorted(world.evictions()) == [(100, "a"), (100, "b")]
    assert c.waited == 3 + 30 + 10


def test_a_shared_copy_counts_once() -> None:
    world = small_disk(same("a"), same("b"), far("c", wait=100), far("d"), fits=2, gpus=4)
    world.store.remote("c", size=2 * MB)
    world.request("a", at=0)
    world.request("b", at=0)
    world.request("d", at=0, service=900)
    c = world.request("c", at=100)
    world.run(400)
    assert world.evictions() == []
    assert c.rejected is not None


def test_a_pinned_sharer_without_an_instance_keeps_the_copy() -> None:
    world = small_disk(same("a"), same("b", gpus=9, pinned=True), far("c", wait=100), fits=1)
    world.request("a", at=0)
    c = world.request("c", at=100)
    world.run(400)
    assert world.evictions() == []
    assert c.rejected is not None


def test_a_sharer_that_waits_for_gpus_keeps_the_copy() -> None:
    world = small_disk(same("a"), same("b", gpus=4), far("c"), spec("x", 3, load=10), fits=1, gpus=4)
    world.request("x", at=0, service=900)
    world.request("a", at=0)
    world.request("b", at=95)
    world.request("c", at=100)
    world.run(115)
    assert world.evictions() == []


def test_who_comes_for_a_shared_copy_that_is_given_up_waits() -> None:
    world = small_disk(same("a"), same("b"), far("c"), fits=1, gpus=3)
    world.request("a", at=0)
    c = world.request("c", at=100)
    b = world.request("b", at=101)
    world.run(102)
    assert world.model("b").queued == {WaitingFor.WEIGHTS: 1}
    world.run(110)
    assert world.store.cached == {}
    world.run(600)
    assert c.waited == 3 + 30 + 10
    assert b.granted


def test_a_sharer_that_is_pinned_meanwhile_has_the_copy_used_again() -> None:
    world = small_disk(same("a"), same("b"), far("c", wait=60), fits=1, gpus=3)
    world.request("a", at=0)
    c = world.request("c", at=100)
    world.order(ev.PinOrdered, 101, model=B, pinned=True)
    world.run(400)
    assert world.residents() == ["b"]
    assert c.rejected is not None
    assert len(world.of(FetchWeights)) == 2


def by_hand(*specs: ModelSpec, resident: str = "") -> World:
    """Return a world with these residents whose fetches are told by hand."""
    world = World(specs, gpus=4, protect=seconds(0))
    for name in resident:
        world.store.put(name, at=0)
        world.request(name, at=1)
    world.run(60)
    world.store.carry_out = lambda _command, _now: None  # type: ignore[method-assign]
    return world


def test_for_a_shared_fetch_that_lacks_room_residents_leave_once() -> None:
    world = by_hand(same("a"), same("b"), far("c"), far("d"), resident="cd")
    a = world.request("a", at=60)
    world.request("b", at=60)
    world.run(60)
    for name in (A, B):
        world.post(ev.FetchStarted(world.now, name))
    for name in (A, B):
        world.post(ev.FetchWaits(world.now, name, "the disk is full", Bytes(MB)))
    assert len(world.evictions()) == 1
    world.leave(a, at=61)
    world.run(62)
    assert len(world.evictions()) == 1
    world.post(ev.WeightsCached(world.now, {ModelName("d"): Bytes(MB)}))
    world.post(ev.FetchProgressed(world.now, A, Bytes(0), Bytes(MB), rate=1.0))
    assert len(world.evictions()) == 1


def test_what_was_given_up_for_a_model_that_is_removed_is_for_the_one_that_shares_its_fetch() -> None:
    world = by_hand(same("a"), same("b"), far("c"), far("d"), resident="cd")
    world.request("a", at=60)
    world.request("b", at=60)
    world.run(60)
    for name in (A, B):
        world.post(ev.FetchStarted(world.now, name))
    for name in (A, B):
        world.post(ev.FetchWaits(world.now, name, "the disk is full", Bytes(MB)))
    world.reconfigure(remove=["a"], at=61)
    world.run(62)
    assert [command.model for command in world.of(CancelFetch)] == ["a"]
    assert len(world.evictions()) == 1


def test_who_joins_a_fetch_that_is_nearly_done_is_not_refused_for_a_whole_one() -> None:
    world = World([same("a"), same("b", wait=20), far("x")], gpus=3)
    world.request("x", at=0)
    world.store.put("a", at=40)
    world.store.delete("a", at=41)
    world.request("a", at=50)
    first = world.request("b", at=75)
    joined = world.request("b", at=76)
    world.run(200)
    assert (first.waited, joined.waited) == (5 + 10, 4 + 10)


def test_a_shared_fetch_is_measured_once() -> None:
    world = World([same("a"), same("b"), far("x")], gpus=3)
    world.store.remote("x", fetch=10)
    world.request("x", at=0)
    world.request("a", at=50)
    world.request("b", at=51)
    world.run(200)
    took = world.core._node.bandwidth.time_of(Bytes(MB))
    assert took == Duration(round((10 / 2 + 30) / 1.5 * 1e9))
    assert len(world.of(LoadFinished)) == 3


def test_a_copy_that_came_for_another_model_is_in_no_doubt_after_a_failed_load() -> None:
    world = World([same("a"), same("b")], gpus=3)
    world.engines["b"].fails = LoadFailure.EXITED
    world.request("a", at=0)
    world.request("b", at=50)
    world.run(200)
    assert world.of(VerifyWeights) == []
