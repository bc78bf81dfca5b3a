"""What holds on any node: every decision equals that of a slow search which knows nothing of tables."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import combinations, pairwise, permutations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from swapd.core.boards import boards_for
from swapd.core.catalog import NvlinkUse
from swapd.core.layout import split
from swapd.core.rings import bottleneck, ring_order
from swapd.core.topology import NodeTopology
from swapd.core.wiring import Wiring
from tests.fakes.machines import node

SIZES = (1, 2, 4, 8)
PREFERRED, REQUIRED, IGNORE = NvlinkUse.PREFERRED, NvlinkUse.REQUIRED, NvlinkUse.IGNORE
thorough = settings(derandomize=True, deadline=None, database=None, max_examples=120)


@st.composite
def nodes(draw: st.DrawFn, most: int = 7) -> NodeTopology:
    """Draw a node: any links, NUMA nodes, up to two products, some degraded GPUs."""
    count = draw(st.integers(1, most))
    counts = draw(st.sampled_from([(0,), (4,), (0, 4), (0, 1, 2), (6, 6, 6, 5)]))
    pairs = list(combinations(range(count), 2))
    wires = draw(st.lists(st.sampled_from(counts), min_size=len(pairs), max_size=len(pairs)))
    return node(
        count,
        dict(zip(pairs, wires, strict=True)),
        numa=draw(st.lists(st.integers(-1, 1), min_size=count, max_size=count)),
        names=draw(st.lists(st.sampled_from(["A", "A", "A", "B"]), min_size=count, max_size=count)),
        degraded=draw(st.lists(st.integers(0, count - 1), max_size=2)),
    )


@st.composite
def owners(draw: st.DrawFn, count: int) -> tuple[list[int], list[int]]:
    """Draw who is on each GPU, and what each of these models costs: whole GPUs, sometimes shared ones."""
    owner = draw(st.lists(st.integers(0, count), min_size=count, max_size=count))
    masks = [1 << model >> 1 for model in owner]
    if draw(st.booleans()) and draw(st.booleans()):
        masks[0] |= masks[-1]
    cost = draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    return masks, cost


def members(mask: int) -> list[int]:
    return [index for index in range(mask.bit_length()) if mask >> index & 1]


def subsets(topology: NodeTopology, free: int, size: int) -> Iterator[int]:
    """Yield all sets of one product."""
    for some in combinations(members(free), size):
        if len({topology.gpus[gpu].name for gpu in some}) == 1:
            yield sum(1 << gpu for gpu in some)


def rings(weights: Sequence[Sequence[int]], some: Sequence[int]) -> list[tuple[int, ...]]:
    """Return all rings by their hops."""
    orders = [(some[0], *rest) for rest in permutations(some[1:])]
    return [tuple(weights[a][b] for a, b in zip(order, (*order[1:], order[0]), strict=True)) for order in orders]


def judged(topology: NodeTopology, mask: int) -> tuple[int, ...]:
    """Judge a set, without tables."""
    some = members(mask)
    ill = sum(topology.gpus[gpu].health == "degraded" for gpu in some)
    if len(some) == 1:
        return (0, ill)
    pairs = list(combinations(some, 2))
    links = [topology.links[one][two] for one, two in pairs]
    ring = max(map(min, rings(topology.links, some)))
    unlinked = [int(topology.levels[one][two]) for one, two in pairs if not topology.links[one][two]]
    numa = {gpu.numa if gpu.numa >= 0 else -1 - gpu.index for gpu in topology.gpus if mask >> gpu.index & 1}
    pcie = min(unlinked, default=60) - 100 * len(numa)
    return (int(ring > 0), -ill, ring, min(links), sum(links) if len(some) <= 4 else 0, pcie)


def worth_of(topology: NodeTopology, sizes: Sequence[int] = SIZES) -> Callable[[int], tuple[int, ...]]:
    """Return what a rest is worth, counted without tables."""
    every = (1 << len(topology.gpus)) - 1
    best: dict[int, list[int]] = {}
    for size in sizes:
        for name in sorted({gpu.name for gpu in topology.gpus}):
            kin = sum(1 << gpu.index for gpu in topology.gpus if gpu.name == name)
            found = [(judged(topology, some), some) for some in subsets(topology, every & kin, size)]
            top = max((quality for quality, _ in found), default=())
            best.setdefault(size, []).extend(some for quality, some in found if quality == top)

    @cache
    def pack(size: int, free: int) -> int:
        return max((1 + pack(size, free ^ some) for some in best[size] if some & free == some), default=0)

    def worth(free: int) -> tuple[int, ...]:
        links = sum(sum(topology.links[gpu]) for gpu in members(free))
        blocks = [sum(free >> at & (1 << size) - 1 == (1 << size) - 1 for at in range(0, 8, size)) for size in (4, 2)]
        return (*(pack(size, free) for size in sorted(sizes, reverse=True) if size > 1), links, *blocks)

    return worth


@thorough
@given(nodes(), st.integers(0, 127), st.integers(1, 5), st.sampled_from([SIZES, (*SIZES, 3)]))
def test_a_preferred_set_is_of_the_best_class_that_fits_and_leaves_the_most(
    topology: NodeTopology, free: int, size: int, sizes: tuple[int, ...]
) -> None:
    boards, worth = boards_for(topology, sizes), worth_of(topology, sizes)
    free &= topology.all_gpus
    possible = list(subsets(topology, free, size))
    chosen = boards.choose(size, free, use=PREFERRED)
    if not possible:
        assert chosen == 0
        return
    assert chosen in possible
    assert chosen == max(possible, key=lambda some: (judged(topology, some), worth(free ^ some), -some))


@thorough
@given(nodes(), st.integers(0, 127), st.integers(1, 5))
def test_a_set_with_nvlink_required_is_the_preferred_one_if_it_has_a_ring(
    topology: NodeTopology, free: int, size: int
) -> None:
    boards = boards_for(topology, SIZES)
    preferred = boards.choose(size, free & topology.all_gpus, use=PREFERRED)
    required = boards.choose(size, free & topology.all_gpus, use=REQUIRED)
    ring = any(judged(topology, some)[0] for some in subsets(topology, free & topology.all_gpus, size))
    assert required == (preferred if size == 1 or ring else 0)
    assert size == 1 or not required or boards.ring(required) >= 1


@thorough
@given(nodes(), st.integers(0, 127), st.integers(2, 5))
def test_a_set_that_ignores_nvlink_leaves_the_most(topology: NodeTopology, free: int, size: int) -> None:
    boards, worth = boards_for(topology, SIZES), worth_of(topology)
    free &= topology.all_gpus
    possible = list(subsets(topology, free, size))
    wanted = max(possible, key=lambda some: (worth(free ^ some), -some), default=0)
    assert boards.choose(size, free, use=IGNORE) == wanted


@thorough
@given(nodes(), st.integers(1, 5))
def test_the_listed_sets_are_all_there_are_in_the_order_of_their_quality(topology: NodeTopology, size: int) -> None:
    ranked = boards_for(topology, SIZES).sets(size)
    every = sorted(
        subsets(topology, topology.all_gpus, size), key=lambda some: ([-x for x in judged(topology, some)], some)
    )
    assert [some for some, _ in ranked] == every
    ranks = [rank for _, rank in ranked]
    assert ranks == sorted(ranks)
    for (one, rank), (two, next_rank) in pairwise(ranked):
        assert (rank == next_rank) is (judged(topology, one) == judged(topology, two))


@thorough
@given(st.data(), nodes(), st.integers(1, 5), st.sampled_from(NvlinkUse))
def test_the_victims_are_the_cheapest_and_then_those_of_the_best_set(
    data: st.DataObject, topology: NodeTopology, size: int, use: NvlinkUse
) -> None:
    count = len(topology.gpus)
    owner, cost = data.draw(owners(count))
    blocked = data.draw(st.integers(0, topology.all_gpus)) if data.draw(st.booleans()) else 0
    found = boards_for(topology, SIZES).evict(size, owner, cost, blocked, use=use)

    def leave(some: int) -> int:
        models = 0
        for gpu in members(some):
            models |= owner[gpu]
        return models

    def key(some: int) -> tuple[Any, ...]:
        quality = judged(topology, some)
        order = quality if use is IGNORE and size > 1 else tuple(-field for field in quality)
        return sum(cost[model] for model in members(leave(some))), order, some

    possible = [
        some
        for some in subsets(topology, topology.all_gpus & ~blocked, size)
        if use is not REQUIRED or size == 1 or judged(topology, some)[0]
    ]
    if not possible:
        assert found is None
        return
    best = min(possible, key=key)
    assert found is not None
    assert (found.gpus, found.victims, found.cost) == (best, leave(best), key(best)[0])


@thorough
@given(nodes(), st.integers(0, 127))
def test_the_largest_clique_and_block_are_the_largest_there_are(topology: NodeTopology, free: int) -> None:
    boards = boards_for(topology, SIZES)
    free &= topology.all_gpus
    clique = boards.largest_clique(free)
    assert clique & free == clique
    assert all(topology.links[one][two] for one, two in combinations(members(clique), 2))
    larger = combinations(members(free), clique.bit_count() + 1)
    assert not any(all(topology.links[one][two] for one, two in combinations(some, 2)) for some in larger)
    size, block = boards.largest_nvlink_block(free)
    assert (block.bit_count(), block & free) == (size, block)
    assert size < 2 or boards.ring(block) >= 1
    bigger = [more for more in SIZES if more > max(size, 1)]
    assert not any(judged(topology, some)[0] for more in bigger for some in subsets(topology, free, more))


@st.composite
def weights(draw: st.DrawFn) -> list[list[int]]:
    count = draw(st.integers(2, 6))
    table = [[0] * count for _ in range(count)]
    for one, two in combinations(range(count), 2):
        table[one][two] = table[two][one] = draw(st.integers(0, 3))
    return table


@thorough
@given(weights())
def test_the_best_ring_is_found(table: list[list[int]]) -> None:
    some = range(len(table))
    assert bottleneck(table, some) == max(map(min, rings(table, some)))
    order = ring_order(table, some)
    assert sorted(order) == list(some)
    hops = tuple(table[one][two] for one, two in zip(order, (*order[1:], order[0]), strict=True))
    assert (min(hops), sum(hops)) == max((min(ring), sum(ring)) for ring in rings(table, some))


@thorough
@given(nodes(most=20))
def test_every_gpu_is_on_one_board_of_at_most_eight(topology: NodeTopology) -> None:
    boards = split(Wiring.of(topology))
    assert sorted(gpu for board in boards for gpu in board) == list(range(len(topology.gpus)))
    assert all(len(board) <= 8 and list(board) == sorted(board) for board in boards)


@thorough
@given(st.data(), nodes(most=12), st.integers(1, 12), st.sampled_from(NvlinkUse))
def test_on_any_node_a_choice_is_free_of_one_product_and_linked_where_it_must_be(
    data: st.DataObject, topology: NodeTopology, size: int, use: NvlinkUse
) -> None:
    boards = boards_for(topology, SIZES)
    free = data.draw(st.integers(0, topology.all_gpus))
    chosen = boards.choose(size, free, use=use)
    if chosen:
        assert (chosen.bit_count(), chosen & free) == (size, chosen)
        assert len({topology.gpus[gpu].name for gpu in members(chosen)}) == 1
        assert use is not REQUIRED or size == 1 or boards.ring(chosen) >= 1
        assert sorted(boards.ring_order(chosen)) == members(chosen)
    elif use is not REQUIRED:
        assert not any(some & free == some for some, _ in boards.sets(size))


@thorough
@given(st.data(), nodes(most=12), st.integers(1, 12), st.sampled_from(NvlinkUse))
def test_on_any_node_nobody_is_evicted_from_a_blocked_gpu_and_no_listed_set_is_cheaper(
    data: st.DataObject, topology: NodeTopology, size: int, use: NvlinkUse
) -> None:
    boards = boards_for(topology, SIZES)
    owner, cost = data.draw(owners(len(topology.gpus)))
    blocked = data.draw(st.integers(0, topology.all_gpus))
    found = boards.evict(size, owner, cost, blocked, use=use)
    fitting = [
        some
        for some, _ in boards.sets(size)
        if not some & blocked and (use is not REQUIRED or size == 1 or boards.ring(some))
    ]
    if found is None:
        assert fitting == []
        return
    assert (found.gpus.bit_count(), found.gpus & blocked) == (size, 0)
    for some in fitting:
        models = {model for gpu in members(some) for model in members(owner[gpu])}
        assert found.cost <= sum(cost[model] for model in sorted(models))
