"""The facade: what crosses the border of the bindings, and what never does."""

import ctypes
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pynvml
import pytest

from swapd.core.ids import Bytes
from swapd.core.topology import PcieLevel
from swapd.gpus import errors
from swapd.gpus.errors import (
    DriverNotLoadedError,
    ImplausibleError,
    InvalidArgumentError,
    LibraryAbsentError,
    LostError,
    MismatchError,
    NoPermissionError,
    NotSupportedError,
    NvmlError,
    NvmlTimeoutError,
    OutdatedError,
    UnknownError,
)
from swapd.gpus.fake_gpu import GIB, FakeProcess
from swapd.gpus.nvml import Field, Nvml, PeerCapability
from swapd.gpus.readings import Device, GpuProcess, MemoryReading, RemappedRows, RemoteKind
from tests.gpus.nodes import H100, FakeNode, fixture

TOTAL = Bytes(80 * GIB)


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path, fixture("06"), H100)


@pytest.fixture
def device(node: FakeNode) -> Device:
    return node.nvml.device(0)


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "ours", "said"),
    [
        (pynvml.NVMLError_GpuIsLost, LostError, (15, "GpuIsLost")),
        (pynvml.NVMLError_ResetRequired, LostError, (16, "ResetRequired")),
        (pynvml.NVMLError_NotSupported, NotSupportedError, (3, "NotSupported")),
        (pynvml.NVMLError_FunctionNotFound, OutdatedError, (13, "FunctionNotFound")),
        (pynvml.NVMLError_InvalidArgument, InvalidArgumentError, (2, "InvalidArgument")),
        (pynvml.NVMLError_NoPermission, NoPermissionError, (4, "NoPermission")),
        (pynvml.NVMLError_Unknown, UnknownError, (999, "Unknown")),
        (pynvml.NVMLError_Timeout, NvmlTimeoutError, (10, "Timeout")),
        (pynvml.NVMLError_LibraryNotFound, LibraryAbsentError, (12, "LibraryNotFound")),
        (pynvml.NVMLError_DriverNotLoaded, DriverNotLoadedError, (9, "DriverNotLoaded")),
        (pynvml.NVMLError_LibRmVersionMismatch, MismatchError, (18, "LibRmVersionMismatch")),
        (pynvml.NVMLError_OperatingSystem, NvmlError, (17, "OperatingSystem")),
        (lambda: pynvml.NVMLError(12345), NvmlError, (12345, "NVMLError")),
        (lambda: pynvml.NVMLError(pynvml.NVML_SUCCESS), NvmlError, (0, "NVMLError")),
        (pynvml.NVMLLibraryMismatchError, MismatchError, (13, "LibraryMismatch")),
        (lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, ""), ImplausibleError, (0, "ImplausibleText")),
    ],
)
def test_every_error_becomes_one_of_ours_and_keeps_its_number_and_name(
    node: FakeNode, device: Device, raised: type[Exception], ours: type[NvmlError], said: tuple[int, str]
) -> None:
    heard: list[NvmlError] = []
    nvml = Nvml(node.library, on_error=heard.append)
    node.library.faults.fail("DeviceGetName", raised)
    with pytest.raises(NvmlError) as caught:
        nvml.name(device)
    assert type(caught.value) is ours
    assert (caught.value.code, caught.value.name) == said
    assert caught.value.call == "DeviceGetName"
    assert str(caught.value) == f"NVML answered {said[1]} ({said[0]}) to DeviceGetName"
    assert heard == [caught.value]


def test_every_class_of_ours_is_an_nvml_error_so_that_one_except_is_enough() -> None:
    assert [kind for kind in errors.BY_CODE.values() if not issubclass(kind, NvmlError)] == []
    assert not issubclass(pynvml.NVMLLibraryMismatchError, pynvml.NVMLError)


def test_pitfall_14_bindings_newer_than_the_driver_are_an_error_of_ours(node: FakeNode, device: Device) -> None:
    node.library.faults.old_driver()
    with pytest.raises(NvmlError, match="LibraryMismatch"):
        node.nvml.compute_processes(device, TOTAL)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (pynvml.NVMLError_LibraryNotFound, LibraryAbsentError),
        (pynvml.NVMLError_DriverNotLoaded, DriverNotLoadedError),
    ],
)
def test_pitfall_8_a_driver_that_comes_late_is_reached_by_the_same_object(
    node: FakeNode, error: type[Exception], kind: type[NvmlError]
) -> None:
    node.nvml.shutdown()
    node.library.faults.fail("Init", error, times=3)
    for _ in range(3):
        with pytest.raises(kind):
            node.nvml.init()
        assert node.library.descriptors == ()
    node.nvml.init()
    assert node.nvml.count() == 4


def test_pitfall_33_only_the_real_bindings_are_required() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = [line.partition(">")[0] for line in project["dependencies"]]
    assert "nvidia-ml-py" in names
    assert "pynvml" not in names
    assert packages_distributions()["pynvml"] == ["nvidia-ml-py"]


