"""The life of NVML in the process: begun late, failing, hanging, given back; one owner, one call at a time."""

import contextlib
import threading
from pathlib import Path

import pynvml
import pytest
from structlog.testing import capture_logs

from swapd.core.events import GpuMemoryRead, TopologyChanged
from swapd.core.topology import DriverState, GpuHealth
from swapd.gpus.fake import FakeLibrary
from swapd.gpus.health import Patience
from tests.fakes.engine_bench import until
from tests.gpus.room_bench import SOON, Bench, bench, event_threads, hanging, turns

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


async def test_a_driver_that_is_good_for_a_while_starts_over(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.up()
        room.library.faults.fail("DeviceGetMemoryInfo_v2", pynvml.NVMLError_Unknown, times=3 * 8)
        await until(lambda: room.library.calls["Init"] == 2)
        assert room.room._life._tries == 1
        await until(lambda: room.room._life._tries == 0)
        assert room.library.calls["Init"] == 2


async def test_a_driver_that_goes_away_is_noticed_although_every_gpu_is_lost(tmp_path: Path) -> None:
    async with bench(tmp_path, "13") as room:
        await room.up()
        for gpu in room.gpus:
            room.library.faults.lose(gpu)
        await until(lambda: room.healths == [GpuHealth.LOST] * 4)
        await room.polls(5)
        assert room.topology.driver is DriverState.UP
        room.library.faults.fail(None, pynvml.NVMLError_DriverNotLoaded)
        await room.state(DriverState.NOT_LOADED)
        room.library.faults.clear()
        await room.up()


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
            readings = len(room.of(GpuMemoryRead))
            room.room.read_memory()
            assert [read.readings for read in room.of(GpuMemoryRead)[readings:]] == [()]
            await turns(200)  # in which a second call would have begun
            assert room.library.calls.total() - room.library.calls["EventSetWait_v2"] == calls
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


async def test_at_the_end_a_call_that_hangs_is_left_alone_and_never_said_to_have_answered(tmp_path: Path) -> None:
    with capture_logs() as logs, contextlib.ExitStack() as stack:
        async with bench(tmp_path, poll_deadline=SOON) as room:
            await room.up()
            hang = stack.enter_context(hanging(room.library, "DeviceGetMemoryInfo_v2"))
            await hang.until_it_hangs()
            await room.state(DriverState.STALLED)
            room.hangs = True
    assert [entry["event"] for entry in logs][-2:] == ["nvml_stalled", "nvml_left_hanging"]
    await until(lambda: event_threads() == [])


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
