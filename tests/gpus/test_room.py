"""The life of NVML in the process: begun late, failing, hanging, given back; one owner, one call at a time."""

import asyncio
import contextlib
import threading
from pathlib import Path

import pynvml
import pytest

from swapd.core.events import GpuMemoryRead, TopologyChanged
from swapd.core.topology import DriverState, GpuHealth
from swapd.gpus import room as room_module
from swapd.gpus.fake import FakeLibrary
from swapd.gpus.health import Patience
from tests.fakes.engine_bench import until
from tests.gpus.room_bench import LONG, SOON, Bench, bench, event_threads, hanging, turns

ALL_HEALTHY = [GpuHealth.HEALTHY] * 8


def descriptors() -> int:
    """Count what this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_the_gpus_are_found_in_the_background(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        assert (room.topology.driver, room.topology.gpus, room.facts) == (DriverState.STARTING, (), [])
        await room.up()
        first = room.of(TopologyChanged)[0].topology
        assert (len(first.gpus), first.generation, first.expected) == (8, 1, 8)
        assert room.seen == [8]
        await room.polls(20)
        assert len(room.of(TopologyChanged)) == 1


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (pynvml.NVMLError_LibraryNotFound, DriverState.ABSENT),
        (pynvml.NVMLError_DriverNotLoaded, DriverState.NOT_LOADED),
        (pynvml.NVMLError_LibRmVersionMismatch, DriverState.MISMATCH),
        (pynvml.NVMLLibraryMismatchError, DriverState.MISMATCH),
        (pynvml.NVMLError_Unknown, DriverState.FAILED),
    ],
)
async def test_a_driver_that_comes_late_is_found_without_a_restart(
    tmp_path: Path, error: type[Exception], state: DriverState
) -> None:
    async with bench(tmp_path, before=lambda room: room.library.faults.fail("Init", error, times=3)) as room:
        await room.up()
        assert room.states == [state, DriverState.UP]
        assert room.of(TopologyChanged)[0].topology.trouble != ""
        assert room.topology.trouble == ""
        assert room.library.calls["Init"] == 4


async def test_a_driver_that_knows_no_gpu_is_begun_again_until_it_does(tmp_path: Path) -> None:
    late: list[object] = []

    def take_all(room: Bench) -> None:
        late[:] = room.gpus
        room.library.gpus[:] = []

    async with bench(tmp_path, before=take_all) as room:
        await room.state(DriverState.ABSENT)
        room.library.gpus[:] = late  # type: ignore[assignment]
        await room.up()
        assert len(room.topology.gpus) == 8


async def test_a_failing_driver_is_tried_again_ever_more_slowly(tmp_path: Path) -> None:
    waits: list[float | None] = []
    async with bench(tmp_path, before=lambda room: room.library.faults.absent(times=9)) as room:
        rounds = room.room._rounds
        sleep = rounds.sleep

        async def noted(seconds: float | None) -> None:
            waits.append(seconds)
            await sleep(seconds)

        rounds.sleep = noted  # type: ignore[method-assign]
        await room.up()
        assert waits[:5] == [0.001, 0.002, 0.004, 0.004, 0.004]


async def test_every_gpu_unknown_is_a_failure_of_the_driver_and_of_no_gpu(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        room.library.faults.fail("DeviceGetMemoryInfo_v2", pynvml.NVMLError_Unknown)
        room.library.faults.fail("DeviceGetHandleByIndex", pynvml.NVMLError_Unknown)
        await room.state(DriverState.FAILED)
        assert room.healths == ALL_HEALTHY
        assert "Unknown" in room.topology.trouble
        assert "go on serving" in room.topology.trouble
        assert not room.room.stats().up
        room.library.faults.clear()
        await room.up()
        assert room.healths == ALL_HEALTHY


async def test_two_bad_polls_are_no_failure(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        room.library.faults.fail("DeviceGetMemoryInfo_v2", pynvml.NVMLError_Unknown, times=16)
        await until(lambda: room.room.stats().errors.get(("DeviceGetMemoryInfo", "Unknown"), 0) == 16)
        await room.polls(6)
        assert room.states == [DriverState.UP]


async def test_a_driver_that_flaps_makes_few_topologies(tmp_path: Path) -> None:
    """Ten minutes of polls, five seconds apart, of which every other one fails for all GPUs."""
    async with bench(tmp_path) as room:
        await room.up()
        flap = 0

        def fail_every_other_poll() -> None:
            nonlocal flap
            flap += 1
            if (flap - 1) // 8 % 2:
                raise pynvml.NVMLError_Unknown

        room.library.faults.block("DeviceGetMemoryInfo_v2", fail_every_other_poll)
        await room.polls(120)
        assert room.topology.generation == 1


async def test_a_driver_that_fails_and_comes_back_again_and_again_is_begun_ever_more_slowly(tmp_path: Path) -> None:
    async with bench(tmp_path, patience=Patience(bad=3, clean=100_000)) as room:
        await room.up()
        for cycle in range(1, 6):
            room.library.faults.fail("DeviceGetMemoryInfo_v2", pynvml.NVMLError_Unknown, times=3 * 8)
            await until(lambda: room.library.calls["Init"] == cycle + 1)  # noqa: B023 - awaited at once
            await room.up()
            assert room.room._life._tries == cycle
        assert room.topology.generation == 1 + 2 * 5


async def test_one_init_lasts_for_a_thousand_polls_and_no_descriptor_is_left(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        await room.polls(2)
        before = descriptors(), room.library.descriptors
        await room.polls(1_000)
        assert (descriptors(), room.library.descriptors) == before
        assert (room.library.calls["Init"], room.library.calls["Shutdown"]) == (1, 0)
        assert room.library.calls["EventSetCreate"] == 1


async def test_a_call_that_hangs_stalls_the_driver_and_nobody_else(tmp_path: Path) -> None:
    async with bench(tmp_path, poll_deadline=SOON) as room:
        await room.up()
        with hanging(room.library, "DeviceGetMemoryInfo_v2") as hang:
            await room.state(DriverState.STALLED)
            await turns()  # the loop is free
            assert hang.began.is_set()
            assert "go on serving" in room.topology.trouble
            assert room.healths == ALL_HEALTHY
            stats = room.room.stats()
            assert (stats.up, stats.state, stats.stalled_since is not None) == (False, DriverState.STALLED, True)
            calls = room.library.calls.total() - room.library.calls["EventSetWait_v2"]
            room.room.read_memory()
            await asyncio.sleep(3 * SOON / 1e9)  # time in which a second call would have begun
            assert room.library.calls.total() - room.library.calls["EventSetWait_v2"] == calls
            assert room.of(GpuMemoryRead)[-1].readings == ()
        await room.up()
        assert room.states == [DriverState.UP, DriverState.STALLED, DriverState.UP]
        assert room.room.stats().stalled_since is None
        assert len((await room.reading()).readings) == 8


async def test_a_driver_that_stalls_again_at_once_was_not_up_in_between(tmp_path: Path) -> None:
    async with bench(tmp_path, poll_deadline=SOON) as room:
        await room.polled()
        two_polls = 2 * len(room.gpus)
        with (
            hanging(room.library, "DeviceGetMemoryInfo_v2") as first,
            hanging(room.library, "DeviceGetMemoryInfo_v2", skip=two_polls) as second,
        ):
            await first.until_it_hangs()
            await room.state(DriverState.STALLED)
            first.go.set()
            await second.until_it_hangs()
            await until(lambda: room.room.stats().stalled_since is not None)
            assert room.states == [DriverState.UP, DriverState.STALLED]
        await room.up()
        assert room.states == [DriverState.UP, DriverState.STALLED, DriverState.UP]


async def test_an_init_that_takes_its_time_has_succeeded_all_the_same(tmp_path: Path) -> None:
    blocked = []

    def script(room: Bench) -> None:
        blocked.append(hanging(room.library, "Init"))
        blocked[0].__enter__()

    async with bench(tmp_path, poll_deadline=SOON, before=script) as room:
        await room.state(DriverState.STALLED)
        blocked[0].__exit__(None, None, None)
        await room.up()
        assert (room.library.calls["Init"], room.library.inits) == (1, 1)


async def test_released_means_nothing_is_open_and_no_thread_waits(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        await until(lambda: bool(event_threads()))
        assert await room.room.release() == ""
        assert room.library.descriptors == ()
        await until(lambda: event_threads() == [])
        assert room.library.calls["EventSetFree"] == room.library.calls["EventSetCreate"] == 1
        await room.state(DriverState.RELEASED)
        assert "taken back" in room.topology.trouble
        assert room.healths == ALL_HEALTHY
        calls = room.library.calls.total()
        room.room.read_memory()
        assert room.of(GpuMemoryRead)[-1].readings == ()
        await turns()
        assert room.library.calls.total() == calls
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
        assert "kernel driver is not loaded" in await room.room.acquire()
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
        assert await room.room.release() == ""


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


async def test_what_nobody_foresaw_is_a_failure_that_is_tried_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        room.library.faults.fail("DeviceGetCount", lambda: ZeroDivisionError("not in the bindings"), times=1)
        await room.state(DriverState.FAILED)
        assert "not in the bindings" in room.topology.trouble
        await room.up()
        assert room.library.inits == 1


async def test_a_hanging_call_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        async with bench(tmp_path, poll_deadline=SOON) as room:
            await room.up()
            hang = stack.enter_context(hanging(room.library, "DeviceGetMemoryInfo_v2"))
            await hang.until_it_hangs()
            room.room.read_memory()
            room.hangs = True
        assert not hang.go.is_set()
        assert room.of(GpuMemoryRead)[-1].readings == ()
    await until(lambda: event_threads() == [])


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


async def test_every_order_to_read_memory_is_answered_by_one_fact(tmp_path: Path) -> None:
    async with bench(tmp_path, poll_period=LONG, hurry=LONG) as room:
        await room.polled()
        assert len(room.of(GpuMemoryRead)) == 1
        for number in range(2, 6):
            room.room.read_memory()
            await until(lambda: len(room.of(GpuMemoryRead)) >= number)  # noqa: B023 - awaited at once
            await turns()
            assert len(room.of(GpuMemoryRead)) == number
            assert len(room.of(GpuMemoryRead)[-1].readings) == 8


async def test_a_reading_that_began_before_an_order_does_not_answer_it(tmp_path: Path) -> None:
    async with bench(tmp_path, poll_period=LONG) as room:
        await room.polled()
        with hanging(room.library, "DeviceGetMemoryInfo_v2") as hang:
            room.room.read_memory()
            await hang.until_it_hangs()
            room.room.read_memory()
        await until(lambda: len(room.of(GpuMemoryRead)) == 3)
        _, first, second = room.of(GpuMemoryRead)
        assert second.taken > first.taken


async def test_an_order_that_nvml_does_not_answer_in_time_is_answered_empty(tmp_path: Path) -> None:
    async with bench(tmp_path, poll_period=LONG, poll_deadline=SOON) as room:
        await room.polled()
        with hanging(room.library, "DeviceGetMemoryInfo_v2"):
            room.room.read_memory()
            await until(lambda: len(room.of(GpuMemoryRead)) == 2)
            assert room.of(GpuMemoryRead)[-1].readings == ()
        await until(lambda: len(room.of(GpuMemoryRead)) == 3)  # the late answer is told, too, as a reading like any


async def test_orders_before_the_first_discovery_are_answered_empty(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        room.room.read_memory()
        assert [read.readings for read in room.of(GpuMemoryRead)] == [()]


class NthCall:
    """Makes the nth call of a poll fail, once."""

    def __init__(self, library: FakeLibrary, error: type[Exception]) -> None:
        self._error = error
        self._position = self._nth = 0
        library.faults.block("DeviceGetCount", self._begin)  # every poll and discovery begins so
        library.faults.block(None, self._pass)

    def arm(self, nth: int) -> None:
        self._nth = nth

    @property
    def fired(self) -> bool:
        return self._nth == 0

    def _begin(self) -> None:
        self._position = 0

    def _pass(self) -> None:
        if threading.current_thread().name == "nvml":
            self._position += 1
            if self._position == self._nth:
                self._nth = 0
                raise self._error


@pytest.mark.parametrize(
    "error", [pynvml.NVMLError_Unknown, pynvml.NVMLError_GpuIsLost, pynvml.NVMLLibraryMismatchError]
)
async def test_whichever_call_of_a_poll_fails_the_room_goes_on(tmp_path: Path, error: type[Exception]) -> None:
    """The anomaly loop: let the first call fail, then the second, until a poll gets through untouched."""
    async with bench(tmp_path, "13", trust_pids=True, owners=dict) as room:
        await room.polled()
        calls = NthCall(room.library, error)
        nth = 0
        while nth == 0 or calls.fired:
            nth += 1
            calls.arm(nth)
            before = room.room.stats().polls
            await until(lambda: calls.fired or room.room.stats().polls >= before + 2)  # noqa: B023 - awaited at once
            await until(lambda: room.healths == [GpuHealth.HEALTHY] * 4)
            assert room.topology.driver is DriverState.UP
        assert nth == 1 + 4 * 5 + 1  # count; memory, rows, fields and two lists of each GPU; one too many
        calls.arm(-1)
        assert len((await room.reading()).readings) == 4
