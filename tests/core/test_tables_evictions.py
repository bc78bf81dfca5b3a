"""Whose GPUs are taken when nothing is free, and how much work a decision is."""

from collections.abc import Iterator

import pytest

from swapd.core.boards import Boards, Eviction, boards_for
from swapd.core.catalog import NvlinkUse
from swapd.core.ids import GpuSet
from swapd.core.reasons import PlacementQuality
from swapd.core.tables import SetClass
from swapd.core.topology import NodeTopology
from swapd.core.wiring import Wiring
from tests.fakes.machines import gpus, machine, mask, names, one_fabric, two_hgx

SIZES = (1, 2, 4, 8)
PREFERRED, REQUIRED, IGNORE = NvlinkUse.PREFERRED, NvlinkUse.REQUIRED, NvlinkUse.IGNORE


def evict(boards: Boards, size: int, owner: list[int], cost: list[float], blocked: int = 0) -> tuple[str, int, float]:
    found = boards.evict(size, owner, cost, blocked, use=PREFERRED)
    assert found is not None
    return names(found.gpus), found.victims, found.cost


def test_the_cheapest_victims_leave_and_of_equals_those_of_the_best_set() -> None:
    boards = boards_for(machine("03"), SIZES)
    owner = [1 << index for index in range(8)]
    assert evict(boards, 2, owner, [5, 4, 5, 5, 5, 5, 5, 4]) == ("{17}", 0b10000010, 8)
    assert evict(boards, 2, owner, [5, 4, 4, 5, 5, 5, 5, 4]) == ("{12}", 0b00000110, 8)
    assert evict(boards, 4, owner, [5] * 8) == ("{0123}", 0b00001111, 20)


def test_a_model_on_several_gpus_is_paid_once_and_leaves_them_all() -> None:
    boards = boards_for(machine("03"), SIZES)
    owner = [1, 1, 2, 4, 8, 8, 8, 8]
    assert evict(boards, 4, owner, [7, 3, 3, 12]) == ("{4567}", 8, 12)
    assert evict(boards, 4, owner, [5, 3, 3, 12]) == ("{0123}", 7, 11)
    assert evict(boards, 1, owner, [2, 3, 3, 12]) == ("{0}", 1, 2)


def test_a_model_on_both_halves_of_a_board_is_paid_once() -> None:
    boards = boards_for(machine("05"), SIZES)
    owner = [1, 2, 4, 8, 8, 1, 16, 32]
    assert evict(boards, 2, owner, [5, 3, 3, 9, 3, 3]) == ("{05}", 1, 5)
    assert evict(boards, 8, owner, [5, 3, 3, 9, 3, 3]) == ("{01234567}", 63, 26)


def test_free_gpus_cost_nothing_and_end_the_search() -> None:
    boards = boards_for(machine("03"), SIZES)
    owner = [1, 0, 0, 2, 4, 0, 0, 8]
    assert evict(boards, 2, owner, [1, 1, 1, 1]) == ("{12}", 0, 0)


def test_blocked_gpus_are_not_taken_at_any_price() -> None:
    boards = boards_for(machine("03"), SIZES)
    owner = [1, 1, 2, 2, 4, 4, 8, 8]
    assert evict(boards, 4, owner, [1, 1, 9, 9], blocked=0b1) == ("{2345}", 6, 10)
    assert boards.evict(8, owner, [1, 1, 9, 9], 0b1, use=PREFERRED) is None
    assert boards.evict(1, owner, [1, 1, 9, 9], 0xFF, use=PREFERRED) is None


def test_where_nvlink_is_required_only_sets_with_a_ring_are_taken() -> None:
    boards = boards_for(machine("04"), SIZES)
    owner = [1 << index for index in range(8)]
    cost: list[float] = [1, 9, 1, 9, 9, 9, 5, 5]
    found = boards.evict(2, owner, cost, 0, use=REQUIRED)
    assert found == Eviction(mask("{01}"), 3, 10)
    assert boards.evict(2, owner, cost, 0, use=PREFERRED) == Eviction(mask("{02}"), 5, 2)
    assert boards.evict(4, owner, cost, 0, use=REQUIRED) is None
    assert boards.evict(1, owner, cost, 0, use=REQUIRED) == Eviction(mask("{0}"), 1, 1)


def test_who_ignores_nvlink_takes_the_worst_of_equals() -> None:
    boards = boards_for(machine("04"), SIZES)
    found = boards.evict(2, [1 << index for index in range(8)], [1] * 8, 0, use=IGNORE)
    assert found is not None
    assert boards.quality(found.gpus) is PlacementQuality.SPREAD


