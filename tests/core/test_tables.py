"""Which sets the fixtures' machines give away: the truth of each fixture, and what a reader would choose by hand."""

import gc
from dataclasses import replace

import pytest

from swapd.core import boards as tables_module
from swapd.core.boards import Boards, boards_for
from swapd.core.catalog import NvlinkUse
from swapd.core.ids import NO_GPUS, GpuSet
from swapd.core.reasons import PlacementQuality
from swapd.core.topology import DriverState, GpuHealth
from tests.fakes.garbage import no_collector
from tests.fakes.machines import NUMBERS, clique, gpus, machine, mask, names, node

SIZES = (1, 2, 4, 8)
PREFERRED, REQUIRED, IGNORE = NvlinkUse.PREFERRED, NvlinkUse.REQUIRED, NvlinkUse.IGNORE
ANY_OF_8 = " ".join(f"{{{index}}}" for index in range(8))
#: number: choices for 1, 2, 4 GPUs from an all-free node (any of those named), ring of all, clique and NVLink block
CHOICES = {
    "01": (ANY_OF_8, "{03} {12} {23} {47} {56} {67}", "{0123} {4567}", 2, 4, 8),
    "02": (ANY_OF_8, "{01} {23} {45} {67}", "{0123} {0145} {0167} {2345} {2367} {4567}", 12, 8, 8),
    "03": (ANY_OF_8, "{01} {02} {03} {12} {13} {23} {45} {46} {47} {56} {57} {67}", "{0123} {4567}", 18, 8, 8),
    "04": (ANY_OF_8, "{01} {23} {45} {67}", "{0123} {4567}", 0, 2, 2),
    "05": ("{0} {5}", "{12}", "{3467}", 0, 2, 2),
    "06": ("{0} {1} {2} {3}", "{01} {02} {03} {12} {13} {23}", "{0123}", 4, 4, 4),
    "07": ("{0} {1} {2} {3}", "{01} {02} {03} {12} {13} {23}", "{0123}", 6, 4, 4),
    "08": (ANY_OF_8, "{01} {23} {45} {67}", "{0123} {4567}", 0, 2, 2),
    "10": (ANY_OF_8, "{01} {02} {03} {12} {13} {23} {45} {46} {47} {56} {57} {67}", "{0123} {4567}", 0, 1, 1),
    "12": (ANY_OF_8, "{01} {02} {03} {12} {13} {23} {45} {46} {47} {56} {57} {67}", "{0123} {4567}", 0, 1, 1),
    "13": ("{0} {1} {2} {3}", "{01} {23}", "{0123}", 0, 1, 1),
    "15": ("{0} {1} {2} {3}", "{01} {23}", "{0123}", 18, 4, 4),
    "17": (ANY_OF_8, "{01} {02} {03} {12} {13} {23} {45} {46} {47} {56} {57} {67}", "{0123} {4567}", 8, 8, 8),
    "18": ("{5}", "{46} {47} {67}", "{0123}", 0, 7, 4),
    "20": ("{4} {5} {6}", "{45} {46} {56}", "{0123}", 18, 7, 4),
}


def tables(number: str) -> Boards:
    return boards_for(machine(number), SIZES)


def everything(number: str) -> GpuSet:
    return machine(number).all_gpus


def top(boards: Boards, size: int) -> list[str]:
    """List the sets of the best class."""
    return [names(some) for some, rank in boards.sets(size) if rank == 0]


@pytest.mark.parametrize("number", NUMBERS)
def test_an_empty_machine_gives_what_a_reader_of_its_matrix_would(number: str) -> None:
    boards, free = tables(number), everything(number)
    *choices, ring, clique_size, block = CHOICES[number]
    for size, wanted in zip((1, 2, 4), choices, strict=True):
        assert names(boards.choose(size, free, use=PREFERRED)) in str(wanted).split()
    assert boards.ring(free) == ring
    assert boards.largest_clique(free).bit_count() == clique_size
    assert boards.largest_nvlink_block(free)[0] == block


@pytest.mark.parametrize("number", NUMBERS)
def test_eight_gpus_are_all_or_nothing(number: str) -> None:
    boards, free = tables(number), everything(number)
    assert boards.choose(8, free, use=PREFERRED) == (free if free.bit_count() == 8 else NO_GPUS)
    assert boards.choose(8, free & free - 1, use=PREFERRED) == NO_GPUS


def test_01_has_exactly_two_best_sets_of_four_and_no_clique_of_more() -> None:
    boards = tables("01")
    assert top(boards, 4) == ["{0123}", "{4567}"]
    assert boards.ring(mask("{0123}")) == 1
    assert names(boards.largest_clique(everything("01"))) == "{0123}"
    assert boards.ring_order(everything("01")) == (0, 3, 2, 1, 5, 6, 7, 4)


