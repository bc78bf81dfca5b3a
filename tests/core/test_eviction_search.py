"""What the boards find at once equals what a search through all legal sets finds."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swapd.core import events as ev
from swapd.core.catalog import NvlinkUse
from swapd.core.eviction import find
from swapd.core.ids import InstanceId, ModelName
from swapd.core.node import Node
from swapd.core.placement import legal_sets, option, suited
from swapd.core.state import Need
from tests.core.driver import World, spec
from tests.core.gpus import linked
from tests.core.gpus import node as machine
from tests.core.test_tables_properties import nodes

COSTS = st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0])


@st.composite
def occupied(draw: st.DrawFn) -> World:
    """Draw a node with residents, of which some have just begun to leave."""
    topology = draw(nodes(8))
    count = len(topology.gpus)
    sizes = draw(st.lists(st.integers(1, max(1, count // 2)), min_size=1, max_size=count))
    gib = topology.gpus[0].memory_bytes / (1 << 30)
    shares = draw(st.booleans())
    specs = [spec(f"m{n}", size, gib=gib / (1 + shares), shares=shares, load=1) for n, size in enumerate(sizes)]
    world = World(specs, devices=topology, max_concurrent_loads=99)
    for at, one in enumerate(specs):
        world.request(one.name, at=at * 10)
    world.run(2000)
    for name in draw(st.lists(st.sampled_from([one.name for one in specs]), max_size=2, unique=True)):
        world.order(ev.UnloadOrdered, model=ModelName(name))
    world.run(2001)
    return world


def slow(node: Node, need: Need, costs: dict[InstanceId, float]) -> tuple[int, list[InstanceId], bool] | None:
    """Return the plan that a search through all legal sets comes to: GPUs, victims, and whether it waits."""
    options = {gpu.index: option(gpu, need, costs) for gpu in node.on(suited(node, need))}
    best: tuple[Any, ...] | None = None
    for place, (gpus, rank) in enumerate(legal_sets(node.boards, need)):
        chosen = [options.get(gpu.index) for gpu in node.on(gpus)]
        if None in chosen:
            continue
        victims = sorted({victim.id for found in chosen for victim in found.victims})
        waits = any(found.waits for found in chosen)
        key = sum(costs[victim] for victim in victims), rank, len(victims), waits, place
        if best is None or key < best[0]:
            best = key, (gpus, victims, waits)
    return None if best is None else best[1]


@settings(derandomize=True, deadline=None, database=None, max_examples=300)
@given(st.data(), occupied(), st.integers(1, 8), st.sampled_from(NvlinkUse))
def test_the_plan_is_the_one_of_a_search_through_all_legal_sets(
    data: st.DataObject, world: World, size: int, use: NvlinkUse
) -> None:
    here = world.core._node
    drawn = {number: data.draw(st.none() | COSTS) for number in here.instances}
    leaving = {number: price for number, price in drawn.items() if price is not None}
    costs = {number: price for number, price in leaving.items() if here.instances[number].stopping is None}
    need = Need.of(spec("x", min(size, len(here.gpus)), gib=40, nvlink=use))
    plan, expected = find(here, need, here.topology.all_gpus, costs), slow(here, need, costs)
    listed = [gpus for gpus, _ in legal_sets(here.boards, need)]
    if expected is None:
        assert plan is None or plan.gpus not in listed
        return
    assert plan is not None
    found = plan.gpus, [victim.id for victim in plan.victims], plan.waits
    if plan.gpus not in listed:
        assert sum(costs[victim] for victim in found[1]) < sum(costs[victim] for victim in expected[1])
    elif plan.victims or plan.waits:
        assert found == expected
    else:
        assert sum(costs[victim] for victim in expected[1]) == 0


@pytest.mark.parametrize("shares", [False, True])
def test_the_better_class_goes_before_fewer_victims(shares: bool) -> None:
    """GPUs 0 and 1 are linked and have a model each; 2 and 3 are not linked, and one model has both."""
    pair = spec("pair", 2, gib=60, shares=shares, nvlink=NvlinkUse.IGNORE)
    singles = [spec(name, gib=60, shares=shares) for name in ("one", "two")]
    world = World([pair, *singles], devices=machine(4, links=linked(4, (0, 1)), measured=False))
    for at, name in enumerate(("pair", "one", "two")):
        world.request(name, at=100 * at)
    world.run(1000)
    here = world.core._node
    there = {str(instance.model.name): instance for instance in here.instances.values()}
    assert [int(there[name].gpus) for name in ("pair", "one", "two")] == [0b1100, 0b0001, 0b0010]
    need = Need.of(spec("new", 2, gib=40, shares=shares))
    for price, victims in ((2.0, ["one", "two"]), (1.5, ["pair"])):
        costs = {instance.id: price if name == "pair" else 1.0 for name, instance in there.items()}
        plan = find(here, need, here.topology.all_gpus, costs)
        assert plan is not None
        assert sorted(victim.model.name for victim in plan.victims) == victims
