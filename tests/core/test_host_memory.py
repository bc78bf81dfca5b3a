"""Host memory is booked like GPU memory: never beyond what there is, made free by evicting, waited for, or refused."""

from dataclasses import replace
from typing import Any

import pytest

from swapd.core import events as ev
from swapd.core.catalog import ModelSpec
from swapd.core.commands import Evicted, Start, Transitioned
from swapd.core.ids import Bytes, ModelName, seconds
from swapd.core.reasons import Rejection, State
from swapd.core.topology import Gpu, NodeTopology
from tests.core.driver import GIB, World, spec


def host(name: str, host_gib: float, gpus: int = 1, **more: Any) -> ModelSpec:
    """Return a model that also takes host memory."""
    made = spec(name, gpus, **{"load": 10} | more)
    return replace(made, footprint=replace(made.footprint, host_bytes=Bytes(int(host_gib * GIB))))


def world(models: list[ModelSpec], *, gpus: int = 8, limit: float = 100, **settings: Any) -> World:
    devices = NodeTopology(
        tuple(Gpu(i, f"virtual-{i}", Bytes(80 * GIB)) for i in range(gpus)), host_bytes=Bytes(int(limit * GIB))
    )
    return World(models, devices=devices, **settings)


def booked(node: World) -> float:
    return node.core.view().host_booked_bytes / GIB


def test_it_is_booked_from_the_reservation_until_nothing_of_the_engine_is_left() -> None:
    node = world([host("a", 30), host("b", 20)])
    node.request("a", at=0)
    node.run(0)
    assert booked(node) == 30
    node.request("b", at=5)
    node.run(50)
    assert booked(node) == 50
    node.order(ev.UnloadOrdered, 60, model=ModelName("a"))
    node.run(61)
    assert booked(node) == 50
    node.run(70)
    assert booked(node) == 20


def test_a_model_for_which_there_is_none_evicts_though_gpus_are_free() -> None:
    node = world([host("a", 60), host("b", 30), host("c", 60)])
    node.request("a", at=0)
    node.request("b", at=1)
    c = node.request("c", at=200)
    node.run(300)
    assert c.granted
    assert node.evictions() == [(200, "a")]
    stopped = next(at for at, n in node.log if isinstance(n, Transitioned) and (n.model, n.after) == ("a", State.GONE))
    started = next(at for at, n in node.log if isinstance(n, Start) and n.spec.name == "c")
    assert started == stopped == 203


def test_the_cheapest_who_give_up_enough_leave_and_nobody_else() -> None:
    node = world([host("a", 40), host("b", 30), host("c", 30), host("d", 50)], protect=seconds(0))
    for name in "abc":
        node.request(name, at=0)
    node.run(100)
    for name, worth in (("a", 5.0), ("b", 1.0), ("c", 1.5)):
        node.core._node.models[ModelName(name)].worth = worth
    node.request("d", at=200)
    node.run(300)
    assert sorted(name for _, name in node.evictions()) == ["b", "c"]


def test_who_leaves_the_gpus_anyway_counts_first() -> None:
    node = world([host("a", 60), host("b", 40), host("c", 60)], gpus=2, protect=seconds(0))
    node.request("a", at=0)
    node.request("b", at=0)
    node.run(100)
    node.core._node.models[ModelName("a")].worth = 2.0
    node.core._node.models[ModelName("b")].worth = 1.0
    node.request("c", at=200)
    node.run(300)
    # the GPU of b is cheaper, but then a would have to leave as well
    assert [name for _, name in node.evictions()] == ["a"]