@pytest.mark.parametrize("number", NUMBERS)
def test_no_table_leaves_a_cycle_for_the_garbage_collector(number: str) -> None:
    boards, free = tables(number), everything(number)
    with no_collector():
        boards.largest_clique(free)
        boards.ring_order(free)
        assert gc.collect() == 0


def test_04_and_08_cross_no_numa_node_for_four_gpus_and_refuse_them_where_nvlink_is_required() -> None:
    for number in ("04", "08"):
        boards = tables(number)
        assert top(boards, 4) == ["{0123}", "{4567}"]
        assert boards.choose(4, everything(number), use=REQUIRED) == NO_GPUS
        assert boards.choose(2, everything(number), use=REQUIRED) == mask("{01}")
        assert [names(domain) for domain in boards.domains()] == ["{01}", "{23}", "{45}", "{67}"]


def test_05_serves_two_one_and_four_gpus_in_a_row_each_from_its_best_class() -> None:
    boards, free = tables("05"), everything("05")
    given = []
    for size in (2, 1, 4):
        given.append(boards.choose(size, free, use=PREFERRED))
        free = GpuSet(free ^ given[-1])
    assert [names(some) for some in given] == ["{12}", "{0}", "{3467}"]
    assert [boards.quality(some) for some in given] == [
        PlacementQuality.TOP,
        PlacementQuality.SINGLE,
        PlacementQuality.TOP,
    ]


def test_05_takes_index_neighbours_without_a_bridge_last() -> None:
    ranks = {names(some): rank for some, rank in tables("05").sets(2)}
    assert (
        max(ranks["{12}"], ranks["{34}"], ranks["{67}"])
        < ranks["{05}"]
        < min(ranks["{01}"], ranks["{23}"], ranks["{45}"])
    )


def test_18_gives_its_gpu_without_links_to_a_single_gpu_model_and_to_sets_last() -> None:
    boards, free = tables("18"), everything("18")
    assert names(boards.choose(1, free, use=PREFERRED)) == "{5}"
    assert names(boards.largest_clique(free)) == "{0123467}"
    assert boards.choose(8, free, use=REQUIRED) == NO_GPUS
    assert boards.quality(free) is PlacementQuality.TOP  # there is no better set of eight
    ranks = [rank for some, rank in boards.sets(4) if some & mask("{5}")]
    assert min(ranks) > max(rank for some, rank in boards.sets(4) if not some & mask("{5}"))


def test_20_has_one_best_set_of_four_and_keeps_it_for_four() -> None:
    boards, free = tables("20"), everything("20")
    assert top(boards, 4) == ["{0123}"]
    assert names(boards.choose(2, free, use=PREFERRED)) == "{45}"
    free = GpuSet(free ^ mask("{45}"))
    assert names(boards.choose(1, free, use=PREFERRED)) == "{6}"
    assert boards.largest_nvlink_block(GpuSet(free ^ mask("{6}"))) == (4, mask("{0123}"))


@pytest.mark.parametrize("number", ["03", "17"])
def test_a_switch_is_given_away_like_buddies_one_numa_half_after_the_other(number: str) -> None:
    boards, free = tables(number), everything(number)
    given = []
    for size in (1, 2, 1, 4):
        given.append(boards.choose(size, free, use=PREFERRED))
        free = GpuSet(free ^ given[-1])
    assert [names(some) for some in given] == ["{0}", "{12}", "{3}", "{4567}"]


def test_the_qualities_have_names() -> None:
    boards = tables("04")
    assert boards.quality(mask("{0}")) is PlacementQuality.SINGLE
    assert boards.quality(mask("{23}")) is PlacementQuality.TOP
    assert boards.quality(mask("{02}")) is PlacementQuality.LOCAL
    assert boards.quality(mask("{04}")) is PlacementQuality.SPREAD
    assert tables("01").quality(mask("{01}")) is PlacementQuality.LINKED


def test_where_numa_is_not_known_nothing_is_local() -> None:
    boards = boards_for(node(4, {(0, 1): 4}, numa=[-1] * 4), SIZES)
    assert boards.quality(mask("{23}")) is PlacementQuality.SPREAD


def test_a_model_that_ignores_nvlink_takes_what_others_miss_least() -> None:
    boards = boards_for(node(4, {(0, 1): 12}), SIZES)
    assert names(boards.choose(2, 0b1111, use=PREFERRED)) == "{01}"
    assert names(boards.choose(2, 0b1111, use=IGNORE)) == "{23}"


