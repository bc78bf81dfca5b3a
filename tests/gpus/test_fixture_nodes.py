"""What discovery finds on fifteen machines: the truth line of each fixture, as far as its text carries it."""

from pathlib import Path

import pytest

from swapd.core.topology import GpuHealth, PcieLevel
from tests.gpus.nodes import A100, FIXTURES, H100, FakeNode, by, cliques, fixture, healths, met, pairs


@pytest.fixture
def node(request: pytest.FixtureRequest, tmp_path: Path) -> FakeNode:
    prefix, *product = request.param if isinstance(request.param, tuple) else (request.param,)
    return FakeNode(tmp_path, fixture(prefix), *product)


def machine(prefix: str, *product: object) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("node", [(prefix, *product)], indirect=True, ids=[prefix])


def test_every_fixture_there_is_has_a_test_of_its_own() -> None:
    tests = Path(__file__).read_text()
    assert [path.name for path in FIXTURES.glob("*.txt") if f'@machine("{path.name[:2]}"' not in tests] == []


@machine("01")
def test_01_has_two_cliques_of_four_and_double_links_between_eight_pairs(node: FakeNode) -> None:
    topology = node.topology()
    assert [gpu.nvlinks for gpu in topology.gpus] == [6] * 8
    assert pairs(topology, 2) == ["03", "04", "12", "15", "23", "47", "56", "67"]
    assert [clique for clique in cliques(topology) if len(clique) == 4] == ["0123", "4567"]
    assert not any(gpu.switched for gpu in topology.gpus)
    assert topology.complaints == ()


@machine("02", A100)
def test_02_is_one_clique_over_a_switch_and_its_numa_order_is_not_that_of_the_gpus(node: FakeNode) -> None:
    topology = node.topology()
    assert cliques(topology, least=12) == ["01234567"]
    assert all(gpu.switched for gpu in topology.gpus)
    assert [gpu.numa for gpu in topology.gpus] == [3, 3, 1, 1, 7, 7, 5, 5]
    assert by([gpu.pcie_switch for gpu in topology.gpus]) == ["01", "23", "45", "67"]
    assert topology.gpus[0].cpus == (*range(48, 64), *range(176, 192))


@machine("03", H100)
def test_03_is_one_clique_of_eighteen_links_at_full_speed(node: FakeNode) -> None:
    topology = node.topology()
    assert cliques(topology, least=18) == ["01234567"]
    assert by([gpu.numa for gpu in topology.gpus]) == ["0123", "4567"]
    assert {(gpu.nvlinks, gpu.nvlink_mbps) for gpu in topology.gpus} == {(18, 26_562)}
    assert healths(topology) == [GpuHealth.HEALTHY] * 8


@machine("04")
def test_04_has_bridged_pairs_and_four_gpus_meet_over_the_host(node: FakeNode) -> None:
    topology = node.topology()
    assert cliques(topology) == ["01", "23", "45", "67"]
    assert {topology.levels[one][two] for one in (0, 1) for two in (2, 3)} == {PcieLevel.NODE}


@machine("05")
def test_05_has_bridges_that_follow_neither_index_nor_numa_node(node: FakeNode) -> None:
    topology = node.topology()
    assert cliques(topology) == ["05", "12", "34", "67"]
    assert by([gpu.numa for gpu in topology.gpus]) == ["012", "34567"]
    assert topology.gpus[0].numa != topology.gpus[5].numa
    assert [topology.links[one][one + 1] for one in (0, 2, 4)] == [0, 0, 0]


@machine("06", A100)
def test_06_is_a_mesh_of_direct_links_with_numa_nodes_in_falling_order(node: FakeNode) -> None:
    topology = node.topology()
    assert cliques(topology) == ["0123"]
    assert len(pairs(topology, 4)) == 6
    assert not any(gpu.switched for gpu in topology.gpus)
    assert [gpu.numa for gpu in topology.gpus] == [3, 2, 1, 0]


@machine("07", H100)
def test_07_is_a_mesh_of_six_links_and_its_cpus_are_single_ids(node: FakeNode) -> None:
    topology = node.topology()
    assert len(pairs(topology, 6)) == 6
    assert [gpu.numa for gpu in topology.gpus] == [3, 1, 7, 5]
    assert topology.gpus[0].cpus == (6, 14, 22, 30)


@machine("08")
def test_08_has_pairs_of_four_links(node: FakeNode) -> None:
    topology = node.topology()
    assert cliques(topology) == ["01", "23", "45", "67"]
    assert pairs(topology, 4) == ["01", "23", "45", "67"]


@machine("10")
def test_10_has_no_nvlink_and_two_pcie_switches_of_four(node: FakeNode) -> None:
    topology = node.topology()
    assert topology.links == ()
    assert by([gpu.pcie_switch for gpu in topology.gpus]) == ["0123", "4567"]
    assert len(met(topology, PcieLevel.PIX)) == 12
    assert by([gpu.pcie_root for gpu in topology.gpus]) == ["0123", "4567"]


@machine("12")
def test_12_has_no_nvlink_and_no_switch_only_numa_nodes(node: FakeNode) -> None:
    topology = node.topology()
    assert topology.links == ()
    assert {gpu.pcie_switch for gpu in topology.gpus} == {""}
    assert by([gpu.numa for gpu in topology.gpus]) == ["0123", "4567"]


@machine("13")
def test_13_has_no_nvlink_and_two_numa_pairs(node: FakeNode) -> None:
    topology = node.topology()
    assert topology.links == ()
    assert met(topology, PcieLevel.NODE) == ["01", "23"]
    assert by([gpu.numa for gpu in topology.gpus]) == ["01", "23"]
    assert len(topology.gpus[3].cpus) == 192


@machine("15")
def test_15_names_the_hosts_numa_nodes_and_never_the_gpus_own(node: FakeNode) -> None:
    topology = node.topology()
    assert [gpu.own_numa for gpu in node.gpus] == [2, 10, 18, 26]
    assert [gpu.numa for gpu in topology.gpus] == [0, 0, 1, 1]
    assert all(gpu.lingers for gpu in topology.gpus)
    assert cliques(topology, least=18) == ["0123"]


@machine("17", H100)
def test_17_has_eight_links_on_an_architecture_that_has_eighteen_and_is_sound(node: FakeNode) -> None:
    topology = node.topology()
    assert cliques(topology, least=8) == ["01234567"]
    assert {(gpu.nvlinks, gpu.nvlinks_expected, gpu.switched) for gpu in topology.gpus} == {(8, 8, True)}
    assert healths(topology) == [GpuHealth.HEALTHY] * 8


@machine("18", A100)
def test_18_has_a_degraded_gpu_5_outside_a_clique_of_seven(node: FakeNode) -> None:
    topology = node.topology()
    assert cliques(topology) == ["0123467", "5"]
    assert by(healths(topology)) == ["0123467", "5"]
    gpu = topology.gpus[5]
    assert (gpu.health, gpu.nvlinks, gpu.nvlinks_expected) == (GpuHealth.DEGRADED, 0, 12)
    assert gpu.placeable
    assert [line.partition(":")[0][:5] for line in topology.complaints] == ["GPU 5"]


@machine("20", H100)
def test_20_has_seven_gpus_and_complains_of_the_eighth_that_is_expected(node: FakeNode) -> None:
    assert node.topology().complaints == ()
    node.set(expected=8)
    topology = node.topology()
    assert len(topology.gpus) == 7
    assert topology.expected == 8
    assert cliques(topology) == ["0123456"]
    assert [line for line in topology.complaints if line.startswith("NVML lists 7 of 8 GPUs")] != []
