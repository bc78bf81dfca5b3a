"""What a reading of memory says, and what it leaves out because nobody knows."""

from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from swapd.core.events import GpuMemory
from swapd.core.ids import Bytes, InstanceId, Instant
from swapd.core.topology import DriverState, Gpu, GpuHealth
from swapd.gpus.fake_gpu import FakeProcess
from swapd.gpus.health import Answer, Signs
from swapd.gpus.memory import Owners, readings
from swapd.gpus.poll import Poll, Polled
from swapd.gpus.readings import GpuProcess, MemoryReading
from swapd.gpus.settings import sees_host_pids
from tests.gpus.room_bench import Bench, bench

GIB = 1 << 30
ONE, TWO = InstanceId(1), InstanceId(2)
GPU = Gpu(index=0, uuid="GPU-0", memory_bytes=Bytes(79 * GIB), measured=True)
MEMORY = MemoryReading(Bytes(80 * GIB), Bytes(50 * GIB), Bytes(GIB))
READ = Signs(Answer.READ)


def process(pid: int, gib: int | None = 1) -> GpuProcess:
    """Return one entry of the driver's list."""
    return GpuProcess(pid, None if gib is None else Bytes(gib * GIB))


def polled(**gpus: Polled) -> Poll:
    """Return a poll in which ``gpu0``, ``gpu1`` and so on answered so."""
    return Poll(Instant(7), len(gpus), {int(name[3:]): answer for name, answer in gpus.items()})


def owners(**instances: int) -> Owners:
    """Return the owners of ``pid10``, ``pid11`` and so on."""
    known = Owners()
    known.learn({int(name[3:]): InstanceId(instance) for name, instance in instances.items()})
    return known


def test_a_reading_has_the_free_memory_and_what_is_left_of_the_total_without_the_drivers_reserve() -> None:
    assert readings(polled(gpu0=Polled(READ, MEMORY)), [GPU], Owners()) == (
        GpuMemory(gpu=0, capacity_bytes=Bytes(79 * GIB), free_bytes=Bytes(50 * GIB), processes=None),
    )


def test_a_gpu_that_is_lost_or_unread_or_cannot_tell_is_left_out() -> None:
    gpus = [
        replace(GPU, index=0, health=GpuHealth.LOST),
        replace(GPU, index=1, measured=False),
        replace(GPU, index=2),
        replace(GPU, index=3),
        replace(GPU, index=4, health=GpuHealth.FAILED),
        replace(GPU, index=5, health=GpuHealth.DEGRADED),
    ]
    told = Polled(READ, MEMORY)
    poll = polled(gpu0=told, gpu1=told, gpu2=Polled(Signs(Answer.ERROR, "Unknown")), gpu4=told, gpu5=told)
    assert [reading.gpu for reading in readings(poll, gpus, Owners())] == [4, 5]


def test_processes_are_told_by_instance_and_others_processes_are_nobodys() -> None:
    answer = Polled(READ, MEMORY, (process(10, 5), process(11, 6), process(12, 7), process(99, 8)))
    (reading,) = readings(polled(gpu0=answer), [GPU], owners(pid10=1, pid11=1, pid12=2))
    assert reading.processes == {ONE: 11 * GIB, TWO: 7 * GIB}


def test_an_untrusted_list_is_none_and_an_empty_one_is_empty() -> None:
    for processes, expected in ((None, None), ((), {})):
        (reading,) = readings(polled(gpu0=Polled(READ, MEMORY, processes)), [GPU], owners(pid10=1))
        assert reading.processes == expected


def test_a_size_that_is_not_told_never_enters_a_sum() -> None:
    known = owners(pid10=1, pid11=1, pid12=2)
    assert known.held([process(10, 5), process(11, None), process(12, 2)]) == {ONE: None, TWO: 2 * GIB}
    assert known.held([process(11, None), process(10, 5)]) == {ONE: None}


def test_a_process_in_both_lists_is_counted_once() -> None:
    known = owners(pid10=1)
    assert known.held([process(10, 5), process(10, 5)]) == {ONE: 5 * GIB}
    assert known.held([process(10, None), process(10, 5)]) == {ONE: 5 * GIB}


def test_an_ended_process_keeps_its_owner_for_as_long_as_the_driver_lists_it() -> None:
    known = owners(pid10=1)
    known.learn({})
    known.forget({}, [(process(10),)])
    assert known.held([process(10)]) == {ONE: GIB}
    known.forget({}, [()])
    assert known.held([process(10)]) == {}


def test_a_missing_list_makes_nobody_forgotten() -> None:
    known = owners(pid10=1)
    known.forget({}, [(), None])
    assert known.held([process(10)]) == {ONE: GIB}


def test_a_process_id_that_is_used_again_belongs_to_its_new_owner() -> None:
    known = owners(pid10=1)
    known.learn({10: TWO})
    assert known.held([process(10)]) == {TWO: GIB}


