"""Discovery when GPUs are lost, partitioned, come, go or cannot tell their memory, and when the driver is at fault."""

from pathlib import Path

import pynvml
import pytest

from swapd.core.ids import Bytes
from swapd.core.topology import DriverState, GpuHealth
from swapd.gpus.errors import (
    DriverError,
    DriverNotLoadedError,
    LibraryAbsentError,
    MismatchError,
    NoGpuError,
    NvmlError,
    UnknownError,
)
from swapd.gpus.fake_gpu import GIB, FakeGpu, Product, gpus_of
from swapd.gpus.fixture import parse_matrix
from tests.gpus.nodes import A100, H100, FakeNode, fixture, healths


@pytest.fixture
def hgx(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path, fixture("03"), H100)


# -- a GPU that is lost ----------------------------------------------------------------------------------------------


def test_pitfall_1_a_lost_gpu_leaves_seven_that_are_healthy(hgx: FakeNode) -> None:
    hgx.library.faults.lose(hgx.gpus[3])
    topology = hgx.topology()
    assert [gpu.index for gpu in topology.gpus] == list(range(8))
    assert [gpu.index for gpu in topology.gpus if gpu.health is GpuHealth.HEALTHY] == [0, 1, 2, 4, 5, 6, 7]
    assert topology.gpus[3].health is GpuHealth.LOST
    assert "GpuIsLost" in topology.gpus[3].why


def test_pitfall_2_a_lost_gpu_that_looks_healthy_to_some_calls_is_in_no_peer_mask(hgx: FakeNode) -> None:
    before = hgx.topology()
    assert before.links[0][3] == 18
    lost, device = hgx.gpus[3], hgx.nvml.device(3)
    lost.lost = True
    assert hgx.nvml.count() == 8
    assert hgx.nvml.link_active(device, 0)
    assert hgx.nvml.compute_processes(device, Bytes(1)) == ()
    hgx.library.faults.block("DeviceGetHandleByIndex", lambda: setattr(lost, "lost", False), gpu=lost)
    hgx.library.faults.block("DeviceGetUUID", lambda: setattr(lost, "lost", True), gpu=lost)
    topology = hgx.topology()  # its handle still resolved, its uuid still answers: only memory tells
    assert topology.gpus[3].health is GpuHealth.LOST
    assert not topology.gpus[3].placeable
    assert topology.placeable == 0b1111_0111
    assert topology.links[3] == (0,) * 8
    assert [row[3] for row in topology.links] == [0] * 8


def test_a_lost_gpu_keeps_its_place_with_what_was_last_known_of_it(hgx: FakeNode) -> None:
    before = hgx.topology().gpus[3]
    hgx.library.faults.lose(hgx.gpus[3])
    after = hgx.topology().gpus[3]
    assert (after.uuid, after.bdf, after.name, after.memory_bytes) == (
        before.uuid,
        before.bdf,
        before.name,
        before.memory_bytes,
    )
    assert after.pcie_root == before.pcie_root
    hgx.library.faults.heal(hgx.gpus[3])
    assert hgx.topology().gpus[3] == before


def test_a_gpu_lost_in_the_middle_of_the_scan_is_lost_and_the_rest_is_found(hgx: FakeNode) -> None:
    hgx.library.faults.lose(hgx.gpus[3], after=20)
    topology = hgx.topology()
    assert topology.gpus[3].health is GpuHealth.LOST
    assert topology.gpus[3].uuid == hgx.gpus[3].uuid
    assert sum(gpu.health is GpuHealth.HEALTHY for gpu in topology.gpus) == 7


def test_links_to_a_gpu_that_was_lost_before_its_address_was_known_join_no_strangers(tmp_path: Path) -> None:
    """On a cube mesh the neighbours of the lost GPU would seem to share a switch."""
    node = FakeNode(tmp_path, fixture("01"))
    intact = node.topology().links
    node.known = ()
    node.library.faults.lose(node.gpus[3])
    topology = node.topology()
    assert topology.gpus[3].bdf == ""
    assert not any(gpu.switched for gpu in topology.gpus)
    for one in (0, 1, 2, 4, 5, 6, 7):
        assert [topology.links[one][two] for two in (0, 1, 2, 4, 5, 6, 7)] == [
            intact[one][two] for two in (0, 1, 2, 4, 5, 6, 7)
        ]


