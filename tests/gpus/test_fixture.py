"""The vendor's topology matrix is read however people paste it, and a broken one is refused with a sentence."""

import re

import pytest

from swapd.core.topology import PcieLevel
from swapd.gpus.fixture import MAX_GPUS, MatrixError, TopologyMatrix, parse_matrix
from tests.fakes.machines import NUMBERS, matrix_text

PAIR = """
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV4\t0-3\t0\t\tN/A
GPU1\tNV4\t X \t4-7\t1\t\tN/A
"""


def matrix(number: str) -> TopologyMatrix:
    return parse_matrix(matrix_text(number))


def pairs(found: TopologyMatrix, links: int) -> list[str]:
    """List the pairs with exactly so many links."""
    count = len(found.links)
    return [f"{one}{two}" for one in range(count) for two in range(one + 1, count) if found.links[one][two] == links]


def test_all_fixtures_are_there() -> None:
    assert NUMBERS == ("01", "02", "03", "04", "05", "06", "07", "08", "10", "12", "13", "15", "17", "18", "20")


@pytest.mark.parametrize("number", NUMBERS)
def test_every_fixture_is_symmetric_and_nobody_is_linked_with_itself(number: str) -> None:
    found = matrix(number)
    assert found.uneven == ()
    assert found.agreed_links == found.links
    assert all(row[gpu] == 0 for gpu, row in enumerate(found.links))
    assert all(
        found.levels[one][two] is found.levels[two][one]
        for one, row in enumerate(found.levels)
        for two in range(len(row))
    )


def test_01_has_six_links_a_gpu_and_double_ones_between_eight_pairs() -> None:
    found = matrix("01")
    assert [sum(row) for row in found.links] == [6] * 8
    assert pairs(found, 2) == ["03", "04", "12", "15", "23", "47", "56", "67"]


def test_02_shows_who_shares_a_switch_only_through_its_nics() -> None:
    found = matrix("02")
    assert found.numa == (3, 3, 1, 1, 7, 7, 5, 5)
    assert found.nics == tuple(f"NIC{number}" for number in range(8))
    assert found.nic_levels[2] == (PcieLevel.SYS,) * 2 + (PcieLevel.PXB,) * 2 + (PcieLevel.SYS,) * 4
    near = [f"{one}{two}" for one in range(8) for two in range(one + 1, 8) if found.levels[one][two] >= PcieLevel.PXB]
    assert near == ["01", "23", "45", "67"]
    assert {found.links[0][gpu] for gpu in range(1, 8)} == {12}


def test_03_has_two_numa_nodes_of_four_and_as_many_cpus() -> None:
    found = matrix("03")
    assert found.numa == (0, 0, 0, 0, 1, 1, 1, 1)
    assert found.cpus[0] == (*range(56), *range(112, 168))
    assert len(pairs(found, 18)) == 28
    assert found.levels[0][1] is PcieLevel.NODE
    assert found.levels[0][4] is PcieLevel.SYS


@pytest.mark.parametrize(("number", "links"), [("04", 12), ("08", 4)])
def test_04_and_08_are_bridged_in_pairs(number: str, links: int) -> None:
    found = matrix(number)
    assert pairs(found, links) == ["01", "23", "45", "67"]
    assert len(pairs(found, 0)) == 24


def test_05_has_bridges_that_follow_neither_index_nor_numa() -> None:
    found = matrix("05")
    assert pairs(found, 12) == ["05", "12", "34", "67"]
    assert found.numa == (0, 0, 0, 1, 1, 1, 1, 1)
    assert found.levels[0][5] is PcieLevel.SYS


def test_06_and_07_are_full_meshes_whose_numa_nodes_are_in_another_order() -> None:
    assert (matrix("06").numa, len(pairs(matrix("06"), 4))) == ((3, 2, 1, 0), 6)
    assert (matrix("07").numa, len(pairs(matrix("07"), 6))) == ((3, 1, 7, 5), 6)


