"""Room on the disk for a fetch: which residents leave so that their copies can, and which never do."""

import random
from typing import Any

import pytest

from swapd.core import events as ev
from swapd.core.commands import Evicted, FetchWeights, Placed, Start
from swapd.core.disk_room import Giver, choose
from swapd.core.ids import SECOND, InstanceId, ModelName, seconds
from swapd.core.reasons import Rejection, WaitingFor
from tests.core.driver import World, spec
from tests.core.test_weights import far

MB = 1_000_000


def small_disk(*specs: Any, fits: float, gpus: int = 2, **settings: Any) -> World:
    """Return a world whose cache has room for so many copies of 1 MB."""
    world = World(specs, gpus=gpus, **{"protect": 0, **settings})
    world.store.limit = round(fits * MB)
    return world


@pytest.mark.parametrize(
    ("givers", "needed", "leave"),
    [
        ([], 1, ()),
        ([(1.0, 1, 5)], 5, (1,)),
        ([(1.0, 1, 5)], 6, ()),
        ([(2.0, 1, 5), (1.0, 2, 5)], 5, (2,)),
        ([(1.0, 2, 5), (1.0, 1, 5)], 5, (1,)),
        ([(1.0, 1, 1), (2.0, 2, 4)], 4, (2,)),
        ([(1.0, 1, 1), (2.0, 2, 4)], 5, (1, 2)),
        ([(1.0, 1, 1), (2.0, 2, 1), (3.0, 3, 1), (4.0, 4, 4)], 4, (4,)),
        ([(1.0, 1, 2), (2.0, 2, 2), (3.0, 3, 2), (9.0, 4, 90)], 4, (1, 2)),
    ],
)
def test_the_cheapest_that_give_enough_leave_and_nobody_else(
    givers: list[tuple[float, int, int]], needed: int, leave: tuple[int, ...]
) -> None:
    assert choose([Giver(cost, (InstanceId(number),), size) for cost, number, size in givers], needed) == leave


def test_an_idle_resident_leaves_although_a_gpu_is_free() -> None:
    world = small_disk(far("a"), far("b"), fits=1)
    world.request("a", at=0)
    b = world.request("b", at=100)
    world.run(400)
    assert world.evictions() == [(100, "a")]
    assert b.waited == 3 + 30 + 10
    assert world.store.cached.keys() == {"b"}


def test_whoever_leaves_names_for_whom_and_no_gpu_is_booked_meanwhile() -> None:
    world = small_disk(far("a"), far("b"), fits=1, gpus=1)
    world.request("a", at=0)
    world.request("b", at=100)
    world.run(110)
    assert [note.successor for note in world.of(Evicted, "a")] == ["b"]
    assert [note.model for note in world.of(Placed)] == ["a"]
    assert world.model("b").queued == {WaitingFor.WEIGHTS: 1}