def test_the_only_gpu_of_a_node_that_is_lost_is_a_lost_gpu_and_no_dead_driver(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, "\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-3\t0\n")
    assert healths(node.topology()) == [GpuHealth.HEALTHY]
    node.library.faults.lose(node.gpus[0])
    assert healths(node.topology()) == [GpuHealth.LOST]


# -- places ----------------------------------------------------------------------------------------------------------


def test_a_gpu_never_readable_gets_its_uuid_once_it_answers_and_keeps_its_place(hgx: FakeNode) -> None:
    hgx.library.faults.lose(hgx.gpus[2])
    first = hgx.topology()
    assert (first.gpus[2].uuid, first.gpus[2].health) == ("", GpuHealth.LOST)
    assert [gpu.uuid for gpu in first.gpus[3:]] == [gpu.uuid for gpu in hgx.gpus[3:]]
    hgx.library.faults.heal(hgx.gpus[2])
    assert [gpu.uuid for gpu in hgx.topology().gpus] == [gpu.uuid for gpu in hgx.gpus]


def test_of_several_gpus_never_readable_the_one_that_answers_takes_the_place_that_nvml_counts_it_at(
    hgx: FakeNode,
) -> None:
    for place in (2, 5):
        hgx.library.faults.lose(hgx.gpus[place])
    hgx.discover()
    hgx.library.faults.heal(hgx.gpus[5])
    assert [gpu.uuid for gpu in hgx.topology().gpus] == [
        gpu.uuid if place != 2 else "" for place, gpu in enumerate(hgx.gpus)
    ]


def test_pitfall_4_a_gpu_that_is_gone_without_a_word_is_complained_of(hgx: FakeNode) -> None:
    before = hgx.topology()
    assert before.complaints == ()
    gone = hgx.library.gpus.pop(2)
    topology = hgx.topology()
    assert [gpu.uuid for gpu in topology.gpus] == [gpu.uuid for gpu in before.gpus]
    assert topology.gpus[2].uuid == gone.uuid
    assert topology.gpus[2].health is GpuHealth.LOST
    assert topology.complaints[0].startswith("NVML lists 7 of 8 GPUs")
    assert topology.complaints[1].startswith("GPU 2 (")


def test_the_most_gpus_that_were_ever_seen_are_expected_where_no_number_is_configured(hgx: FakeNode) -> None:
    hgx.set(most_seen=10)
    assert hgx.topology().expected == 10
    hgx.set(most_seen=4)
    assert hgx.topology().expected == 8
    hgx.set(expected=6)
    assert (hgx.topology().expected, hgx.topology().complaints) == (6, ())


def test_pitfall_29_a_new_gpu_is_seen_after_nvml_was_begun_again_and_appended(hgx: FakeNode) -> None:
    before = hgx.topology()
    extra = FakeGpu(H100, "GPU-new", 8, "0000:10:00.0", total_bytes=80 * GIB)
    hgx.library.gpus.insert(0, extra)
    assert len(hgx.topology().gpus) == 8
    hgx.begin_again()
    topology = hgx.topology()
    assert [gpu.uuid for gpu in topology.gpus] == [*(gpu.uuid for gpu in before.gpus), "GPU-new"]
    assert [gpu.index for gpu in topology.gpus] == list(range(9))


def test_pitfall_29_handles_are_resolved_anew_after_nvml_was_begun_again(hgx: FakeNode) -> None:
    old = hgx.discover().devices
    hgx.begin_again()
    with pytest.raises(NvmlError, match="InvalidArgument"):
        hgx.nvml.memory(old[0])
    new = hgx.discover().devices
    assert [hgx.nvml.uuid(new[place]) for place in range(8)] == [gpu.uuid for gpu in hgx.gpus]
    assert hgx.nvml.device_by_uuid(hgx.gpus[5].uuid) == new[5]


