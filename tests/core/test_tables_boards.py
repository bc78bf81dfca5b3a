"""Nodes of more than eight GPUs are divided into boards; virtual devices are all alike."""

import pytest

from swapd.core.boards import Eviction, boards_for
from swapd.core.catalog import NvlinkUse
from swapd.core.ids import NO_GPUS, GpuSet
from swapd.core.layout import MOST_SETS, split
from swapd.core.reasons import PlacementQuality
from swapd.core.topology import NodeTopology
from swapd.core.wiring import Wiring
from tests.fakes.machines import clique, gpus, machine, mask, names, node, one_fabric, two_hgx, virtual

SIZES = (1, 2, 4, 8)
PREFERRED, REQUIRED, IGNORE = NvlinkUse.PREFERRED, NvlinkUse.REQUIRED, NvlinkUse.IGNORE
LOW, HIGH = GpuSet(0xFF), GpuSet(0xFF00)


def layout(topology: NodeTopology) -> list[list[int]]:
    return [list(board) for board in split(Wiring.of(topology))]


# -- how a node is divided -------------------------------------------------------------------------------------------


def test_up_to_eight_gpus_are_one_board() -> None:
    assert layout(node(1)) == [[0]]
    assert layout(machine("20")) == [list(range(7))]
    assert layout(node(8, numa=range(8))) == [list(range(8))]


def test_sixteen_gpus_are_two_boards_along_their_switches() -> None:
    assert layout(two_hgx()) == [list(range(8)), list(range(8, 16))]
    assert layout(one_fabric()) == [list(range(8)), list(range(8, 16))]


def test_boards_follow_the_links_and_not_the_index() -> None:
    even, odd = range(0, 16, 2), range(1, 16, 2)
    assert layout(node(16, clique(even, 12) | clique(odd, 12))) == [list(even), list(odd)]


def test_ten_pcie_gpus_are_divided_by_numa_node() -> None:
    assert layout(node(10, numa=[0] * 5 + [1] * 5)) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert layout(node(10)) == [list(range(8)), [8, 9]]


def test_bridged_pairs_are_never_cut() -> None:
    boards = layout(node(10, {(0, 9): 12, (1, 8): 12, (2, 7): 12, (3, 6): 12, (4, 5): 12}))
    assert all((one in board) == (9 - one in board) for board in boards for one in range(10))


def test_products_are_kept_together() -> None:
    assert layout(node(12, names=["A", "B"] * 6)) == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]


# -- choices on two boards -------------------------------------------------------------------------------------------


def test_a_set_of_up_to_eight_stays_on_a_board() -> None:
    boards = boards_for(two_hgx(), SIZES)
    assert boards.choose(8, LOW | HIGH, use=PREFERRED) == LOW
    assert boards.choose(8, (LOW | HIGH) & ~1, use=PREFERRED) == HIGH
    assert boards.choose(4, gpus(0, 1, 8, 9), use=PREFERRED) == NO_GPUS
    assert boards.choose(4, gpus(0, 1, 8, 9), use=IGNORE) == NO_GPUS
    assert boards.choose(8, 0x0FF0, use=PREFERRED) == NO_GPUS


def test_a_single_gpu_is_taken_from_the_board_that_loses_least_by_it() -> None:
    boards = boards_for(two_hgx(), SIZES)
    assert boards.choose(1, HIGH | gpus(2, 4, 5, 6, 7), use=PREFERRED) == gpus(2)
    assert boards.choose(1, LOW | gpus(9), use=PREFERRED) == gpus(9)
    assert boards.choose(1, gpus(4, 5, 6, 7, 8, 12, 13, 14, 15), use=PREFERRED) == gpus(8)


def test_the_better_class_wins_wherever_it_is() -> None:
    boards = boards_for(two_hgx(), SIZES)
    assert boards.choose(4, gpus(0, 1, 4, 5) | HIGH, use=PREFERRED) == gpus(8, 9, 10, 11)


def test_of_equal_losses_the_fuller_board_pays() -> None:
    boards = boards_for(two_hgx(), SIZES)
    assert boards.choose(1, gpus(0, 4, 5, 8), use=PREFERRED) == gpus(8)


def test_sixteen_gpus_are_given_only_when_all_are_free() -> None:
    boards = boards_for(two_hgx(), (*SIZES, 16))
    assert boards.choose(16, LOW | HIGH, use=PREFERRED) == LOW | HIGH
    assert boards.choose(16, (LOW | HIGH) ^ 1, use=PREFERRED) == NO_GPUS
    assert boards.choose(16, LOW | HIGH, use=REQUIRED) == NO_GPUS  # no link joins the boards
    assert boards.quality(LOW | HIGH) is PlacementQuality.TOP
    assert boards.ring_order(LOW | HIGH) == tuple(range(16))


def test_what_is_left_on_two_boards_is_worth_more_the_larger_its_blocks_are() -> None:
    boards = boards_for(two_hgx(), SIZES)
    rests = [LOW, gpus(0, 1, 2, 3) | gpus(8, 9, 10, 11), gpus(0, 1, 2, 3, 8, 9), gpus(0, 1, 4, 5, 8, 9), gpus(0)]
    worths = [boards.phi(rest) for rest in rests]
    assert worths == sorted(worths, reverse=True)
    assert len(dict.fromkeys(worths)) == len(worths)


