"""Where GPUs are on the host: NUMA nodes, CPUs, PCIe switches; and a /sys that does not say."""

from pathlib import Path

import pynvml
import pytest

from swapd.core.topology import PcieLevel
from swapd.gpus.fake_gpu import FakeGpu, Product
from swapd.gpus.fake_sysfs import write_sysfs
from swapd.gpus.hostpath import HostPath
from swapd.gpus.pcie import shared_switches
from swapd.gpus.readings import bits, canonical_bdf
from tests.gpus.nodes import A100, FakeNode, by, fixture


@pytest.fixture
def tray(tmp_path: Path) -> FakeNode:
    """GB200: NUMA nodes that are memory of GPUs among those near a GPU."""
    node = FakeNode(tmp_path, fixture("15"))
    for gpu in node.gpus[:2]:
        gpu.memory_nodes = (0, *range(3, 10), *range(11, 18))
    for gpu in node.gpus[2:]:
        gpu.memory_nodes = (1, *range(19, 26), *range(27, 34))
    return node


def test_pitfall_15_the_node_that_is_the_gpus_own_memory_is_not_the_hosts(tray: FakeNode) -> None:
    write_sysfs(tray.root, tray.gpus)
    assert [gpu.numa for gpu in tray.topology().gpus] == [0, 0, 1, 1]


def test_pitfall_15_the_kernel_may_name_the_gpus_own_node(tray: FakeNode) -> None:
    write_sysfs(tray.root, tray.gpus)
    for gpu in tray.gpus:
        (tray.root / "sys/bus/pci/devices" / gpu.bdf / "numa_node").write_text(f"{gpu.own_numa}\n")
    assert [gpu.numa for gpu in tray.topology().gpus] == [0, 0, 1, 1]


def test_pitfall_16_without_the_kernels_word_it_is_the_near_node_that_has_cpus(tray: FakeNode) -> None:
    write_sysfs(tray.root, tray.gpus, numa=False)
    assert [gpu.numa for gpu in tray.topology().gpus] == [0, 0, 1, 1]


def test_pitfall_16_a_node_that_nobody_knows_stays_unknown(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, fixture("02"), A100)
    write_sysfs(tmp_path, node.gpus, numa=False)
    node.library.faults.fail("DeviceGetMemoryAffinity", pynvml.NVMLError_NotSupported)
    assert [gpu.numa for gpu in node.topology().gpus] == [-1] * 8


def test_pitfall_16_several_near_nodes_with_cpus_are_no_answer(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, fixture("13"))
    write_sysfs(tmp_path, node.gpus, numa=False)
    for gpu in node.gpus:
        gpu.memory_nodes = (0, 1)
    assert [gpu.numa for gpu in node.topology().gpus] == [-1] * 4


def test_only_a_gpu_whose_memory_is_a_node_of_its_own_lingers(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, fixture("13"))
    assert not any(gpu.lingers for gpu in node.topology().gpus)
    node.gpus[0].own_numa = 7
    node.gpus[1].own_numa = 1  # a node with CPUs
    (tmp_path / "sys/devices/system/node/node0/cpulist").unlink()
    node.gpus[2].own_numa = node.gpus[2].numa
    assert [gpu.lingers for gpu in node.topology().gpus] == [True, False, False, False]
    (tmp_path / "sys/devices/system/node/node1/cpulist").unlink()
    assert [gpu.lingers for gpu in node.topology().gpus] == [True, True, False, False]


def test_pitfall_35_a_level_that_cannot_be_read_is_the_worst_and_discovery_goes_on(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, fixture("10"))
    node.library.faults.fail("DeviceGetTopologyCommonAncestor", pynvml.NVMLError_NotSupported)
    topology = node.topology()
    assert {level for row in topology.levels for level in row} == {PcieLevel.SYS, PcieLevel.BOARD}
    assert by([gpu.pcie_switch for gpu in topology.gpus]) == ["0123", "4567"]
    assert topology.complaints == ()


def test_pitfall_36_more_than_128_cpus_are_all_there(tmp_path: Path) -> None:
    topology = FakeNode(tmp_path, fixture("13")).topology()
    assert topology.gpus[3].cpus == (*range(96, 192), *range(288, 384))


