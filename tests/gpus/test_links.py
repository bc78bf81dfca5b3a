"""NVLinks and the fabric: what is counted, what is degraded, and what is never taken for a link."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from swapd.core.topology import Fabric, FabricHealth, FabricState, GpuHealth
from swapd.gpus.fabric import fabric_pending, fabric_trouble
from swapd.gpus.fake_gpu import FakeFabric, FakeLink, hide_remotes, nvml_bdf, take_down
from swapd.gpus.links import LinkScan, join, most_common
from swapd.gpus.readings import RemoteKind
from tests.gpus.nodes import A100, H100, FakeNode, cliques, fixture, healths, pairs


@pytest.fixture
def hgx(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path, fixture("03"), H100)


@pytest.fixture
def mesh(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path, fixture("06"), A100)


@pytest.mark.parametrize("error", [pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument])
@pytest.mark.parametrize("link", [0, 5, 17])
def test_pitfall_22_an_error_at_any_link_says_nothing_of_the_next(
    tmp_path: Path, error: type[Exception], link: int
) -> None:
    node = FakeNode(tmp_path, fixture("03"), H100)
    for gpu in node.gpus:
        node.library.faults.fail("DeviceGetNvLinkState", error, gpu=gpu, skip=link, times=1)
    topology = node.topology()
    assert {gpu.nvlinks for gpu in topology.gpus} == {17}
    assert cliques(topology, least=17) == ["01234567"]
    assert topology.complaints == ()


def test_pitfall_22_cards_without_nvlink_are_healthy_and_unlinked(tmp_path: Path) -> None:
    topology = FakeNode(tmp_path, fixture("13")).topology()
    assert topology.links == ()
    assert healths(topology) == [GpuHealth.HEALTHY] * 4
    assert {gpu.nvlink_mbps for gpu in topology.gpus} == {0}


def test_a_link_whose_state_cannot_be_read_counts_as_down_and_is_told(hgx: FakeNode) -> None:
    hgx.library.faults.fail("DeviceGetNvLinkState", pynvml.NVMLError_Unknown, gpu=hgx.gpus[2], skip=3, times=2)
    topology = hgx.topology()
    assert topology.gpus[2].nvlinks == 16
    assert "GPU 2: the state of 2 NVLinks could not be read, they count as down" in topology.complaints


def test_pitfall_23_unknown_other_ends_on_all_gpus_are_one_fabric(hgx: FakeNode) -> None:
    for gpu in hgx.gpus:
        hide_remotes(gpu)
    topology = hgx.topology()
    assert cliques(topology, least=18) == ["01234567"]
    assert all(gpu.switched for gpu in topology.gpus)


def test_pitfall_23_other_ends_that_cannot_be_asked_for_are_one_fabric(hgx: FakeNode) -> None:
    hgx.library.faults.fail("DeviceGetNvLinkRemotePciInfo", pynvml.NVMLError_NotSupported)
    hgx.library.faults.fail("DeviceGetNvLinkRemoteDeviceType", pynvml.NVMLError_FunctionNotFound)
    assert cliques(hgx.topology(), least=18) == ["01234567"]


@pytest.mark.parametrize("off", range(1, 19))
def test_pitfall_24_any_number_of_links_that_are_off_degrades_with_the_true_count(hgx: FakeNode, off: int) -> None:
    take_down(hgx.gpus[4], off)
    topology = hgx.topology()
    gpu = topology.gpus[4]
    assert (gpu.health, gpu.nvlinks, gpu.nvlinks_expected) == (GpuHealth.DEGRADED, 18 - off, 18)
    assert topology.links[4][0] == topology.links[0][4] == 18 - off
    assert topology.links[0][1] == 18
    assert healths(topology).count(GpuHealth.HEALTHY) == 7
    assert topology.complaints[0].startswith("GPU 4 (")


def test_a_pair_whose_bridge_is_partly_down_degrades_both(mesh: FakeNode) -> None:
    take_down(mesh.gpus[0], 1, peer=mesh.gpus[3])
    topology = mesh.topology()
    assert topology.links[0][3] == topology.links[3][0] == 3
    assert [gpu.health for gpu in topology.gpus] == [
        GpuHealth.DEGRADED,
        GpuHealth.HEALTHY,
        GpuHealth.HEALTHY,
        GpuHealth.DEGRADED,
    ]


def test_two_gpus_that_disagree_count_the_smaller_number_and_both_are_degraded(mesh: FakeNode) -> None:
    take_down(mesh.gpus[1], 2, peer=mesh.gpus[2], one_sided=True)
    topology = mesh.topology()
    assert topology.links[1][2] == topology.links[2][1] == 2
    assert [place for place, gpu in enumerate(topology.gpus) if gpu.health is GpuHealth.DEGRADED] == [1, 2]
    assert topology.gpus[2].why == "it and GPU 1 disagree about the NVLinks between them"
    assert any(line.startswith("GPU 1 sees 2 NVLinks to GPU 2, which sees 4 back") for line in topology.complaints)


def test_links_to_gpus_left_out_of_the_container_join_no_strangers(tmp_path: Path) -> None:
    """Bridged pairs 12 and 34: with 2 and 4 left out, 1 and 3 each have links to a GPU that is not there."""
    node = FakeNode(tmp_path, fixture("05"))
    for place in (4, 2):
        node.library.gpus.pop(place)
    topology = node.topology()
    assert [gpu.nvlinks for gpu in topology.gpus] == [12] * 6
    assert cliques(topology) == ["03", "1", "2", "45"]


def test_the_links_of_a_processor_are_no_switch(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, fixture("13"))
    for gpu in node.gpus:
        gpu.links = [FakeLink(True, None, "00000004:00:01.0", pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU)] * 3  # noqa: FBT003
    topology = node.topology()
    assert topology.links == ()
    assert [gpu.nvlinks for gpu in topology.gpus] == [3] * 4


def test_pitfall_34_addresses_are_the_same_in_either_case_and_length(mesh: FakeNode) -> None:
    expected = mesh.topology()
    for gpu in mesh.gpus:
        for number, link in enumerate(gpu.active_links):
            assert link.peer is not None
            link.remote = (nvml_bdf(link.peer.bdf), link.peer.bdf, link.peer.bdf.upper())[number % 3]
    assert mesh.topology() == expected
    assert pairs(expected, 4) == ["01", "02", "03", "12", "13", "23"]
    assert [gpu.bdf for gpu in expected.gpus] == [gpu.bdf for gpu in mesh.gpus]


def test_an_address_that_cannot_be_read_this_time_is_the_one_that_was_known(mesh: FakeNode) -> None:
    expected = mesh.topology()
    mesh.library.faults.fail("DeviceGetPciInfo", pynvml.NVMLError_Unknown)
    assert mesh.topology() == expected


def test_gpus_whose_address_is_not_known_are_unlinked_and_not_degraded(mesh: FakeNode) -> None:
    mesh.library.faults.fail("DeviceGetPciInfo", pynvml.NVMLError_Unknown, gpu=mesh.gpus[0])
    topology = mesh.topology()
    assert topology.links[0] == (0, 0, 0, 0)
    assert topology.links[1] == (0, 0, 4, 4)
    assert healths(topology) == [GpuHealth.HEALTHY] * 4


def test_the_speed_of_a_link_is_read_in_either_way_and_absent_otherwise(hgx: FakeNode) -> None:
    assert hgx.topology().gpus[0].nvlink_mbps == 26_562
    ask = hgx.library.nvmlDeviceGetFieldValues

    def without_the_common_speed(handle: Any, fields: Any) -> Any:
        values = ask(handle, fields)
        values[0].nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
        return values

    hgx.library.nvmlDeviceGetFieldValues = without_the_common_speed  # type: ignore[method-assign]
    assert hgx.topology().gpus[0].nvlink_mbps == 26_562
    hgx.library.faults.fail("DeviceGetFieldValues", pynvml.NVMLError_NotSupported)
    assert hgx.topology().gpus[0].nvlink_mbps == 0


def test_only_gpus_of_one_product_are_compared(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, fixture("18"), A100)
    node.gpus[5].product = replace(A100, name="NVIDIA A100-PCIE-80GB")
    assert healths(node.topology()) == [GpuHealth.HEALTHY] * 8


def test_the_most_common_count_of_equally_frequent_ones_is_the_greatest() -> None:
    assert most_common([12, 12, 0, 0]) == 12
    assert most_common([4, 4, 12]) == 4
    assert most_common([]) == 0


def test_a_gpu_whose_links_lead_to_itself_is_linked_to_nobody() -> None:
    loop = LinkScan((("0000:01:00.0", RemoteKind.GPU),) * 4)
    joined = join(["0000:01:00.0", "0000:02:00.0"], [loop, LinkScan()])
    assert joined.links == ((0, 0), (0, 0))
    assert joined.switch == (0, 0)


# -- the fabric ------------------------------------------------------------------------------------------------------


def test_a_registered_fabric_is_sound(hgx: FakeNode) -> None:
    assert hgx.topology().gpus[0].fabric == Fabric(
        FabricState.COMPLETED, health_mask=0x1AA, health=FabricHealth.HEALTHY
    )


def test_a_clique_is_named_only_when_the_gpu_is_attached_to_one(hgx: FakeNode) -> None:
    cluster = bytes(range(16))
    for gpu in hgx.gpus:
        gpu.fabric = FakeFabric(cluster=cluster, clique=7)
    hgx.gpus[1].fabric = FakeFabric(cluster=cluster, clique=7, state=pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS)
    names = [gpu.fabric.clique for gpu in hgx.topology().gpus if gpu.fabric]
    assert names[:3] == ["00010203-0405-0607-0809-0a0b0c0d0e0f.7", "", "00010203-0405-0607-0809-0a0b0c0d0e0f.7"]


def test_pitfall_32_a_fabric_that_is_not_registered_is_a_warning_and_no_gate(hgx: FakeNode) -> None:
    for gpu in hgx.gpus:
        gpu.fabric = FakeFabric(state=pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS)
    topology = hgx.topology()
    assert {gpu.fabric and gpu.fabric.state for gpu in topology.gpus} == {FabricState.IN_PROGRESS}
    assert healths(topology) == [GpuHealth.HEALTHY] * 8
    assert [line.partition(":")[0] for line in topology.complaints] == ["fabric_not_ready"]
    assert "GPU 0, GPU 1, GPU 2" in topology.complaints[0]


def test_an_unhealthy_fabric_degrades_its_gpu_alone(hgx: FakeNode) -> None:
    summary = pynvml.NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY
    hgx.gpus[2].fabric = FakeFabric(health_mask=0x19A, summary=summary)
    topology = hgx.topology()
    assert topology.gpus[2].health is GpuHealth.DEGRADED
    assert topology.gpus[2].why == "its NVLink fabric is unhealthy (health mask 0x19a)"
    assert healths(topology).count(GpuHealth.HEALTHY) == 7


def test_a_registration_that_failed_degrades(hgx: FakeNode) -> None:
    hgx.gpus[2].fabric = FakeFabric(status=pynvml.NVML_ERROR_UNKNOWN)
    topology = hgx.topology()
    assert topology.gpus[2].health is GpuHealth.DEGRADED
    assert "NVML error 999" in topology.gpus[2].why


@pytest.mark.parametrize("error", [pynvml.NVMLError_ArgumentVersionMismatch, pynvml.NVMLError_InvalidArgument])
@pytest.mark.parametrize(
    ("mask", "health"),
    [
        (0x1AA, FabricHealth.HEALTHY),
        (0x19A, FabricHealth.UNHEALTHY),
        (0x2AA, FabricHealth.UNHEALTHY),
        (0, FabricHealth.UNSUPPORTED),
    ],
)
def test_version_2_has_no_summary_and_the_mask_is_the_judge(
    hgx: FakeNode, error: type[Exception], mask: int, health: FabricHealth
) -> None:
    for gpu in hgx.gpus:
        gpu.fabric = FakeFabric(health_mask=mask)
        hgx.library.faults.fail("DeviceGetGpuFabricInfoV", error, gpu=gpu, times=1)
    assert {gpu.fabric and gpu.fabric.health for gpu in hgx.topology().gpus} == {health}


def test_gpus_before_hopper_have_no_fabric(mesh: FakeNode) -> None:
    assert {gpu.fabric for gpu in mesh.topology().gpus} == {None}


def test_a_state_that_we_do_not_know_is_unsupported() -> None:
    node = Fabric(FabricState.UNSUPPORTED)
    assert fabric_trouble(node) == ""
    assert not fabric_pending(node)