def test_07_lists_its_cpus_one_by_one() -> None:
    assert matrix("07").cpus == ((6, 14, 22, 30), (4, 12, 20, 28), (7, 15, 23, 31), (5, 13, 21, 29))


def test_10_has_two_switches_and_no_links() -> None:
    found = matrix("10")
    assert len(pairs(found, 0)) == 28
    assert found.levels[0][1:5] == (PcieLevel.PIX,) * 3 + (PcieLevel.SYS,)


@pytest.mark.parametrize(("number", "size"), [("12", 4), ("13", 2)])
def test_12_and_13_tell_their_gpus_apart_by_numa_only(number: str, size: int) -> None:
    found = matrix(number)
    assert all(not any(row) for row in found.links)
    assert found.numa == (0,) * size + (1,) * size
    assert found.levels[0][1] is PcieLevel.NODE
    assert found.levels[0][size] is PcieLevel.SYS


def test_15_names_the_hosts_numa_node_and_not_the_memory_of_the_gpu() -> None:
    found = matrix("15")
    assert found.numa == (0, 0, 1, 1)
    assert found.gpu_numa == (2, 10, 18, 26)


def test_17_has_eight_links_a_pair() -> None:
    assert len(pairs(matrix("17"), 8)) == 28


def test_18_has_one_gpu_without_links() -> None:
    found = matrix("18")
    assert not any(found.links[5])
    assert len(pairs(found, 12)) == 21


def test_20_has_seven_gpus() -> None:
    found = matrix("20")
    assert (len(found.links), found.numa) == (7, (0, 0, 0, 0, 1, 1, 1))


@pytest.mark.parametrize("number", NUMBERS)
def test_runs_of_spaces_say_the_same_as_tabs(number: str) -> None:
    text = matrix_text(number)
    assert parse_matrix(text.expandtabs()) == parse_matrix(text)
    assert parse_matrix(text.replace("\t", "  ")) == parse_matrix(text)


def test_escape_codes_comments_and_other_text_do_no_harm() -> None:
    head, *rows = PAIR.strip("\n").splitlines()
    pasted = [
        "user@node:~$ nvidia-smi topo -m",
        "# a note",
        "GPU0 and GPU1 are new",
        re.sub("(GPU[01]|CPU Affinity)", "\x1b[4m\\1\x1b[0m", head),
        rows[0],
        "",
        "  # another",
        rows[1],
        "Legend:",
        "  X    = Self",
        "GPU0 is the first one",
    ]
    assert parse_matrix("\r\n".join(pasted)) == parse_matrix(PAIR)


def test_columns_that_are_no_gpus_are_nics_whatever_they_are_called() -> None:
    text = (
        "\tGPU0\tmlx5_0\tGPU1\tCPU Affinity\tNUMA Affinity\n"
        "GPU0\t X \tPIX\tSYS\t0-3\t0\n"
        "mlx5_0\tPIX\t X \tPHB\n"
        "GPU1\tSYS\tPHB\t X \t4-7\t1\n"
    )
    found = parse_matrix(text)
    assert found.nics == ("mlx5_0",)
    assert found.nic_levels == ((PcieLevel.PIX,), (PcieLevel.PHB,))
    assert found.levels[0][1] is PcieLevel.SYS  # the text says how they meet, the NIC is not asked


def test_an_older_driver_has_no_column_for_the_gpus_own_numa_node() -> None:
    text = PAIR.replace("\tGPU NUMA ID", "").replace("\t\tN/A", "")
    assert parse_matrix(text) == parse_matrix(PAIR)


def test_a_single_gpu_and_no_affinity_at_all_are_a_machine_too() -> None:
    found = parse_matrix("\tGPU0\nGPU0\t X \n")
    assert (found.links, found.numa, found.cpus, found.gpu_numa) == (((0,),), (-1,), ((),), (None,))