async def test_the_driver_tells_nothing_of_unified_and_partitioned_memory(tmp_path: Path) -> None:
    def script(room: Bench) -> None:
        room.gpus[0].total_bytes = None  # NotSupported
        room.gpus[1].total_bytes = 0  # as GB10
        room.gpus[2].mig = True

    async with bench(tmp_path, "13", before=script, memory_bytes=Bytes(24 * GIB)) as room:
        await room.up()
        await room.polls(5)
        assert [gpu.health for gpu in room.topology.gpus] == [GpuHealth.HEALTHY] * 2 + [
            GpuHealth.MIG,
            GpuHealth.HEALTHY,
        ]
        assert [gpu.memory_bytes for gpu in room.topology.gpus[:2]] == [24 * GIB] * 2
        assert [read.gpu for read in (await room.reading()).readings] == [3]


async def test_free_memory_is_what_version_2_says(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        room.gpus[4].used_bytes = 30 * GIB
        reading = (await room.reading()).readings[4]
        reserve = room.gpus[4].product.reserved_bytes
        assert (reading.capacity_bytes, reading.free_bytes) == (80 * GIB - reserve, 50 * GIB - reserve)


async def test_a_driver_before_version_2_is_read_all_the_same(tmp_path: Path) -> None:
    async with bench(
        tmp_path, before=lambda room: room.library.faults.old_driver(), trust_pids=True, owners=dict
    ) as room:
        await room.up()
        await room.polls(5)
        reading = await room.reading()
        assert [read.processes for read in reading.readings] == [None] * 8
        assert reading.readings[0].free_bytes == room.gpus[0].free_bytes
        assert [gpu.health for gpu in room.topology.gpus] == [GpuHealth.HEALTHY] * 8


async def test_processes_are_told_where_process_ids_mean_the_same(tmp_path: Path) -> None:
    owned = {100: ONE, 101: ONE, 200: TWO}
    async with bench(tmp_path, "13", trust_pids=True, owners=lambda: owned) as room:
        await room.up()
        room.gpus[0].compute = [FakeProcess(100, 5 * GIB), FakeProcess(101, 6 * GIB), FakeProcess(999, GIB)]
        room.gpus[1].graphics = [FakeProcess(200, None)]
        told = [read.processes for read in (await room.reading()).readings]
        assert told == [{ONE: 11 * GIB}, {TWO: None}, {}, {}]
        owned.clear()  # the processes have ended, and the driver has not let go yet
        assert [read.processes for read in (await room.reading()).readings] == told
        room.gpus[0].compute = []
        await room.polls(2)
        assert [read.processes for read in (await room.reading()).readings] == [{}, {TWO: None}, {}, {}]
        room.gpus[0].compute = [FakeProcess(100, GIB)]  # somebody else's by now
        assert [read.processes for read in (await room.reading()).readings] == [{}, {TWO: None}, {}, {}]


async def test_in_another_process_namespace_no_list_is_even_asked_for(tmp_path: Path) -> None:
    async with bench(tmp_path, "13", trust_pids=False, owners=lambda: {100: ONE}) as room:
        await room.up()
        room.gpus[0].compute = [FakeProcess(100, 5 * GIB)]
        assert [read.processes for read in (await room.reading()).readings] == [None] * 4
        assert room.library.calls["DeviceGetComputeRunningProcesses"] == 0


@pytest.mark.parametrize("garbage", [FakeProcess(4_194_305, GIB), FakeProcess(100, 81 * GIB), FakeProcess(0, GIB)])
async def test_an_impossible_entry_makes_the_list_untrusted_and_the_memory_not(
    tmp_path: Path, garbage: FakeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    async with bench(tmp_path, "13", trust_pids=True, owners=lambda: {100: ONE}) as room:
        await room.up()
        room.gpus[0].compute = [FakeProcess(100, 5 * GIB), garbage]
        await room.polls(5)
        readings = (await room.reading()).readings
        assert [read.processes for read in readings] == [None, {}, {}, {}]
        assert readings[0].free_bytes == room.gpus[0].free_bytes
        assert [gpu.health for gpu in room.topology.gpus] == [GpuHealth.HEALTHY] * 4
    assert capsys.readouterr().out.count("gpu_processes_not_trusted") == 1


async def test_while_nvml_fails_nothing_stale_is_told_and_it_recovers_by_itself(tmp_path: Path) -> None:
    async with bench(tmp_path, "13") as room:
        await room.up()
        room.library.faults.fail(None, pynvml.NVMLError_Unknown)
        reading = await room.reading()
        assert reading.readings == ()
        await room.state(DriverState.FAILED)
        age = room.room.stats().last_good_poll
        room.library.faults.clear()
        await room.up()
        assert len((await room.reading()).readings) == 4
        assert (room.room.stats().last_good_poll or 0) > (age or 0)


@pytest.mark.parametrize(("inode", "expected"), [("4026531836", True), ("4026532512", False)])
def test_the_first_process_namespace_is_known_by_its_inode(tmp_path: Path, inode: str, expected: bool) -> None:
    (tmp_path / "self/ns").mkdir(parents=True)
    assert not sees_host_pids(tmp_path)
    (tmp_path / "self/ns/pid").symlink_to(f"pid:[{inode}]")
    assert sees_host_pids(tmp_path) is expected