@pytest.mark.parametrize("possible", [None, "", "rubbish", "0-99999999", "0-3,x"])
def test_pitfall_36_a_host_that_does_not_say_how_many_cpus_it_has_loses_none(
    tmp_path: Path, possible: str | None
) -> None:
    node = FakeNode(tmp_path, fixture("13"))
    file = tmp_path / "sys/devices/system/cpu/possible"
    file.unlink() if possible is None else file.write_text(possible)
    assert node.topology().gpus[3].cpus[-1] == 383


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("00000000:1A:00.0", "0000:1a:00.0"),
        ("0000:1A:00.0", "0000:1a:00.0"),
        ("0000:1a:00.0", "0000:1a:00.0"),
        ("00010000:E1:00.7", "10000:e1:00.7"),
        ("FFFFFFFF:FF:FF.0", ""),
        ("", ""),
        ("0000:1a:00", ""),
    ],
)
def test_pitfall_34_an_address_has_one_spelling(text: str, canonical: str) -> None:
    assert canonical_bdf(text) == canonical


def test_bits_are_counted_over_words() -> None:
    assert bits([0b101, 0, 1 << 63]) == (0, 2, 191)


def test_the_switch_that_two_gpus_share_is_the_nearest_one() -> None:
    assert shared_switches([("a", "b"), ("a", "b"), ("a", "c"), ("a",), ("d",), ()]) == ("b", "b", "a", "a", "", "")


def test_switches_below_a_switch_are_told_apart(tmp_path: Path) -> None:
    gpus = [FakeGpu(Product(), f"GPU-{n}", n, f"0000:{n + 1:02x}:00.0") for n in range(4)]
    for gpu in gpus:
        near = gpus[:2] if gpu in gpus[:2] else gpus[2:]
        gpu.levels = {other.bdf: PcieLevel.PIX if other in near else PcieLevel.PXB for other in gpus}
    write_sysfs(tmp_path, gpus)
    paths = [HostPath(tmp_path).pcie_path(gpu.bdf) for gpu in gpus]
    assert by([root for root, _ in paths]) == ["0123"]
    assert by(shared_switches([bridges for _, bridges in paths])) == ["01", "23"]
    assert paths[0][1][0] == paths[3][1][0]


def test_a_root_port_is_no_switch(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, fixture("03"))
    assert HostPath(tmp_path).pcie_path(node.gpus[0].bdf) == ("pci0000:00", ())


def test_nothing_is_known_of_a_host_without_sys(tmp_path: Path) -> None:
    host = HostPath(tmp_path / "nowhere")
    assert host.numa_node("0000:01:00.0") == -1
    assert host.pcie_path("0000:01:00.0") == ("", ())
    assert host.pcie_path("") == ("", ())
    assert host.has_cpus(0) is None
    assert (host.cpu_words, host.node_words) == (128, 16)


def test_a_sys_full_of_rubbish_raises_nothing(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, fixture("13"))
    devices = tmp_path / "sys/bus/pci/devices"
    (devices / node.gpus[0].bdf / "numa_node").write_bytes(b"\xff\xfe")
    (devices / node.gpus[1].bdf / "numa_node").unlink()
    (devices / node.gpus[2].bdf).unlink()
    (devices / node.gpus[3].bdf).unlink()
    (devices / node.gpus[3].bdf).symlink_to(node.gpus[3].bdf)
    assert [gpu.numa for gpu in node.topology().gpus] == [0, 0, 1, 1]
    assert [gpu.pcie_root for gpu in node.topology().gpus[2:]] == ["", ""]
    (devices / node.gpus[2].bdf).symlink_to(tmp_path)
    assert HostPath(tmp_path).pcie_path(node.gpus[2].bdf) == ("", ())


def test_the_host_may_be_mounted_elsewhere(tmp_path: Path) -> None:
    """The links in /sys are relative, so they lead to the host's devices from any mount point."""
    node = FakeNode(tmp_path / "host", fixture("10"))
    assert by([gpu.pcie_switch for gpu in node.topology().gpus]) == ["0123", "4567"]