def test_models_that_share_only_some_gpus_are_priced_all_the_same() -> None:
    boards = boards_for(machine("03"), SIZES)
    owner = [1, 1 | 2, 2, 4, 8, 8, 16, 16]
    assert evict(boards, 2, owner, [1, 1, 5, 9, 9]) == ("{01}", 3, 2)
    assert evict(boards, 4, owner, [1, 1, 5, 9, 9]) == ("{0123}", 7, 7)


def test_on_two_boards_the_cheaper_one_is_cleared_and_a_tie_goes_to_the_better_set() -> None:
    boards = boards_for(two_hgx(), SIZES)
    owner = [1 << index for index in range(16)]
    assert evict(boards, 2, owner, [5] * 8 + [4] * 8) == (names(gpus(8, 9)), 0x300, 8)
    cost: list[float] = [9, 9, 9, 1, 1, 9, 9, 9, 9, 9, 9, 9, 9, 9, 1, 1]
    assert evict(boards, 2, owner, cost) == (names(gpus(14, 15)), 0xC000, 2)
    assert boards.evict(16, owner, [1] * 16, 0, use=PREFERRED) == Eviction(GpuSet(0xFFFF), 0xFFFF, 16)
    assert boards.evict(16, owner, [1] * 16, 1, use=PREFERRED) is None


def test_a_board_whose_owner_has_several_gpus_is_not_taken_for_dearer_than_it_is() -> None:
    boards = boards_for(two_hgx(), SIZES)
    owner = [1 << index for index in range(8)] + [1 << 8] * 2 + [1 << index for index in range(10, 16)]
    assert evict(boards, 2, owner, [2] * 8 + [3] + [9] * 7) == (names(gpus(8, 9)), 0x100, 3)


def test_on_a_fabric_a_ring_over_both_boards_is_the_last_resort() -> None:
    boards = boards_for(one_fabric(), SIZES)
    found = boards.evict(8, [1 << index for index in range(16)], [1] * 16, gpus(0, 15), use=REQUIRED)
    assert found is not None
    assert (found.gpus.bit_count(), found.gpus & gpus(0, 15)) == (8, 0)


# -- the work that is done, as a stand-in for time -------------------------------------------------------------------


class Counted(tuple[object, ...]):
    """A list of candidates that counts those looked at."""

    __slots__ = ()
    seen = 0

    def __iter__(self) -> Iterator[object]:
        for candidate in super().__iter__():
            Counted.seen += 1
            yield candidate


def counting(topology: NodeTopology) -> Boards:
    """Build tables whose candidates are counted."""
    boards = Boards(Wiring.of(topology), SIZES)
    for board in boards._boards:
        for size in SIZES:
            board._classes[size] = tuple(
                SetClass(quality, Counted(sets), Counted(halves)) for quality, sets, halves in board.classes(size)
            )
    return boards


LOOKED_AT = {1: 8, 2: 28, 4: 70, 8: 1}


@pytest.mark.parametrize("number", ["01", "03", "05", "10", "18"])
def test_no_decision_looks_at_a_candidate_twice(number: str) -> None:
    boards = counting(machine(number))
    owner = [1 << index for index in range(8)]
    for size in SIZES:
        for free in range(256):
            for use in NvlinkUse:
                Counted.seen = 0
                boards.choose(size, free, use=use)
                assert Counted.seen <= (LOOKED_AT[size] if free.bit_count() >= size else 0)
        Counted.seen = 0
        boards.evict(size, owner, [3, 1, 4, 1, 5, 9, 2, 6], 0, use=PREFERRED)
        assert Counted.seen <= LOOKED_AT[size]


def test_on_two_boards_a_choice_looks_at_both_and_an_eviction_at_the_cheaper_one() -> None:
    boards = counting(two_hgx())
    owner = [1 << index for index in range(16)]
    for size in SIZES:
        Counted.seen = 0
        boards.choose(size, 0xFFFF, use=IGNORE)
        assert Counted.seen <= 2 * LOOKED_AT[size]
        Counted.seen = 0
        boards.evict(size, owner, [7] * 8 + [3, 1, 4, 1, 5, 9, 2, 6], 0, use=PREFERRED)
        assert Counted.seen <= LOOKED_AT[size]


def test_the_best_class_is_found_without_looking_at_the_others() -> None:
    boards = counting(machine("03"))
    Counted.seen = 0
    boards.choose(4, 0xFF, use=PREFERRED)
    assert Counted.seen == 2