def test_nobody_leaves_while_that_would_not_be_enough() -> None:
    world = small_disk(far("a"), far("b", wait=100), fits=1)
    world.store.remote("a", size=MB // 2, fetch=10)
    world.request("a", at=0)
    world.store.limit = MB // 2
    b = world.request("b", at=100)
    world.run(400)
    assert world.evictions() == []
    assert b.rejected is not None
    assert b.rejected[1].reason is Rejection.WAIT_TIMEOUT


@pytest.mark.parametrize(("pinned", "busy"), [(True, False), (False, True)])
def test_neither_pinned_nor_busy_residents_leave(pinned: bool, busy: bool) -> None:
    world = small_disk(far("a", pinned=pinned), far("b", wait=100), fits=1)
    world.request("a", at=0, service=900 if busy else 0)
    b = world.request("b", at=100)
    world.run(400)
    assert world.evictions() == []
    assert b.rejected is not None


def test_a_busy_resident_leaves_as_soon_as_it_is_idle() -> None:
    world = small_disk(far("a"), far("b"), fits=1)
    world.request("a", at=0, service=100)
    world.request("b", at=100)
    world.run(400)
    assert world.evictions() == [(140, "a")]


def test_protection_defers_and_has_a_bound() -> None:
    world = small_disk(far("a"), far("b"), fits=1, protect=seconds(60), protect_max_wait=seconds(15))
    world.request("a", at=0, service=50)
    world.request("b", at=90)
    world.run(400)
    assert world.evictions() == [(105, "a")]


def test_least_residency_has_none() -> None:
    world = small_disk(far("a"), far("b"), fits=1, min_residency=seconds(200))
    world.request("a", at=0)
    world.request("b", at=90)
    world.run(600)
    assert world.evictions() == [(240, "a")]


def test_no_more_leave_than_are_needed_beside_what_may_leave_already() -> None:
    world = small_disk(far("a"), far("b"), far("c"), far("d"), fits=3, gpus=3)
    world.store.remote("d", size=2 * MB)
    for name in ("a", "b", "c"):
        world.request(name, at=0)
    world.order(ev.UnloadOrdered, 200, model=ModelName("a"), drain_timeout=None)
    world.request("c", at=205)
    world.request("b", at=205)
    world.request("b", at=206)
    d = world.request("d", at=210)
    world.run(600)
    assert [name for _, name in world.evictions() if name != "a"] == ["c"]
    assert d.granted


def test_who_comes_back_for_a_copy_that_is_given_up_waits_and_does_not_starve_the_fetch() -> None:
    world = small_disk(far("a"), far("b"), fits=1)
    world.request("a", at=0)
    b = world.request("b", at=100)
    back = world.request("a", at=101)
    world.run(110)
    assert world.store.cached == {}
    world.run(600)
    assert b.waited == 3 + 30 + 10
    # and it takes its turn as anybody else: the other one leaves for it
    assert [name for _, name in world.evictions()] == ["a", "b"]
    assert back.granted
    assert len(world.of(FetchWeights)) == 3


def test_a_copy_that_turns_out_not_to_be_needed_is_used_again() -> None:
    world = small_disk(far("a"), far("b"), fits=1)
    world.request("a", at=0)
    world.request("b", at=100)
    back = world.request("a", at=101)
    world.run(102)
    assert world.model("a").queued == {WaitingFor.WEIGHTS: 1}
    world.store.limit = 5 * MB
    world.plan(102, lambda: world.store._look("b"))
    world.run(105)
    assert world.model("a").queued == {WaitingFor.LOAD: 1}
    world.run(600)
    assert back.waited == 2 + 10
    assert len(world.of(FetchWeights, None)) == 2


def test_a_copy_that_cannot_leave_after_all_is_used_again_and_another_one_leaves() -> None:
    world = small_disk(far("a"), far("b"), far("c"), fits=2, gpus=3)
    world.engines["a"].release = None
    for name in ("a", "b"):
        world.request(name, at=0)
    world.request("b", at=60)
    c = world.request("c", at=100)
    world.run(900)
    assert [name for _, name in world.evictions()] == ["a", "b"]
    assert c.granted
    assert world.model("a").cached_bytes == MB


def test_one_that_is_pinned_meanwhile_is_kept_and_loaded_again() -> None:
    world = small_disk(far("a"), far("b", wait=60), fits=1)
    world.request("a", at=0)
    b = world.request("b", at=100)
    world.order(ev.PinOrdered, 101, model=ModelName("a"), pinned=True)
    world.run(400)
    assert b.rejected is not None
    assert world.residents() == ["a"]
    assert len(world.of(FetchWeights)) == 2


def test_what_is_given_up_for_a_client_that_leaves_serves_the_next_one() -> None:
    world = small_disk(far("a"), far("b"), fits=1)
    world.request("a", at=0)
    b = world.request("b", at=100)
    world.leave(b, at=101)
    later = world.request("b", at=200)
    world.run(400)
    assert later.waited == 10


def test_an_absent_pin_has_idle_residents_leave() -> None:
    world = small_disk(far("a"), far("b"), fits=1)
    world.request("a", at=0)
    world.order(ev.PinOrdered, 100, model=ModelName("b"), pinned=True)
    world.run(400)
    assert world.residents() == ["b"]


def test_a_prefetch_has_nobody_leave() -> None:
    world = small_disk(far("a"), far("b"), fits=1)
    world.request("a", at=0)
    world.order(ev.PrefetchOrdered, 100, model=ModelName("b"))
    world.run(400)
    assert (world.evictions(), world.residents()) == ([], ["a"])


def test_in_manual_mode_only_an_operator_has_others_leave() -> None:
    world = small_disk(far("a"), far("b"), fits=1, mode="manual")
    world.order(ev.LoadOrdered, 0, model=ModelName("a"))
    order = world.order(ev.LoadOrdered, 100, model=ModelName("b"))
    world.run(400)
    assert world.answers[order][1].ok
    assert world.residents() == ["b"]


def test_who_waits_too_long_for_a_copy_that_is_given_up_is_told_so() -> None:
    world = small_disk(far("a", wait=20), far("b"), fits=1)
    world.engines["a"].unload = 40
    world.reconfigure(far("a", wait=20, stop_grace=seconds(60)), at=0)
    world.request("a", at=0)
    world.store.remote("a", fetch=5)
    world.request("b", at=100)
    back = world.request("a", at=101)
    world.run(130)
    assert back.rejected is not None
    assert back.rejected[1].detail == (
        "waited 20 s for a; its weights leave the node, to make room on the disk for those of b"
    )


@pytest.mark.parametrize("seed", range(12))
def test_on_a_small_disk_everybody_is_served_and_the_limit_is_kept(seed: int) -> None:
    chance = random.Random(seed)
    names = ("a", "b", "c", "d", "e")
    world = small_disk(
        *(far(name, chance.choice((1, 1, 2)), fetch=20, load=5, wait=3_000) for name in names),
        spec("x", load=5, max_wait=seconds(3_000)),
        fits=chance.choice((2, 3)),
        gpus=chance.choice((2, 4)),
        protect=seconds(chance.choice((0, 20))),
        drain_after=seconds(30),
    )
    for name in names:
        world.store.remote(name, fetch=chance.choice((5, 40)), size=chance.choice((MB // 2, MB, 2 * MB)))
    asked = [
        world.request(chance.choice((*names, "x")), at=chance.uniform(0, 600), service=chance.choice((0, 1, 20)))
        for _ in range(60)
    ]
    while world.now < 4_000 * SECOND:
        world.run(world.now / SECOND + 5)
        assert world.store.limit is not None
        assert world.store.used <= world.store.limit
    assert [one.number for one in asked if not one.granted] == []
    assert len(world.of(Start)) < 3 * len(asked)
