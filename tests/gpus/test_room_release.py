"""An operator has the GPUs for a while: what is let go, when not, and how it is taken back."""

import asyncio
from pathlib import Path

import pynvml
import pytest

from swapd.core.events import GpuMemoryRead
from swapd.core.ids import MILLISECOND, Duration
from swapd.core.topology import DriverState, GpuHealth
from swapd.gpus import room as room_module
from tests.fakes.engine_bench import until
from tests.gpus.room_bench import LONG, SOON, Bench, bench, event_threads, hanging, turns

ALL_HEALTHY = [GpuHealth.HEALTHY] * 8


async def test_released_means_nothing_is_open_and_no_thread_waits(tmp_path: Path) -> None:
    async with bench(tmp_path, event_wait=Duration(200 * MILLISECOND)) as room:
        sets_at_shutdown: list[int] = []
        calls = room.library.calls
        room.library.faults.block(
            "Shutdown", lambda: sets_at_shutdown.append(calls["EventSetCreate"] - calls["EventSetFree"])
        )
        await room.up()
        await until(lambda: bool(event_threads()))
        assert await room.room.release() == ""
        assert room.library.descriptors == ()
        await until(lambda: event_threads() == [])
        assert (calls["EventSetCreate"], sets_at_shutdown) == (1, [0])
        await room.state(DriverState.RELEASED)
        assert "swapd release-gpus --take-back" in room.topology.trouble
        assert room.healths == ALL_HEALTHY
        asked = calls.total()
        room.room.read_memory()
        assert room.of(GpuMemoryRead)[-1].readings == ()
        await turns()
        assert calls.total() == asked
        assert await room.room.release() == ""


async def test_taken_back_everything_is_read_anew_and_nothing_held_against_anybody(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        await until(lambda: room.library.calls["DeviceRegisterEvents"] == 8)
        room.gpus[2].ecc_errors = 1  # nothing that polls could see pass
        room.library.xid(room.gpus[2], 48)
        await room.health(2, GpuHealth.FAILED)
        assert await room.room.release() == ""
        room.gpus[2].ecc_errors = 0
        assert await room.room.acquire() == ""
        assert room.topology.driver is DriverState.UP
        assert room.healths == ALL_HEALTHY
        assert room.states == [DriverState.UP, DriverState.RELEASED, DriverState.STARTING, DriverState.UP]
        assert await room.room.acquire() == ""
        assert room.library.calls["Init"] == 2


async def test_orders_that_follow_each_other_at_once_end_as_the_last_one_says(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        assert await room.room.release() == ""
        taking = asyncio.ensure_future(room.room.acquire())
        await asyncio.sleep(0)
        assert await room.room.release() == ""
        assert room.library.inits == 0
        assert await room.room.acquire() == await taking == ""
        await room.up()


async def test_what_cannot_be_taken_back_is_said_and_tried_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        await room.room.release()
        room.library.faults.fail("Init", pynvml.NVMLError_DriverNotLoaded, times=2)
        room.room._life._tries = 60  # as if it had been away for an hour before
        assert "kernel driver is not loaded" in await room.room.acquire()
        assert room.room._life._tries <= 1
        await room.up()


async def test_nothing_is_released_while_a_call_hangs(tmp_path: Path) -> None:
    async with bench(tmp_path, poll_deadline=SOON) as room:
        await room.up()
        with hanging(room.library, "DeviceGetMemoryInfo_v2") as hang:
            await hang.until_it_hangs()
            early = asyncio.ensure_future(room.room.release())
            await room.state(DriverState.STALLED)
            for answer in (await early, await room.room.release()):
                assert answer.startswith("a call to NVML has not come back")
        await room.up()
        assert room.library.calls["Shutdown"] == 0
        assert await room.room.acquire() == ""  # nothing was let go
        assert await asyncio.gather(room.room.release(), room.room.release()) == ["", ""]
        assert room.library.inits == 0


async def test_a_driver_that_never_came_can_be_released_too(tmp_path: Path) -> None:
    async with bench(
        tmp_path, before=lambda room: room.library.faults.absent(), retry_first=LONG, retry_cap=LONG
    ) as room:
        await room.state(DriverState.ABSENT)
        assert await room.room.release() == ""
        room.library.faults.clear()
        assert await room.room.acquire() == ""
        await room.up()


async def test_a_descriptor_that_stays_open_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        monkeypatch.setattr(room_module, "device_files", lambda: ("/dev/nvidia0",))
        assert "/dev/nvidia0" in await room.room.release()


def test_device_files_are_found_among_the_descriptors(tmp_path: Path) -> None:
    for number, target in enumerate(("/dev/nvidia1", "/dev/null", "/dev/nvidiactl", "socket:[1]", "/dev/nvidia1")):
        (tmp_path / str(number)).symlink_to(target)
    assert room_module.device_files(tmp_path) == ("/dev/nvidia1", "/dev/nvidiactl")
    assert room_module.device_files() == ()


async def test_after_another_init_handles_are_found_by_uuid_and_places_stay(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        before = [gpu.uuid for gpu in room.topology.gpus]
        await room.room.release()
        room.library.gpus.reverse()
        assert await room.room.acquire() == ""
        assert [gpu.uuid for gpu in room.topology.gpus] == before
        room.gpus[1].used_bytes = 7 << 30
        assert (await room.reading()).readings[1].free_bytes == room.gpus[1].free_bytes
        assert room.gpus[1].uuid == before[1]


async def test_a_gpu_that_arrives_is_appended_after_the_next_init(tmp_path: Path) -> None:
    late = []

    def hold_back(room: Bench) -> None:
        late.append(room.library.gpus.pop(0))

    async with bench(tmp_path, before=hold_back) as room:
        await room.up()
        assert len(room.topology.gpus) == 7
        room.library.gpus.insert(0, late[0])
        await room.polls(3)
        assert len(room.topology.gpus) == 7
        await room.room.release()
        assert await room.room.acquire() == ""
        assert [gpu.uuid for gpu in room.topology.gpus][-1] == late[0].uuid
        assert room.seen == [7, 8]


async def test_a_driver_that_refuses_to_be_shut_down_is_not_begun_twice(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        room.library.faults.fail("Shutdown", pynvml.NVMLError_Unknown)
        assert await room.room.release() == "NVML refused to be shut down, see the log"
        room.library.faults.clear()
        await room.polls(2)
        assert DriverState.RELEASED not in room.states
        assert (room.library.inits, room.library.calls["Init"]) == (1, 1)
        assert await room.room.release() == ""
