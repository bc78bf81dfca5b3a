"""GPUs that are lost, broken, found again: who is marked, who goes on, and how often the core hears of it."""

import asyncio
from pathlib import Path

import pynvml
import pytest

from swapd.core.events import GpuMemoryRead, TopologyChanged
from swapd.core.topology import DriverState, GpuHealth
from swapd.gpus.fake_gpu import take_down
from tests.fakes.engine_bench import until
from tests.gpus.room_bench import LONG, Bench, bench, event_threads

HEALTHY = GpuHealth.HEALTHY


def all_but(gpu: int, health: GpuHealth, count: int = 8) -> list[GpuHealth]:
    """Return eight healths of which one differs."""
    return [health if index == gpu else HEALTHY for index in range(count)]


async def watched(room: Bench) -> None:
    """Wait until Xids of all GPUs are heard, and each was polled."""
    await room.polled()
    await until(lambda: room.library.calls["DeviceRegisterEvents"] >= len(room.gpus))


async def test_a_gpu_that_leaves_the_bus_is_lost_and_the_others_go_on(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        room.library.faults.lose(room.gpus[3])
        await room.health(3, GpuHealth.LOST)
        assert room.healths == all_but(3, GpuHealth.LOST)
        assert room.topology.driver is DriverState.UP
        assert room.topology.placeable == 0xFF & ~(1 << 3)
        assert "GpuIsLost" in room.topology.gpus[3].why
        assert any(sentence.startswith("GPU 3 ") for sentence in room.topology.complaints)
        # its links and its empty process list look healthy all the while
        assert all(link.active for link in room.gpus[3].links)
        reading = await room.reading()
        assert [read.gpu for read in reading.readings] == [0, 1, 2, 4, 5, 6, 7]


async def test_a_gpu_that_is_lost_from_the_beginning_keeps_its_place(tmp_path: Path) -> None:
    async with bench(tmp_path, before=lambda room: room.library.faults.lose(room.gpus[3])) as room:
        await room.up()
        assert room.healths == all_but(3, GpuHealth.LOST)
        room.library.faults.heal(room.gpus[3])
        room.room._rounds._discover_soon()  # the regular discovery, hours away here
        await room.health(3, HEALTHY)
        assert room.topology.gpus[3].uuid == room.gpus[3].uuid
        assert [read.gpu for read in (await room.reading()).readings] == list(range(8))


async def test_a_lost_gpu_that_answers_again_is_taken_back_after_clean_polls(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        room.library.faults.lose(room.gpus[3])
        await room.health(3, GpuHealth.LOST)
        room.library.faults.heal(room.gpus[3])
        polls = room.room.stats().polls
        await room.health(3, HEALTHY)
        assert room.room.stats().polls >= polls + 4 - 1  # one may have been under way
        assert room.topology.complaints == ()


async def test_a_gpu_that_flaps_stays_lost(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        flap = 0

        def lose_every_other_poll() -> None:
            nonlocal flap
            flap += 1
            if flap % 2:
                raise pynvml.NVMLError_GpuIsLost

        room.library.faults.block("DeviceGetMemoryInfo_v2", lose_every_other_poll, gpu=room.gpus[3])
        await room.polls(120)
        assert room.healths[3] is GpuHealth.LOST
        assert room.topology.generation <= 4


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
async def test_an_xid_of_an_application_changes_nothing(tmp_path: Path, xid: int) -> None:
    async with bench(tmp_path) as room:
        await watched(room)
        room.library.xid(room.gpus[5], xid)
        await until(lambda: room.room.stats().xids == {(5, xid): 1})
        await room.polls(2)
        assert room.healths == [HEALTHY] * 8
        assert len(room.of(TopologyChanged)) == 1


@pytest.mark.parametrize("xid", [48, 74, 79, 119])
async def test_an_xid_of_the_hardware_marks_that_gpu_only(tmp_path: Path, xid: int) -> None:
    async with bench(tmp_path) as room:
        await watched(room)
        room.gpus[5].recovery_action = 1  # it stays as it is
        room.library.xid(room.gpus[5], xid)
        await room.health(5, GpuHealth.FAILED)
        assert room.healths == all_but(5, GpuHealth.FAILED)
        await room.polls(10)
        assert room.healths == all_but(5, GpuHealth.FAILED)
        assert any(f"Xid {xid}" in sentence for sentence in room.topology.complaints) or xid != 48


async def test_an_xid_is_attributed_although_its_gpu_answers_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path, poll_period=LONG, hurry=LONG) as room:
        await watched(room)
        room.gpus[5].lost = room.gpus[5].mute = True
        room.library.xid(room.gpus[5], 79)
        await until(lambda: room.room.stats().xids == {(5, 79): 1})
        assert room.healths == all_but(5, GpuHealth.FAILED)
        assert room.topology.gpus[5].why.startswith("Xid 79, the GPU has fallen off the bus")


async def test_an_xid_of_nobody_known_marks_nobody_and_has_everything_looked_at(tmp_path: Path) -> None:
    async with bench(tmp_path, poll_period=LONG) as room:
        await watched(room)
        discoveries = room.room.stats().discoveries
        room.room._picture.devices = {9: room.room._picture.devices[0]}  # as if the handles were others
        polls = room.room.stats().polls
        room.library.xid(room.gpus[5], 79)
        await until(lambda: room.room.stats().xids == {(None, 79): 1})
        await until(lambda: room.room.stats().polls > polls and room.room.stats().discoveries > discoveries)
        assert room.healths == [HEALTHY] * 8


async def test_an_undecided_xid_marks_nobody_and_brings_a_poll(tmp_path: Path) -> None:
    async with bench(tmp_path, poll_period=LONG) as room:
        await watched(room)
        room.gpus[5].recovery_action = 1
        room.library.xid(room.gpus[5], 154)
        await room.health(5, GpuHealth.FAILED)  # by the poll: the driver itself asks for a reset
        assert room.topology.gpus[5].why == "the driver asks for a reset of the GPU"


async def test_a_storm_of_xids_causes_few_calls(tmp_path: Path) -> None:
    async with bench(tmp_path, poll_period=LONG, hurry=LONG) as room:
        await watched(room)
        before = room.room.stats()
        for _ in range(500):
            room.library.xid(room.gpus[5], 79)
        await until(lambda: room.room.stats().xids == {(5, 79): 500})
        after = room.room.stats()
        assert (after.polls, after.discoveries) == (before.polls, before.discoveries)
        rounds, soon = room.room._rounds, asyncio.get_running_loop().time() + 60
        assert rounds._next_poll > soon
        assert rounds._next_discovery > soon
        assert len(room.of(TopologyChanged)) == 2


async def test_a_broken_gpu_is_taken_back_once_it_is_clean_and_its_links_are_back(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await watched(room)
        links = list(room.gpus[5].links)
        take_down(room.gpus[5], 3)
        room.library.xid(room.gpus[5], 74)
        await room.health(5, GpuHealth.FAILED)
        await room.polls(20)
        assert room.healths[5] is GpuHealth.FAILED
        for link in links:
            link.active = True
        await room.health(5, HEALTHY)
        assert room.healths == [HEALTHY] * 8


async def test_a_row_of_memory_that_waits_for_a_reset_keeps_a_gpu_out(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await watched(room)
        room.gpus[5].remapped_rows = (0, 1, 1, 0)
        room.library.xid(room.gpus[5], 64)
        await room.health(5, GpuHealth.FAILED)
        await room.polls(20)
        assert room.healths[5] is GpuHealth.FAILED
        room.gpus[5].remapped_rows = (0, 1, 0, 0)
        await room.health(5, HEALTHY)


async def test_an_ecc_error_that_waits_for_a_reset_keeps_a_gpu_out(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await watched(room)
        room.gpus[5].ecc_errors, room.gpus[5].remapped_rows = 1, (0, 1, 1, 0)
        room.library.xid(room.gpus[5], 48)
        await room.health(5, GpuHealth.FAILED)
        room.gpus[5].remapped_rows = (0, 1, 0, 0)
        await room.polls(20)
        assert room.healths[5] is GpuHealth.FAILED
        room.gpus[5].ecc_errors = 0
        await room.health(5, HEALTHY)


async def test_other_events_are_no_xids(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await watched(room)
        room.library.event(room.gpus[5], pynvml.nvmlEventTypePState, 79)
        room.library.xid(room.gpus[5], 13)
        await until(lambda: room.room.stats().xids)
        assert room.room.stats().xids == {(5, 13): 1}


async def test_fewer_gpus_than_were_seen_are_complained_about(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        room.library.gpus.pop(6)
        await until(lambda: any("7 of 8 GPUs" in sentence for sentence in room.topology.complaints))
        assert room.healths == all_but(6, GpuHealth.LOST)
        assert room.topology.expected == 8


async def test_another_number_of_gpus_alone_brings_a_discovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        monkeypatch.setattr(room.library, "nvmlDeviceGetCount", lambda: 9)
        await until(lambda: len(room.topology.gpus) == 9)
        assert room.healths == [HEALTHY] * 8 + [GpuHealth.LOST]


async def test_a_reading_that_misses_a_gpu_brings_a_poll(tmp_path: Path) -> None:
    async with bench(tmp_path, poll_period=LONG) as room:
        await room.polled()
        room.library.faults.lose(room.gpus[3])
        room.room.read_memory()
        await room.health(3, GpuHealth.LOST)


async def test_a_machine_that_had_more_gpus_once_is_complained_about_at_once(tmp_path: Path) -> None:
    async with bench(tmp_path, "20", most_seen=8) as room:
        await room.up()
        assert room.topology.expected == 8
        assert any("7 of 8 GPUs" in sentence for sentence in room.topology.complaints)
        assert room.seen == []


@pytest.mark.parametrize(
    "call",
    ["DeviceGetRemappedRows", "DeviceGetFieldValues", "DeviceGetComputeRunningProcesses", "DeviceGetName"],
)
async def test_one_call_that_fails_for_one_gpu_takes_nothing_else(tmp_path: Path, call: str) -> None:
    async with bench(tmp_path, trust_pids=True, owners=dict) as room:
        room.library.faults.fail(call, pynvml.NVMLError_Unknown, gpu=room.gpus[2])
        await room.up()
        await room.polls(10)
        assert room.healths == [HEALTHY] * 8
        assert len((await room.reading()).readings) == 8
        assert room.room.stats().errors == {(call, "Unknown"): room.room.stats().errors[call, "Unknown"]}


async def test_a_gpu_whose_memory_call_keeps_failing_is_lost_alone(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        room.library.faults.fail("DeviceGetMemoryInfo_v2", pynvml.NVMLError_Unknown, gpu=room.gpus[2])
        await room.health(2, GpuHealth.LOST)
        assert room.healths == all_but(2, GpuHealth.LOST)
        assert "3 polls in a row" in room.topology.gpus[2].why
        room.library.faults.clear()
        await room.health(2, HEALTHY)


async def test_a_discovery_that_cannot_read_one_gpu_once_costs_it_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        room.library.faults.fail("DeviceGetHandleByIndex", pynvml.NVMLError_Unknown, gpu=room.gpus[2], times=1)
        discoveries = room.room.stats().discoveries
        room.room._rounds._discover_soon()
        await until(lambda: room.room.stats().discoveries >= discoveries + 2)
        await room.polls(3)
        assert len(room.of(TopologyChanged)) == 1


async def test_events_that_fail_leave_the_polls_to_see_it(tmp_path: Path) -> None:
    def no_events(room: Bench) -> None:
        room.library.faults.fail("EventSetCreate", pynvml.NVMLError_NotSupported)

    async with bench(tmp_path, before=no_events) as room:
        await room.up()
        room.library.faults.lose(room.gpus[1])
        await room.health(1, GpuHealth.LOST)


async def test_a_wait_that_fails_is_tried_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await watched(room)
        room.library.faults.fail("EventSetWait_v2", pynvml.NVMLError_Unknown, times=3)
        await until(lambda: room.room.stats().errors.get(("EventSetWait_v2", "Unknown")) == 3)
        room.library.xid(room.gpus[5], 13)
        await until(lambda: room.room.stats().xids == {(5, 13): 1})
        assert room.healths == [HEALTHY] * 8


async def test_a_gpu_that_comes_back_is_watched_again(tmp_path: Path) -> None:
    async with bench(tmp_path, before=lambda room: setattr(room.gpus[3], "lost", True)) as room:
        await room.up()
        room.library.faults.heal(room.gpus[3])
        room.room._rounds._discover_soon()
        await room.health(3, HEALTHY)
        await until(lambda: room.library.calls["DeviceRegisterEvents"] == 7 + 8)
        await until(lambda: len(event_threads()) == 1)  # the one that did not know it has ended
        room.library.xid(room.gpus[3], 31)
        await until(lambda: room.room.stats().xids == {(3, 31): 1})


async def test_a_wait_that_fails_does_not_spin(tmp_path: Path) -> None:
    def no_waits(room: Bench) -> None:
        room.library.faults.fail("EventSetWait_v2", pynvml.NVMLError_Unknown)

    async with bench(tmp_path, before=no_waits, event_wait=LONG) as room:
        await until(lambda: room.library.calls["EventSetWait_v2"])
        await room.polls(20)
        assert room.library.calls["EventSetWait_v2"] == 1


async def test_eight_gpus_are_eight_in_every_reading(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        await room.polls(50)
        assert {len(read.readings) for read in room.of(GpuMemoryRead)} == {8}