def test_pitfall_33_importing_warns_of_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import swapd.gpus.nvml"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- handles ---------------------------------------------------------------------------------------------------------


def test_handles_of_one_gpu_are_equal_and_can_be_kept_in_a_dictionary(node: FakeNode) -> None:
    one, again, other = node.nvml.device(0), node.nvml.device(0), node.nvml.device(1)
    assert one == again == node.nvml.device_by_uuid(node.gpus[0].uuid)
    assert one != other
    assert {one: "one", other: "other"}[again] == "one"
    assert one.raw != again.raw  # the bindings' own handles are not


def test_pitfall_3_the_gpu_of_an_event_is_told_by_its_handle_when_nothing_else_answers(node: FakeNode) -> None:
    devices = [node.nvml.device(index) for index in range(4)]
    events = node.nvml.event_set()
    for device in devices:
        node.nvml.register(device, events)
    node.gpus[2].lost = node.gpus[2].mute = True
    node.library.xid(node.gpus[2], 79)
    event = node.nvml.wait(events, 1000)
    assert event is not None
    assert event.xid == 79
    assert devices.index(event.device) == 2
    for ask in (node.nvml.uuid, node.nvml.name, node.nvml.index, node.nvml.minor):
        with pytest.raises(LostError):
            ask(event.device)
    assert node.nvml.wait(events, 0) is None  # delivered once
    node.nvml.free(events)


def test_an_event_of_another_kind_is_no_xid(node: FakeNode, device: Device) -> None:
    events = node.nvml.event_set()
    node.nvml.register(device, events)
    node.library.event(node.gpus[0], pynvml.nvmlEventTypePState, 79)
    event = node.nvml.wait(events, 1000)
    assert event is not None
    assert event.xid is None


# -- memory and processes --------------------------------------------------------------------------------------------