def test_gpu_memory_and_host_memory_are_made_free_together_without_waste() -> None:
    models = [
        host("a", 50, gib=30, shares=True),
        host("b", 10, gib=40, shares=True),
        host("c", 0, gib=10, shares=True),
        host("d", 55, gib=35, shares=True),
    ]
    node = world(models, gpus=1, protect=seconds(0))
    for name in "abc":
        node.request(name, at=0)
    node.run(100)
    for name, worth in (("a", 3.0), ("b", 1.0), ("c", 0.5)):
        node.core._node.models[ModelName(name)].worth = worth
    node.request("d", at=200)
    node.run(300)
    # b alone is enough for the GPU, but only a has enough of the host, and with it c is enough for the GPU
    assert sorted(name for _, name in node.evictions()) == ["a", "c"]


def test_a_model_waits_for_host_memory_that_is_on_its_way_back() -> None:
    node = world([host("a", 60), host("b", 60)])
    node.request("a", at=0)
    node.order(ev.UnloadOrdered, 50, model=ModelName("a"))
    b = node.request("b", at=51)
    node.run(100)
    assert b.waited == 2 + 10
    assert node.of(Evicted, "a")[0].successor is None


def test_a_model_waits_while_those_who_have_it_are_busy() -> None:
    node = world([host("a", 60), host("b", 60)])
    node.request("a", at=0, service=100)
    b = node.request("b", at=20)
    node.run(300)
    assert b.granted[0][0] == 110 + 3 + 10


def test_more_than_models_may_take_is_refused_for_good() -> None:
    node = world([host("a", 120)])
    a = node.request("a", at=0)
    node.run(1)
    assert a.rejected is not None
    assert (a.rejected[1].reason, a.rejected[1].permanent) == (Rejection.NO_CAPACITY, True)
    assert a.rejected[1].detail.endswith("it also needs 120 GiB of host memory, and models may take 100 GiB here")


def test_what_pinned_models_hold_of_it_is_said() -> None:
    node = world([host("p", 60, pinned=True), host("a", 60)])
    node.run(50)
    a = node.request("a", at=60)
    node.run(61)
    assert a.rejected is not None
    assert a.rejected[1].reason is Rejection.ALL_PINNED
    assert "pinned models are in the way (p)" in a.rejected[1].detail


def test_an_engine_that_does_not_end_keeps_it() -> None:
    node = world([host("a", 60), host("b", 60)])
    node.engines["a"].release = None
    node.request("a", at=0)
    b = node.request("b", at=100)
    node.run(140)
    assert b.rejected is not None
    assert "never released" in b.rejected[1].detail
    assert booked(node) == 60


@pytest.mark.parametrize("limit", [None, 100])
def test_who_declares_none_and_a_node_without_a_limit_are_not_accounted(limit: float | None) -> None:
    models = [host("a", 90 if limit is None else 0), host("b", 90)]
    node = world(models)
    node.devices = replace(node.devices, host_bytes=None if limit is None else Bytes(int(limit * GIB)))
    node.plan(0, lambda: ev.TopologyChanged(node.now, node.devices))
    node.request("a", at=1)
    node.request("b", at=1)
    node.run(50)
    assert node.residents() == ["a", "b"]


def test_a_limit_that_is_lowered_stops_nobody_who_is_there() -> None:
    node = world([host("a", 60), host("b", 30)])
    node.request("a", at=0)
    smaller = replace(node.devices, host_bytes=Bytes(50 * GIB), generation=2)
    node.plan(50, lambda: ev.TopologyChanged(node.now, smaller))
    b = node.request("b", at=100)
    node.run(60)
    assert node.residents() == ["a"]
    node.run(200)
    assert b.granted
    assert [name for _, name in node.evictions()] == ["a"]


def test_many_small_owners_do_not_make_the_search_explode() -> None:
    models = [host(f"m{n:02}", 3 + n % 3, gib=4, shares=True, load=1) for n in range(24)]
    node = world([*models, host("big", 60, gib=40, shares=True)], gpus=4, limit=96, protect=seconds(0))
    for model in models:
        node.request(model.name, at=0)
    node.run(100)
    before = booked(node)
    big = node.request("big", at=200)
    node.run(300)
    assert big.granted
    assert before - sum(3 + int(name[1:]) % 3 for _, name in node.evictions()) + 60 <= 96
