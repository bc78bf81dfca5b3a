"""Who leaves for whom: the cheapest set that makes room, and nobody for a load that cannot be placed."""

import itertools
import random

import pytest

from swapd.core.boards import boards_for
from swapd.core.commands import Evicted, EvictionBlocked, Reject, Start, Stop
from swapd.core.eviction import candidates, find
from swapd.core.ids import gpu_indices, seconds
from swapd.core.placement import legal_sets
from swapd.core.reasons import EvictionBlock, Rejection
from swapd.core.state import Need
from tests.core.driver import World, spec, topology

WORTH = {"a": 5.0, "b": 6.0, "c": 8.0, "d": 30.0}


def full_node(**more: bool) -> World:
    """Residents a (1 GPU), b (1), c (2), d (4) with the given worth, idle for long; and newcomers of each size."""
    sizes = {"a": 1, "b": 1, "c": 2, "d": 4}
    world = World(
        [spec(n, g, pinned=more.get(f"pin_{n}", False)) for n, g in sizes.items()]
        + [spec(f"x{g}", g) for g in (1, 2, 4, 8)],
        max_concurrent_loads=8,
    )
    for name in sizes:
        world.request(name, at=0)
    world.run(1000)
    for name, worth in WORTH.items():
        world.core._node.models[name].worth = worth
    return world


def victims_of(world: World, newcomer: str) -> list[str]:
    world.request(newcomer)
    world.run(world.now / 1e9)
    return sorted(c.model for c in world.of(Evicted) if c.successor == newcomer)


@pytest.mark.parametrize(("need", "expected"), [(1, "a"), (2, "ab"), (4, "abc"), (8, "abcd")])
def test_the_least_sum_of_worth_times_gpus_leaves(need: int, expected: str) -> None:
    assert victims_of(full_node(), f"x{need}") == list(expected)


def test_what_serves_is_no_victim_and_whoever_proves_unnecessary_stays() -> None:
    world = full_node()
    world.request("c", service=None)
    world.run(1000)
    assert victims_of(world, "x4") == ["d"]


def test_nobody_leaves_for_what_only_a_pinned_model_could_make_room_for() -> None:
    world = full_node(pin_d=True)
    assert victims_of(world, "x8") == []
    assert [c.reason for c in world.of(Reject)] == [Rejection.NO_CAPACITY]
    assert "pinned models are in the way (d)" in world.of(Reject)[0].detail


def test_an_infeasible_load_evicts_nobody() -> None:
    """One device of 80: pinned 60, idle 10, and 40 are asked for."""
    shared = {"shares": True}
    world = World(
        [spec("p", gib=60, pinned=True, **shared), spec("i", gib=10, **shared), spec("x", gib=40, **shared)], gpus=1
    )
    world.request("i", at=100)
    x = world.request("x", at=1000)
    world.run(2000)
    assert x.rejected is not None
    assert (x.rejected[0], x.rejected[1].reason) == (1000, Rejection.NO_CAPACITY)
    assert world.evictions() == []
    assert world.residents() == ["i", "p"]


def test_where_only_pinned_models_are_resident_a_stray_request_is_told_so_at_once() -> None:
    world = World([spec("p", 8, pinned=True), spec("x")])
    world.run(100)
    x = world.request("x", at=100)
    world.run(200)
    assert x.rejected is not None
    assert (x.rejected[0], x.rejected[1].reason, x.rejected[1].retry_after) == (100, Rejection.ALL_PINNED, None)
    assert world.residents() == ["p"]


def test_what_fits_on_no_device_is_refused_for_good() -> None:
    world = World([spec("x", gib=81)])
    x = world.request("x", at=0)
    world.run(1)
    assert x.rejected is not None
    assert (x.rejected[1].reason, x.rejected[1].permanent) == (Rejection.NO_CAPACITY, True)


def shared_node(sizes: dict[str, float], newcomer: float, *, gib: float, worth: dict[str, float]) -> World:
    """One device with idle residents that share it, and a newcomer x."""
    specs = [spec(name, gib=size, shares=True, max_wait=seconds(5000)) for name, size in sizes.items()]
    world = World([*specs, spec("x", gib=newcomer, shares=True)], gpus=1, gib=gib)
    for name in sizes:
        world.request(name, at=0)
    world.run(2000)
    for name, value in worth.items():
        world.core._node.models[name].worth = value
    return world