def test_pitfall_19_free_memory_is_what_version_2_says_and_the_reserve_is_told_apart(
    node: FakeNode, device: Device
) -> None:
    node.gpus[0].used_bytes = 10 * GIB
    assert node.nvml.memory(device) == MemoryReading(TOTAL, Bytes(80 * GIB - GIB // 2 - 10 * GIB), Bytes(GIB // 2))
    assert node.nvml.memory(device).capacity_bytes == 80 * GIB - GIB // 2


def test_a_driver_without_version_2_is_asked_in_version_1(node: FakeNode, device: Device) -> None:
    node.library.faults.old_driver()
    node.gpus[0].used_bytes = 10 * GIB
    assert node.nvml.memory(device) == MemoryReading(TOTAL, Bytes(80 * GIB - GIB // 2 - 10 * GIB), Bytes(0))


@pytest.mark.parametrize("total", [None, 0])
def test_pitfall_17_memory_that_is_the_hosts_is_not_supported(
    node: FakeNode, device: Device, total: int | None
) -> None:
    node.gpus[0].total_bytes = total
    with pytest.raises(NotSupportedError):
        node.nvml.memory(device)


@pytest.mark.parametrize(("free", "reserved"), [(TOTAL + 1, 0), (0, TOTAL)])
def test_memory_that_cannot_be_true_is_not_used(node: FakeNode, device: Device, free: int, reserved: int) -> None:
    info = pynvml.c_nvmlMemory_v2_t(pynvml.nvmlMemory_v2, TOTAL, reserved, free, 0)
    node.library.nvmlDeviceGetMemoryInfo = lambda *_: info  # type: ignore[method-assign]
    with pytest.raises(ImplausibleError):
        node.nvml.memory(device)


def test_pitfall_21_the_memory_of_a_partitioned_gpu_is_not_permitted(node: FakeNode, device: Device) -> None:
    node.gpus[0].mig = True
    assert node.nvml.mig(device)
    with pytest.raises(NoPermissionError):
        node.nvml.memory(device)
    with pytest.raises(NotSupportedError):
        node.nvml.utilization(device)


def test_a_card_without_the_mode_is_not_partitioned(node: FakeNode, device: Device) -> None:
    node.gpus[0].mig = None
    assert not node.nvml.mig(device)


def test_processes_are_listed_with_their_memory(node: FakeNode, device: Device) -> None:
    node.gpus[0].compute = [FakeProcess(41, GIB), FakeProcess(4_194_304, TOTAL)]
    node.gpus[0].graphics = [FakeProcess(42, 0)]
    assert node.nvml.compute_processes(device, TOTAL) == (
        GpuProcess(41, Bytes(GIB)),
        GpuProcess(4_194_304, TOTAL),
    )
    assert node.nvml.graphics_processes(device, TOTAL) == (GpuProcess(42, Bytes(0)),)


def test_pitfall_12_memory_that_is_not_told_is_none_and_the_process_is_there(node: FakeNode, device: Device) -> None:
    node.gpus[0].compute = [FakeProcess(41, None), FakeProcess(42, GIB)]
    assert node.nvml.compute_processes(device, TOTAL) == (GpuProcess(41, None), GpuProcess(42, Bytes(GIB)))


@pytest.mark.parametrize(
    "garbage",
    [
        FakeProcess(4_194_305, GIB),
        FakeProcess(4_294_967_295, None),
        FakeProcess(0, GIB),
        FakeProcess(42, TOTAL + 1),
        FakeProcess(42, 2**64 - 1),
    ],
)
def test_pitfall_13_one_impossible_entry_makes_the_whole_list_untrusted(
    node: FakeNode, device: Device, garbage: FakeProcess
) -> None:
    heard: list[NvmlError] = []
    nvml = Nvml(node.library, on_error=heard.append)
    node.gpus[0].compute = node.gpus[0].graphics = [FakeProcess(41, GIB), garbage]
    with pytest.raises(ImplausibleError, match="ImplausibleProcess"):
        nvml.compute_processes(device, TOTAL)
    with pytest.raises(ImplausibleError):
        nvml.graphics_processes(device, TOTAL)
    assert [error.name for error in heard] == ["ImplausibleProcess"] * 2


# -- other conversions -----------------------------------------------------------------------------------------------


def test_addresses_levels_and_links_come_in_our_words(node: FakeNode, device: Device) -> None:
    nvml, other = node.nvml, node.nvml.device(1)
    assert nvml.bdf(device) == node.gpus[0].bdf
    assert nvml.link_remote_bdf(device, 0) == node.gpus[1].bdf
    assert nvml.link_remote_kind(device, 0) is RemoteKind.GPU
    assert nvml.common_ancestor(device, other) is PcieLevel.SYS
    assert nvml.peers(device, other, PeerCapability.READ)
    assert nvml.remapped_rows(device) == RemappedRows(0, 0, pending=False, failed=False)
    assert (nvml.minor(device), nvml.compute_capability(device), nvml.utilization(device)) == (0, (9, 0), 0)


def test_an_address_of_garbage_is_no_address(node: FakeNode, device: Device) -> None:
    info = pynvml.nvmlPciInfo_t(b"\xff\xfe", 0, 0, 0, 0, 0, b"\xff")
    node.library.nvmlDeviceGetPciInfo = lambda _: info  # type: ignore[method-assign]
    assert node.nvml.bdf(device) == ""


def test_only_the_old_place_of_the_address_may_be_filled(node: FakeNode, device: Device) -> None:
    info = pynvml.nvmlPciInfo_t(b"0000:1A:00.0", 0, 0, 0, 0, 0, b"")
    node.library.nvmlDeviceGetPciInfo = lambda _: info  # type: ignore[method-assign]
    assert node.nvml.bdf(device) == "0000:1a:00.0"


def test_a_field_that_fails_alone_is_none_and_the_others_are_read(node: FakeNode, device: Device) -> None:
    node.gpus[0].recovery_action = 2
    wanted = [(Field.LINK_SPEED, 35), (Field.RECOVERY_ACTION, 0), (Field.LINK_SPEED, 0)]
    assert node.nvml.field_values(device, wanted) == (None, 2, 26_562)


@pytest.mark.parametrize(
    ("kind", "attribute", "number"),
    [
        (pynvml.NVML_VALUE_TYPE_DOUBLE, "dVal", 3.0),
        (pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, "ullVal", 1 << 40),
        (pynvml.NVML_VALUE_TYPE_SIGNED_INT, "siVal", -1),
        (pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT, "usVal", 7),
    ],
)
def test_a_field_is_read_by_its_type(node: FakeNode, device: Device, kind: int, attribute: str, number: float) -> None:
    values = (pynvml.c_nvmlFieldValue_t * 1)()
    values[0].value.ullVal = 2**64 - 1
    values[0].valueType = kind
    setattr(values[0].value, attribute, number)
    node.library.nvmlDeviceGetFieldValues = lambda *_: values  # type: ignore[method-assign]
    assert node.nvml.field_values(device, [(Field.LINK_SPEED, 0)]) == (number,)
    values[0].valueType = 99
    assert node.nvml.field_values(device, [(Field.LINK_SPEED, 0)]) == (None,)


def test_pitfall_36_a_short_mask_is_cut_off_without_an_error(node: FakeNode, device: Device) -> None:
    node.gpus[0].cpus = (0, 63, 64, 191)
    assert node.nvml.cpus(device, 3) == (0, 63, 64, 191)
    assert node.nvml.cpus(device, 1) == (0, 63)


def test_the_constant_for_reading_peers_is_a_number() -> None:
    assert pynvml.NVML_P2P_CAPS_INDEX_READ == (0,)  # the bindings' mistake; if this fails, they have mended it
    assert PeerCapability.READ == 0


def test_a_null_handle_has_an_address_too(node: FakeNode) -> None:
    node.library.nvmlDeviceGetHandleByIndex = lambda _: ctypes.cast(None, pynvml.c_nvmlDevice_t)  # type: ignore[method-assign]
    assert node.nvml.device(0).address == 0