def test_of_sets_that_leave_as_much_the_lowest_is_taken_whatever_its_class() -> None:
    assert names(boards_for(node(3, numa=[0, 0, 1]), SIZES).choose(2, 0b111, use=IGNORE)) == "{01}"
    assert names(boards_for(node(3, numa=[0, 1, 1]), SIZES).choose(2, 0b111, use=IGNORE)) == "{01}"


def test_the_same_question_has_the_same_answer_whoever_built_the_tables() -> None:
    for number in NUMBERS:
        topology = machine(number)
        first, second = boards_for(topology, SIZES), boards_for(topology, SIZES)
        tables_module._built.cache_clear()
        third = boards_for(topology, SIZES)
        assert second is first
        assert third is not first
        for size in SIZES:
            assert first.sets(size) == third.sets(size)
            for free in range(0, everything(number) + 1, 7):
                assert first.choose(size, free, use=PREFERRED) == third.choose(size, free, use=PREFERRED)


def test_a_degraded_gpu_goes_to_single_gpu_models_first_and_to_sets_last() -> None:
    wires = clique(range(4), 6)
    boards = boards_for(node(4, wires, degraded=[2]), SIZES)
    assert names(boards.choose(1, 0b1111, use=PREFERRED)) == "{2}"
    assert names(boards.choose(2, 0b1111, use=PREFERRED)) == "{01}"
    assert names(boards.choose(2, 0b0110, use=PREFERRED)) == "{12}"
    assert boards.quality(mask("{12}")) is PlacementQuality.LINKED


def test_what_nvlink_means_to_a_single_gpu_model_makes_no_difference() -> None:
    boards = boards_for(node(4, clique(range(4), 6), degraded=[2]), SIZES)
    for use in NvlinkUse:
        assert names(boards.choose(1, 0b1111, use=use)) == "{2}"
        found = boards.evict(1, [1, 2, 4, 8], [1, 1, 1, 1], 0, use=use)
        assert found is not None
        assert names(found.gpus) == "{2}"


def test_a_degraded_pair_with_links_is_still_better_than_an_intact_one_without() -> None:
    boards = boards_for(node(4, {(0, 1): 11}, degraded=[0]), SIZES)
    assert names(boards.choose(2, 0b1111, use=PREFERRED)) == "{01}"
    assert boards.choose(2, 0b1111, use=REQUIRED) == gpus(0, 1)


def test_a_set_never_mixes_products() -> None:
    boards = boards_for(node(6, clique([0, 1], 12), names=["H100"] * 3 + ["L40S"] * 3), SIZES)
    assert names(boards.choose(2, 0b111100, use=PREFERRED)) in ("{34}", "{35}", "{45}")
    assert boards.choose(4, 0b111111, use=PREFERRED) == NO_GPUS
    assert boards.choose(2, 0b001100, use=PREFERRED) == NO_GPUS
    assert all(some & 0b000111 == 0 or some & 0b111000 == 0 for some, _ in boards.sets(2))
    assert boards.largest_nvlink_block(0b111111) == (2, gpus(0, 1))


def test_each_product_keeps_its_own_best_pairs_for_pairs() -> None:
    wires = {(0, 1): 12, (4, 5): 4}
    boards = boards_for(node(6, wires, names=["H100"] * 3 + ["A40"] * 3), SIZES)
    assert names(boards.choose(1, 0b111000, use=PREFERRED)) == "{3}"
    assert names(boards.choose(1, 0b110001, use=PREFERRED)) == "{0}"  # its partner is taken already


def test_one_gpu_is_a_node() -> None:
    boards = boards_for(node(1), SIZES)
    assert boards.choose(1, 1, use=REQUIRED) == 1
    assert boards.choose(2, 1, use=PREFERRED) == NO_GPUS
    assert boards.largest_nvlink_block(1) == (1, 1)
    assert boards.largest_nvlink_block(0) == (0, NO_GPUS)
    assert boards.domains() == ()


def test_a_size_nobody_announced_is_served_too() -> None:
    boards = boards_for(machine("03"), (1,))
    assert names(boards.choose(3, 0b11111100, use=PREFERRED)) == "{456}"
    assert boards.quality(mask("{456}")) is PlacementQuality.TOP


def test_tables_are_kept_for_equal_wirings_whatever_the_health_and_the_driver_say() -> None:
    before = machine("03")
    lost = replace(before.gpus[3], health=GpuHealth.LOST)
    after = replace(before, gpus=(*before.gpus[:3], lost, *before.gpus[4:]), driver=DriverState.STALLED, generation=9)
    assert boards_for(after, SIZES) is boards_for(before, SIZES)
    worse = replace(before.gpus[3], health=GpuHealth.DEGRADED)
    degraded = replace(before, gpus=(*before.gpus[:3], worse, *before.gpus[4:]))
    assert boards_for(degraded, SIZES) is not boards_for(before, SIZES)