@pytest.mark.parametrize("cell", ["N/A", "", "all", "3-1", "0-99999999", "0-3,x"])
def test_an_affinity_that_cannot_be_read_is_absent(cell: str) -> None:
    found = parse_matrix(PAIR.replace("\t0-3\t0\t", f"\t{cell}\t{cell}\t"))
    assert (found.cpus[0], found.numa[0]) == ((), -1)
    assert (found.cpus[1], found.numa[1]) == ((4, 5, 6, 7), 1)


def test_two_gpus_of_unknown_numa_nodes_are_not_said_to_share_one() -> None:
    found = parse_matrix(PAIR.replace("\t0-3\t0\t", "\t\tN/A\t").replace("\t4-7\t1\t", "\t\tN/A\t"))
    assert found.numa == (-1, -1)
    assert found.levels[0][1] is PcieLevel.SYS


def test_a_cell_that_went_missing_among_spaces_is_not_guessed() -> None:
    found = parse_matrix(PAIR.replace("\t0-3\t0\t\tN/A", "  0-3  N/A").replace("GPU0\t X \tNV4", "GPU0  X  NV4"))
    assert (found.cpus[0], found.numa[0], found.gpu_numa[0]) == ((), -1, None)


def test_each_row_says_what_its_own_gpu_sees_and_the_smaller_count_is_agreed() -> None:
    found = parse_matrix(PAIR.replace("GPU1\tNV4", "GPU1\tNV3"))
    assert found.links == ((0, 4), (3, 0))
    assert found.agreed_links == ((0, 3), (3, 0))
    assert found.uneven == (0, 1)


def test_a_link_that_only_one_side_sees_is_none() -> None:
    found = parse_matrix(PAIR.replace("GPU1\tNV4", "GPU1\tPHB"))
    assert found.agreed_links == ((0, 0), (0, 0))
    assert found.uneven == (0, 1)


@pytest.mark.parametrize("word", ["NV", "NVx", "C2C", "??", "nv4"])
def test_an_unknown_word_is_no_link_and_the_worst_level(word: str) -> None:
    found = parse_matrix(PAIR.replace("NV4", word))
    assert not any(map(any, found.links))
    assert found.levels[0][1] is PcieLevel.SYS


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no header"),
        ("nvidia-smi has failed because it could not communicate with the driver", "no header"),
        (matrix_text("03").replace("GPU3\tNV18", "-\tNV18"), "no row for GPU3"),
        (PAIR.replace("GPU1\tNV4\t X \t4-7\t1\t\tN/A\n", ""), "no row for GPU1"),
        (PAIR.replace("\tNV4\t0-3\t0\t\tN/A", ""), "the row of GPU0 is shorter"),
        (PAIR.replace("\tNV4\t0-3", "\t\t0-3"), "the row of GPU0 is shorter"),
        (PAIR.replace("GPU0\t X \tNV4", "GPU0\tNV4\t X "), "the row of GPU0 has 'NV4' under GPU0"),
        (PAIR.replace("GPU1\tNV4", "GPU1\tX"), "the row of GPU1 has 'X' under GPU0"),
        (PAIR + "GPU1\tNV4\t X \t4-7\t1\t\tN/A\n", "two rows for GPU1"),
        (PAIR + "GPU2\tNV4\t X \t4-7\t1\t\tN/A\n", "two rows for GPU2, or no column"),
        ("\tGPU0\tGPU2\nGPU0\t X \tNV4\n", "does not name GPU0, GPU1"),
        ("\tGPU0\tGPU0\nGPU0\t X \tNV4\n", "does not name GPU0, GPU1"),
        ("\t".join(f"GPU{gpu}" for gpu in range(MAX_GPUS + 1)), f"at most {MAX_GPUS}"),
    ],
)
def test_a_broken_matrix_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(MatrixError, match=re.escape(reason)):
        parse_matrix(text)