def test_exactly_one_victim_the_smallest_that_is_enough() -> None:
    sizes = {"small": 2.0, "right": 4.0, "big": 10.0}
    world = shared_node(sizes, 4, gib=19.5, worth=dict.fromkeys(sizes, 1.0))
    assert world.residents() == ["big", "right", "small"]
    assert victims_of(world, "x") == ["small"]
    assert world.residents() == ["big", "right"]


def test_candidates_that_prove_unnecessary_are_struck_from_the_plan() -> None:
    world = shared_node({"one": 1.0, "three": 3.0}, 3, gib=4, worth={"one": 1.0, "three": 1.5})
    assert victims_of(world, "x") == ["three"]


def test_as_many_stay_as_their_sizes_allow_then_the_first_of_the_order_leaves() -> None:
    world = World([spec(n, gib=g, shares=True) for n, g in (("a", 10), ("b", 12), ("c", 8))], gpus=1, gib=24)
    for at, name in ((0, "a"), (100, "b"), (300, "c")):
        world.request(name, at=at)
    world.run(250)
    assert world.residents() == ["a", "b"]
    world.run(600)
    assert [name for _, name in world.evictions()] == ["a"]
    assert world.residents() == ["b", "c"]


def test_bytes_decide_not_only_counts_the_first_leaves_before_the_second_starts() -> None:
    world = World([spec("a", gib=100, shares=True), spec("b", gib=29, shares=True)], gpus=1, gib=128)
    world.request("a", at=0)
    world.request("b", at=500)
    world.run(1000)
    assert world.residents() == ["b"]
    starts = [at for at, c in world.log if isinstance(c, Start)]
    assert starts == [0, 503]


def test_fewest_and_cheapest_victims_and_the_engine_gets_exactly_the_chosen_devices() -> None:
    world = World([spec(f"m{n}", load=10 + n) for n in range(4)] + [spec("x", 3)], gpus=4, max_concurrent_loads=4)
    for n in range(4):
        world.request(f"m{n}", at=0)
    world.run(1000)
    assert victims_of(world, "x") == ["m0", "m1", "m2"]
    world.run(1100)
    start = world.of(Start, "x")[0]
    assert list(gpu_indices(start.gpus)) == [0, 1, 2]


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_who_may_be_resident_together_does_not_depend_on_the_order_of_loading(order: tuple[str, ...]) -> None:
    sizes = {"a": 10, "b": 6, "c": 8}
    world = World([spec(n, gib=g, shares=True) for n, g in sizes.items()], gpus=1, gib=24)
    for place, name in enumerate(order):
        world.request(name, at=place * 200)
    world.run(1000)
    assert world.residents() == ["a", "b", "c"]
    assert world.evictions() == []


def test_an_exclusive_model_and_a_sharing_one_never_stand_on_the_same_device() -> None:
    world = World([spec("alone"), spec("social", shares=True)], gpus=1)
    world.request("alone", at=0)
    world.request("social", at=500)
    world.request("alone", at=1000)
    world.run(1500)
    assert [name for _, name in world.evictions()] == ["alone", "social"]


def test_free_devices_are_taken_before_anybody_is_evicted_and_the_lowest_first() -> None:
    world = World([spec("a"), spec("b", 2), spec("c")], gpus=4)
    for name in "abc":
        world.request(name, at=0)
    world.run(300)
    assert [int(c.gpus) for c in world.of(Start)] == [0b0001, 0b0110, 0b1000]


def test_memory_on_its_way_back_is_waited_for_rather_than_evicting_anybody() -> None:
    world = World([spec("a"), spec("b"), spec("x")], gpus=2, idle_unload=seconds(500))
    world.engines["a"].unload = 30
    world.request("a", at=0)
    world.request("b", at=100)
    x = world.request("x", at=570)
    world.run(600)
    assert [c.cause for c in world.of(Stop)] == ["idle"]
    world.run(650)
    assert x.waited == 20 + 60
    assert [(at, name) for at, name in world.evictions()] == [(560, "a")]


def test_each_reason_why_somebody_may_not_leave_is_noted_once_per_wait() -> None:
    world = World([spec("p", pinned=True), spec("busy"), spec("young"), spec("x")], gpus=3, max_concurrent_loads=3)
    world.request("busy", at=0, service=100)
    world.request("young", at=0)
    x = world.request("x", at=65)
    for at in range(66, 80):
        world.request("busy", at=at)
    world.run(300)
    notes = [(note.model, note.block) for note in world.of(EvictionBlocked) if note.successor == "x"]
    assert sorted(notes) == [
        ("busy", EvictionBlock.IN_FLIGHT),
        ("p", EvictionBlock.PINNED),
        ("young", EvictionBlock.PROTECTED),
    ]
    assert x.waited == 15 + 3 + 60


