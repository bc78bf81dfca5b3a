"""Who leaves the disk: a table, and laws over random copies."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.weights.eviction import Candidate, choose

GB = 10**9


def copy(name: str, size: int, cost: float, used: int = -1, **shared: int) -> Candidate:
    own = {(0, hash(name) % 10**9): size}
    return Candidate(name, {**own, **{(1, int(key[1:])): value for key, value in shared.items()}}, cost, used)


@pytest.mark.parametrize(
    ("needed", "expected", "why"),
    [
        (0, (), "nothing is needed"),
        (1, ("idle",), "nobody asks for it"),
        (10 * GB, ("idle",), "that is all of it"),
        (11 * GB, ("idle", "small"), "big is worth less by byte, but small costs less and is enough"),
        (50 * GB, ("big",), "idle would not be enough and is not needed beside big"),
        (61 * GB, ("idle", "big", "small"), "all of them"),
        (66 * GB, (), "all of them are not enough, so nobody leaves"),
    ],
)
def test_the_least_worth_leaves_first(needed: int, expected: tuple[str, ...], why: str) -> None:
    candidates = [copy("big", 50 * GB, 500.0), copy("small", 5 * GB, 100.0), copy("idle", 10 * GB, 0.0)]
    assert choose(candidates, needed) == expected, why


def test_of_equals_the_one_not_used_for_longest_leaves() -> None:
    candidates = [copy("b", GB, 0.0, used=5), copy("a", GB, 0.0, used=9), copy("c", GB, 0.0)]
    assert choose(candidates, 2 * GB) == ("c", "b")


def test_a_shared_file_is_given_back_by_the_last_that_has_it() -> None:
    first, second = copy("a", 1, 0.0, i1=100), copy("b", 1, 1.0, i1=100)
    assert choose([first, second], 2) == ("a", "b")
    assert choose([first, second], 102) == ("a", "b")
    assert choose([first, second], 103) == ()
    assert choose([first], 2, kept={(1, 1)}) == ()


sizes = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9), st.sets(st.integers(1, 4))), min_size=1, max_size=6)


@given(sizes, st.integers(1, 200))
def test_what_leaves_is_enough_and_nobody_of_it_too_much(told: list[tuple[int, int, set[int]]], needed: int) -> None:
    candidates = [
        copy(f"c{n}", size, float(cost), **{f"i{key}": 10 * key for key in shared})
        for n, (size, cost, shared) in enumerate(told)
    ]

    def freed(names: tuple[str, ...]) -> int:
        held = {inode for other in candidates if other.name not in names for inode in other.blobs}
        gone = {i: s for other in candidates if other.name in names for i, s in other.blobs.items()}
        return sum(size for inode, size in gone.items() if inode not in held)

    chosen = choose(candidates, needed)
    everybody = tuple(candidate.name for candidate in candidates)
    if not chosen:
        assert freed(everybody) < needed
        return
    assert freed(chosen) >= needed
    assert all(freed(fewer) < needed for fewer in combinations(chosen, len(chosen) - 1))