def test_more_than_eight_are_whole_boards() -> None:
    boards = boards_for(node(24, clique(range(8), 18) | clique(range(8, 16), 18) | clique(range(16, 24), 18)), (16,))
    assert boards.choose(16, 0xFFFFFF ^ 1, use=PREFERRED) == 0xFFFF00
    assert boards.choose(16, 0xFFFFFF ^ 0x101, use=PREFERRED) == NO_GPUS


def test_a_fabric_over_both_boards_has_rings_over_both() -> None:
    boards = boards_for(one_fabric(), SIZES)
    assert boards.choose(16, LOW | HIGH, use=REQUIRED) == LOW | HIGH
    assert boards.largest_nvlink_block(LOW | HIGH) == (16, LOW | HIGH)
    assert boards.largest_nvlink_block(0x0FF0) == (8, 0x0FF0)
    assert boards.choose(8, 0x0FF0, use=REQUIRED) == 0x0FF0
    assert boards.domains() == (LOW | HIGH,)
    assert boards.largest_clique(0x3FF0) == 0x3FF0


def test_ten_pcie_gpus_serve_eight_over_both_boards() -> None:
    boards = boards_for(node(10, numa=[0] * 5 + [1] * 5), SIZES)
    assert boards.choose(8, 0x3FF, use=REQUIRED) == NO_GPUS
    chosen = boards.choose(8, 0x3FF, use=PREFERRED)
    assert chosen.bit_count() == 8
    assert chosen & 0b11111 == 0b11111 or chosen >> 5 == 0b11111
    assert boards.choose(8, 0x3FF ^ chosen, use=PREFERRED) == NO_GPUS
    assert boards.choose(4, 0x3FF, use=PREFERRED) in [some for some, rank in boards.sets(4) if rank == 0]
    assert boards.choose(4, gpus(0, 1, 8, 9), use=PREFERRED) == gpus(0, 1, 8, 9)


def test_what_no_list_holds_is_put_together_from_the_fullest_pieces() -> None:
    boards = boards_for(node(18, numa=[index // 6 for index in range(18)]), (8,))
    assert boards.choose(8, gpus(0, 1, 2, 6, 7, 8, 12, 13, 14), use=PREFERRED).bit_count() == 8


def test_a_node_without_gpus_has_nothing_to_give() -> None:
    boards = boards_for(NodeTopology(()), SIZES)
    assert boards.choose(1, 1, use=PREFERRED) == NO_GPUS
    assert boards.evict(1, [], [], 0, use=PREFERRED) is None
    assert boards.sets(1) == ()
    assert boards.largest_nvlink_block(0) == (0, NO_GPUS)


# -- virtual devices -------------------------------------------------------------------------------------------------


def test_virtual_devices_are_taken_in_index_order_and_any_set_is_as_good_as_any_other() -> None:
    boards = boards_for(virtual(4), SIZES)
    assert names(boards.choose(1, 0b1011, use=PREFERRED)) == "{0}"
    assert names(boards.choose(2, 0b1110, use=IGNORE)) == "{12}"
    assert [names(some) for some, _ in boards.sets(2)] == ["{01}", "{02}", "{12}", "{03}", "{13}", "{23}"]
    assert {rank for _, rank in boards.sets(2)} == {0}
    assert boards.quality(mask("{13}")) is PlacementQuality.TOP
    assert boards.ring_order(mask("{013}")) == (0, 1, 3)
    assert boards.choose(2, 0b1111, use=REQUIRED) == NO_GPUS


@pytest.mark.parametrize("size", [2, 3, 8, 16, 20])
def test_sixty_four_virtual_devices_do_not_explode(size: int) -> None:
    boards = boards_for(virtual(64), (size,))
    every = (1 << 64) - 1
    assert len(boards.sets(size)) <= max(8 * 70, MOST_SETS)
    assert boards.choose(size, every, use=PREFERRED) == (1 << size) - 1
    assert boards.choose(size, every ^ 0b101, use=PREFERRED).bit_count() == size
    owner = [1 << device for device in range(64)]
    cost = [100] * 60 + [1] * 4
    found = boards.evict(size, owner, cost, 0b11, use=PREFERRED)
    assert found is not None
    assert (found.gpus.bit_count(), found.gpus & 0b11) == (size, 0)
    assert found.cost == 100 * max(0, size - 4) + min(size, 4)


def test_no_number_of_devices_explodes() -> None:
    boards = boards_for(virtual(256), (100,))
    assert len(boards.sets(100)) == MOST_SETS
    assert boards.choose(100, (1 << 256) - 1, use=PREFERRED) == (1 << 100) - 1
    odd = boards_for(node(60, numa=[index // 5 for index in range(60)]), (33,))
    assert 0 < len(odd.sets(33)) <= MOST_SETS
    assert odd.choose(33, (1 << 60) - 1, use=PREFERRED).bit_count() == 33


def test_virtual_devices_on_two_boards_are_evicted_where_it_is_cheapest() -> None:
    boards = boards_for(virtual(10), SIZES)
    owner = [1 << device for device in range(10)]
    assert boards.evict(2, owner, [9, 9, 9, 9, 9, 9, 9, 1, 1, 9], 0, use=PREFERRED) == Eviction(gpus(7, 8), 0x180, 2)
