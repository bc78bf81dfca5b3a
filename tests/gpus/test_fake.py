"""The fake behaves as the driver was seen to: above all where that is a trap."""

import ctypes
import random
import threading
from pathlib import Path

import pynvml
import pytest

from swapd.gpus.fake import FakeLibrary
from swapd.gpus.fake_gpu import GIB, FakeGpu, FakeProcess, Product, gpus_of, take_down
from swapd.gpus.fixture import parse_matrix
from swapd.gpus.fixture_node import topology_of
from tests.gpus.nodes import A100, FakeNode, fixture


@pytest.fixture
def gpus() -> list[FakeGpu]:
    return gpus_of(parse_matrix(fixture("03")), Product(fabric=True))


@pytest.fixture
def library(gpus: list[FakeGpu]) -> FakeLibrary:
    library = FakeLibrary(gpus)
    library.nvmlInit()
    return library


def failing(library: FakeLibrary, handle: object) -> list[str]:
    """Return the functions about one GPU that say it is lost."""
    calls = {
        "MemoryInfo": lambda: library.nvmlDeviceGetMemoryInfo(handle),
        "Utilization": lambda: library.nvmlDeviceGetUtilizationRates(handle),
        "PciInfo": lambda: library.nvmlDeviceGetPciInfo(handle),
        "Ancestor": lambda: library.nvmlDeviceGetTopologyCommonAncestor(handle, handle),
        "RemappedRows": lambda: library.nvmlDeviceGetRemappedRows(handle),
        "HandleByIndex": lambda: library.nvmlDeviceGetHandleByIndex(3),
        "UUID": lambda: library.nvmlDeviceGetUUID(handle),
        "Name": lambda: library.nvmlDeviceGetName(handle),
        "NvLinkState": lambda: library.nvmlDeviceGetNvLinkState(handle, 0),
        "Processes": lambda: library.nvmlDeviceGetComputeRunningProcesses(handle),
    }
    found = []
    for name, call in calls.items():
        try:
            call()
        except pynvml.NVMLError_GpuIsLost:
            found.append(name)
    return found


def test_a_lost_gpu_goes_on_looking_healthy_to_some_calls(gpus: list[FakeGpu], library: FakeLibrary) -> None:
    handle = library.nvmlDeviceGetHandleByIndex(3)
    gpus[3].compute = [FakeProcess(41, GIB)]
    assert failing(library, handle) == []
    gpus[3].lost = True
    assert failing(library, handle) == [
        "MemoryInfo",
        "Utilization",
        "PciInfo",
        "Ancestor",
        "RemappedRows",
        "HandleByIndex",
    ]
    assert library.nvmlDeviceGetCount() == 8
    assert library.nvmlDeviceGetNvLinkState(handle, 0) == 1
    assert library.nvmlDeviceGetComputeRunningProcesses(handle) == []


def test_a_mute_gpu_answers_nothing(gpus: list[FakeGpu], library: FakeLibrary) -> None:
    handle = library.nvmlDeviceGetHandleByIndex(3)
    gpus[3].mute = True
    assert len(failing(library, handle)) == 10


def test_a_gpu_is_lost_after_a_number_of_calls_and_healed(gpus: list[FakeGpu], library: FakeLibrary) -> None:
    handle = library.nvmlDeviceGetHandleByIndex(3)
    library.faults.lose(gpus[3], after=2)
    library.nvmlDeviceGetMemoryInfo(handle)
    library.nvmlDeviceGetMemoryInfo(handle)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        library.nvmlDeviceGetMemoryInfo(handle)
    library.faults.heal(gpus[3])
    library.nvmlDeviceGetMemoryInfo(handle)


def test_a_gpu_is_lost_by_chance_at_the_call_that_the_seed_says(gpus: list[FakeGpu], library: FakeLibrary) -> None:
    handle = library.nvmlDeviceGetHandleByIndex(3)
    library.faults.lose_by_chance(gpus[3], 0.1, seed=5)
    chance = random.Random(5)
    fine = 0
    while chance.random() >= 0.1:
        library.nvmlDeviceGetMemoryInfo(handle)
        fine += 1
    assert fine > 0
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        library.nvmlDeviceGetMemoryInfo(handle)


def test_inits_are_counted_and_device_files_are_open_until_the_last_shutdown(library: FakeLibrary) -> None:
    """Pitfalls 25 and 28: stands for /proc/self/fd, which only a real driver fills."""
    library.nvmlInit()
    assert library.inits == 2
    library.nvmlShutdown()
    assert len(library.descriptors) == 9
    library.nvmlShutdown()
    assert library.descriptors == ()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        library.nvmlShutdown()
    assert library.owners == {threading.get_ident()}


def test_handles_are_stale_after_another_init(library: FakeLibrary) -> None:
    handle = library.nvmlDeviceGetHandleByIndex(0)
    library.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        library.nvmlDeviceGetName(handle)
    library.nvmlInit()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        library.nvmlDeviceGetName(handle)


def test_what_would_crash_the_real_library_is_a_type_error(library: FakeLibrary) -> None:
    handle = library.nvmlDeviceGetHandleByIndex(0)
    for call in (
        lambda: library.nvmlDeviceGetName(7),
        lambda: library.nvmlDeviceGetNvLinkState(handle, 1.0),  # type: ignore[arg-type]
        lambda: library.nvmlDeviceGetP2PStatus(handle, handle, pynvml.NVML_P2P_CAPS_INDEX_READ),
        lambda: library.nvmlDeviceRegisterEvents(handle, 8, handle),
    ):
        with pytest.raises(TypeError):
            call()