def test_a_set_of_devices_is_legal_whatever_its_members_and_lowest_mask_goes_first() -> None:
    def sets(gpus: int, size: int) -> list[int]:
        return [mask for mask, _ in legal_sets(boards_for(topology(gpus), (size,)), Need.of(spec("a", size)))]

    assert sets(3, 2) == [0b011, 0b101, 0b110]
    assert len(sets(8, 4)) == 70


def test_plans_for_shared_devices_cost_no_more_than_the_best_of_all_subsets() -> None:
    chance = random.Random(11)
    for _ in range(60):
        gpus = chance.choice([1, 2, 3])
        specs = [
            spec(f"m{n}", chance.randint(1, gpus), gib=chance.choice([1, 2, 3]), shares=True, load=1) for n in range(7)
        ]
        world = World(specs, gpus=gpus, gib=8, max_concurrent_loads=9)
        for s in specs:
            world.request(s.name, at=0)
        world.run(300)
        node = world.core._node
        for model in node.models.values():
            model.worth = chance.choice([1.0, 2.0, 5.0])
        need = Need.of(spec("newcomer", chance.randint(1, gpus), gib=chance.choice([3, 5, 8]), shares=True))
        costs = candidates(node, patient=True)
        plan = find(node, need, node.topology.all_gpus, costs)
        assert plan is not None
        found = sum(costs[victim.id] for victim in plan.victims)
        assert round(found, 6) == round(_best_of_all(world, need, costs), 6)


def _best_of_all(world: World, need: Need, costs: dict[int, float]) -> float:
    node = world.core._node
    residents = list(node.instances.values())
    best = float("inf")
    for size in range(len(residents) + 1):
        for leaving in itertools.combinations(residents, size):
            free = [
                gpu.memory_bytes - sum(i.bytes_per_gpu for i in gpu.instances.values() if i not in leaving)
                for gpu in node.gpus
            ]
            if all(i.id in costs for i in leaving) and sum(f >= need.bytes_per_gpu for f in free) >= need.gpus:
                best = min(best, sum(costs[i.id] for i in leaving))
    return best


def test_sharers_on_several_devices_are_searched_together_and_single_ones_apart() -> None:
    pair = spec("pair", 2, gib=4, shares=True, load=1)
    singles = [spec(f"s{n}", gib=4, shares=True, load=1) for n in range(2)]
    world = World([pair, *singles, spec("x", 2, gib=4, shares=True)], gpus=2, gib=8, max_concurrent_loads=4)
    for name in ("pair", "s0", "s1"):
        world.request(name, at=0)
    world.run(100)
    node = world.core._node
    for name, worth in (("pair", 1.0), ("s0", 1.5), ("s1", 1.5)):
        node.models[name].worth = worth
    assert victims_of(world, "x") == ["pair"]
    world.run(200)
    for name, worth in (("x", 9.0), ("s0", 1.5), ("s1", 1.5)):
        node.models[name].worth = worth
    world.request("pair")
    world.run(300)
    assert [name for _, name in world.evictions()] == ["pair", "s0", "s1"]


def test_a_big_sharer_that_is_enough_leaves_alone_however_many_cheap_ones_there_are() -> None:
    sizes = {f"s{n:02}": 1.0 for n in range(16)} | {"big": 24.0}
    worth = dict.fromkeys(sizes, 0.1) | {"big": 100.0}
    world = shared_node(sizes, 24, gib=40, worth=worth)
    assert len(world.residents()) == 17
    assert victims_of(world, "x") == ["big"]


def test_a_search_among_very_many_sharers_is_cut_short_but_evicts_nobody_needlessly() -> None:
    count = 24
    specs = [spec(f"s{n:02}", gib=1 + n % 3, shares=True, load=0.1) for n in range(count)]
    world = World([*specs, spec("x", gib=24, shares=True, load=1)], gpus=1, gib=48, protect=seconds(0))
    for s in specs:
        world.request(s.name, at=0)
    world.run(100)
    for s in specs:
        world.core._node.models[s.name].worth = 1.0
    left = victims_of(world, "x")
    freed = sum(1 + int(name[1:]) % 3 for name in left)
    assert 24 <= freed <= 26