def test_pitfall_30_a_gpu_keeps_its_place_when_nvml_counts_in_another_order(hgx: FakeNode) -> None:
    before = hgx.topology()
    hgx.library.gpus.reverse()
    hgx.begin_again()
    found = hgx.discover()
    assert found.topology.gpus == before.gpus
    assert found.topology.links == before.links
    assert hgx.nvml.index(found.devices[0]) == 7


def test_a_gpu_that_was_exchanged_is_appended_and_not_missed(hgx: FakeNode) -> None:
    hgx.discover()
    old = hgx.library.gpus[3]
    new = FakeGpu(H100, "GPU-new", 3, old.bdf, links=old.links, numa=0, total_bytes=80 * GIB)
    hgx.library.gpus[3] = new
    hgx.begin_again()
    topology = hgx.topology()
    assert (topology.gpus[3].health, topology.gpus[8].health) == (GpuHealth.LOST, GpuHealth.HEALTHY)
    assert topology.links[8][0] == 18
    assert topology.gpus[8].pcie_switch == ""
    assert topology.expected == 8


def test_a_gpu_in_the_place_of_another_shares_no_switch_with_it(tmp_path: Path) -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPIX\t0-3\t0\nGPU1\tPIX\t X \t0-3\t0\n"
    node = FakeNode(tmp_path, text)
    assert [gpu.pcie_switch for gpu in node.topology().gpus] == ["0000:a0:00.0"] * 2
    old, gone = node.library.gpus
    node.library.gpus[:] = [FakeGpu(H100, "GPU-new", 0, old.bdf, total_bytes=80 * GIB)]
    (tmp_path / "sys/bus/pci/devices" / gone.bdf).unlink()
    node.begin_again()
    topology = node.topology()
    assert healths(topology) == [GpuHealth.LOST, GpuHealth.LOST, GpuHealth.HEALTHY]
    assert [gpu.pcie_switch for gpu in topology.gpus] == ["0000:a0:00.0", "0000:a0:00.0", ""]


# -- memory and MIG --------------------------------------------------------------------------------------------------


def test_what_the_driver_keeps_for_itself_is_no_capacity(hgx: FakeNode) -> None:
    gpu = hgx.topology().gpus[0]
    assert gpu.memory_bytes == 80 * GIB - GIB // 2
    assert gpu.measured