def test_a_call_can_be_held_up_by_an_event_that_the_test_sets(library: FakeLibrary) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        assert go_on.wait(30)

    library.faults.block("DeviceGetCount", hold, times=1)
    thread = threading.Thread(target=library.nvmlDeviceGetCount)
    thread.start()
    assert inside.wait(30)
    assert library.nvmlDeviceGetCount() == 8  # the next one is not held up
    go_on.set()
    thread.join(30)
    assert not thread.is_alive()


def test_waiting_for_events_ends_with_an_event_a_timeout_or_the_shutdown(
    gpus: list[FakeGpu], library: FakeLibrary
) -> None:
    events = library.nvmlEventSetCreate()
    with pytest.raises(pynvml.NVMLError_Timeout):
        library.nvmlEventSetWait_v2(events, 0)
    library.nvmlDeviceRegisterEvents(library.nvmlDeviceGetHandleByIndex(1), 8, events)
    library.xid(gpus[0], 79)  # not registered
    library.xid(gpus[1], 31)
    assert library.nvmlEventSetWait_v2(events, 60_000).eventData == 31
    ended: list[type[BaseException]] = []

    def wait() -> None:
        try:
            library.nvmlEventSetWait_v2(events, 60_000)
        except pynvml.NVMLError as error:
            ended.append(type(error))

    waiting = threading.Event()
    library.faults.block("EventSetWait_v2", waiting.set)
    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(30)
    library.nvmlShutdown()
    thread.join(30)
    assert ended[0] in (pynvml.NVMLError_Uninitialized, pynvml.NVMLError_InvalidArgument)


def test_memory_is_told_as_either_version_does(gpus: list[FakeGpu], library: FakeLibrary) -> None:
    handle = library.nvmlDeviceGetHandleByIndex(0)
    gpus[0].used_bytes = 10 * GIB
    one, two = library.nvmlDeviceGetMemoryInfo(handle), library.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    assert one.used - two.used == two.reserved == GIB // 2
    assert one.free == two.free
    gpus[0].used_bytes = 100 * GIB
    assert library.nvmlDeviceGetMemoryInfo(handle).free == 0


@pytest.mark.parametrize(
    ("prefix", "product", "triple", "states"),
    [
        ("02", A100, (12, 12, 25_781), "1" * 12 + "0" * 6),
        ("03", Product(), (18, 18, 26_562), "1" * 18),
        ("13", Product(), (0, None, 0), ""),
    ],
)
def test_fields_and_link_states_are_those_of_the_products(
    tmp_path: Path, prefix: str, product: Product, triple: tuple[int | None, ...], states: str
) -> None:
    library = FakeNode(tmp_path, fixture(prefix), product).library
    handle = library.nvmlDeviceGetHandleByIndex(0)
    values = library.nvmlDeviceGetFieldValues(handle, [91, 147, 90])
    assert tuple(None if value.nvmlReturn else value.value.uiVal for value in values) == triple
    found = ""
    for link in range(36):
        try:
            found += str(library.nvmlDeviceGetNvLinkState(handle, link))
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            break
    assert found == states


def test_what_is_not_there_is_refused_as_the_real_library_does(gpus: list[FakeGpu], library: FakeLibrary) -> None:
    handle = library.nvmlDeviceGetHandleByIndex(0)
    take_down(gpus[0], 1)
    fabric = pynvml.c_nvmlGpuFabricInfo_v2_t()
    fabric.version = 1
    for call, error in (
        (lambda: library.nvmlDeviceGetHandleByIndex(8), pynvml.NVMLError_InvalidArgument),
        (lambda: library.nvmlDeviceGetHandleByUUID("GPU-none"), pynvml.NVMLError_NotFound),
        (lambda: library.nvmlDeviceGetMemoryInfo(handle, 7), pynvml.NVMLError_ArgumentVersionMismatch),
        (lambda: library.nvmlDeviceGetNvLinkRemotePciInfo(handle, 0), pynvml.NVMLError_InvalidArgument),
        (lambda: library.nvmlDeviceGetNumaNodeId(handle), pynvml.NVMLError_NotSupported),
        (
            lambda: library.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(fabric)),
            pynvml.NVMLError_ArgumentVersionMismatch,
        ),
    ):
        with pytest.raises(error):
            call()
    events = library.nvmlEventSetCreate()
    library.nvmlEventSetFree(events)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        library.nvmlEventSetFree(events)
    fields = library.nvmlDeviceGetFieldValues(handle, [(165, 0), (165, 1), (165, 40), (83, 0)])
    assert [(value.nvmlReturn, value.value.uiVal) for value in fields] == [(0, 0), (0, 1), (3, 0), (3, 0)]


def test_links_go_down_at_both_ends_or_at_one(tmp_path: Path) -> None:
    gpus = FakeNode(tmp_path, fixture("06")).gpus
    take_down(gpus[0], 3, peer=gpus[1])
    assert [len(gpu.active_links) for gpu in gpus] == [9, 9, 12, 12]
    take_down(gpus[2], 1, one_sided=True)
    assert [len(gpu.active_links) for gpu in gpus] == [9, 9, 11, 12]


def test_a_machine_is_shown_from_its_matrix_alone() -> None:
    topology = topology_of(fixture("10"), Product("NVIDIA A100-PCIE-40GB", 40 * GIB))
    assert [gpu.name for gpu in topology.gpus] == ["NVIDIA A100-PCIE-40GB"] * 8
    assert topology.driver_version == ""
    assert topology.complaints == ()