@pytest.mark.parametrize("total", [None, 0])
def test_pitfall_17_unified_memory_counts_as_configured_and_is_never_measured(
    tmp_path: Path, total: int | None
) -> None:
    node = FakeNode(tmp_path, fixture("13"), memory_bytes=Bytes(96 * GIB))
    node.gpus[0].total_bytes = total
    topology = node.topology()
    assert (topology.gpus[0].memory_bytes, topology.gpus[0].measured) == (96 * GIB, False)
    assert topology.gpus[0].health is GpuHealth.HEALTHY
    assert (topology.gpus[1].memory_bytes, topology.gpus[1].measured) == (80 * GIB - GIB // 2, True)


def test_memory_that_nobody_tells_is_asked_for(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, fixture("13"))
    node.gpus[0].total_bytes = None
    topology = node.topology()
    assert topology.gpus[0].memory_bytes == 0
    assert topology.complaints == (
        "GPU 0: NVML answered NotSupported (3) to DeviceGetMemoryInfo: configure its memory to use it",
    )


def test_pitfall_21_a_partitioned_gpu_is_known_and_takes_no_model(hgx: FakeNode) -> None:
    hgx.discover()
    hgx.gpus[6].mig = True
    topology = hgx.topology()
    assert topology.gpus[6].health is GpuHealth.MIG
    assert not topology.gpus[6].measured
    assert topology.gpus[6].memory_bytes == topology.gpus[0].memory_bytes
    assert topology.placeable == 0b1011_1111
    assert [row[6] for row in topology.links] == [0] * 8
    assert healths(topology).count(GpuHealth.HEALTHY) == 7


def test_a_card_without_mig_is_an_ordinary_gpu(hgx: FakeNode) -> None:
    hgx.gpus[0].mig = None
    assert hgx.topology().gpus[0].health is GpuHealth.HEALTHY


def test_pitfall_14_a_driver_older_than_the_bindings_is_discovered(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, fixture("02"), A100)
    node.library.faults.old_driver()
    topology = node.topology()
    assert healths(topology) == [GpuHealth.HEALTHY] * 8
    assert {gpu.memory_bytes for gpu in topology.gpus} == {80 * GIB}
    assert all(gpu.measured for gpu in topology.gpus)


def test_products_and_what_they_can_do_are_told_apart(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, fixture("13"))
    other = gpus_of(parse_matrix(fixture("13")), Product("NVIDIA T4", 16 * GIB, compute_capability=(7, 5)))
    node.gpus[2].product, node.gpus[2].total_bytes = other[2].product, other[2].total_bytes
    gpus = node.topology().gpus
    assert [gpu.name for gpu in gpus] == ["GPU of a topology matrix"] * 2 + ["NVIDIA T4", "GPU of a topology matrix"]
    assert (gpus[2].compute_capability, gpus[0].compute_capability) == ((7, 5), (9, 0))
    assert [gpu.minor for gpu in gpus] == [0, 1, 2, 3]


# -- the driver as a whole -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (pynvml.NVMLError_LibraryNotFound, LibraryAbsentError),
        (pynvml.NVMLError_DriverNotLoaded, DriverNotLoadedError),
        (pynvml.NVMLError_LibRmVersionMismatch, MismatchError),
        (pynvml.NVMLLibraryMismatchError, MismatchError),
        (pynvml.NVMLError_Unknown, UnknownError),
    ],
)
def test_a_driver_that_does_not_even_count_is_an_error_of_the_driver(
    hgx: FakeNode, error: type[Exception], kind: type[NvmlError]
) -> None:
    hgx.library.faults.fail("DeviceGetCount", error)
    with pytest.raises(DriverError) as raised:
        hgx.discover()
    assert type(raised.value.error) is kind


@pytest.mark.parametrize("call", ["DeviceGetHandleByIndex", "DeviceGetUUID", "DeviceGetMemoryInfo_v2"])
def test_unknown_from_every_gpu_is_an_error_of_the_driver_and_from_all_but_one_is_not(hgx: FakeNode, call: str) -> None:
    for gpu in hgx.gpus[1:]:
        hgx.library.faults.fail(call, pynvml.NVMLError_Unknown, gpu=gpu)
    assert healths(hgx.topology()) == [GpuHealth.HEALTHY, *[GpuHealth.LOST] * 7]
    hgx.library.faults.fail(call, pynvml.NVMLError_Unknown, gpu=hgx.gpus[0])
    with pytest.raises(DriverError) as raised:
        hgx.discover()
    assert isinstance(raised.value.error, UnknownError)


def test_a_lost_gpu_among_unknown_ones_does_not_hide_the_drivers_fault(hgx: FakeNode) -> None:
    hgx.library.faults.lose(hgx.gpus[0])
    for gpu in hgx.gpus[1:]:
        hgx.library.faults.fail("DeviceGetHandleByIndex", pynvml.NVMLError_Unknown, gpu=gpu)
    with pytest.raises(DriverError):
        hgx.discover()


def test_a_driver_without_any_gpu_is_an_error(hgx: FakeNode) -> None:
    hgx.library.gpus.clear()
    with pytest.raises(DriverError) as raised:
        hgx.discover()
    assert isinstance(raised.value.error, NoGpuError)


def test_the_driver_and_its_version_are_told(hgx: FakeNode) -> None:
    topology = hgx.topology()
    assert (topology.driver, topology.driver_version) == (DriverState.UP, "580.82.07")
    hgx.library.faults.fail("SystemGetDriverVersion", pynvml.NVMLError_Unknown)
    assert hgx.topology().driver_version == ""


def test_discovery_neither_begins_nor_ends_nvml(hgx: FakeNode) -> None:
    """Pitfalls 25 and 37: one owner, one Init for life."""
    for _ in range(20):
        hgx.discover()
    assert hgx.library.calls["Init"] == 1
    assert hgx.library.calls["Shutdown"] == 0
    assert len(hgx.library.descriptors) == 9
