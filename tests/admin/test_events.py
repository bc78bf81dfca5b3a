"""The event stream: complete for those who keep up, harmless for the daemon when they do not."""

import asyncio
import json

import pytest

from swapd.admin.events import MAX_READERS, EventHub, Reader, TooManyReadersError, event_document
from swapd.core.catalog import Source
from swapd.core.commands import (
    CoolingDown,
    DriverChanged,
    FootprintMeasured,
    GpuChanged,
    LoadFinished,
    Note,
    Placed,
    ReleaseConfirmed,
    StageSpan,
    Transitioned,
)
from swapd.core.ids import SECOND, Bytes, Duration, GpuSet, InstanceId, Instant, ModelName
from swapd.core.reasons import LoadFailure, LoadResult, PlacementQuality, ReleaseEvidence, Stage, State
from swapd.core.topology import DriverState, GpuHealth

M01 = ModelName("m01")


def transitioned(number: int = 1) -> Transitioned:
    return Transitioned(InstanceId(number), M01, GpuSet(0b101), State.LOADING, State.READY, "it answered")


def lines(taken: bytes) -> list[dict[str, object]]:
    assert taken.endswith(b"\n")
    return [json.loads(line) for line in taken.splitlines()]


def hub(buffered_lines: int = 1000) -> EventHub:
    return EventHub(wall=lambda: 1_700_000_000.1234, buffered_lines=buffered_lines)


async def test_a_reader_gets_every_note_in_order() -> None:
    stream = hub()
    reader = stream.subscribe()
    for number in (1, 2, 3):
        stream.publish(transitioned(number))
    shown = lines(await reader.take())
    assert [line["instance"] for line in shown] == [1, 2, 3]
    assert shown[0] == {
        "time": 1_700_000_000.123,
        "event": "transitioned",
        "instance": 1,
        "model": "m01",
        "gpus": [0, 2],
        "before": "loading",
        "after": "ready",
        "why": "it answered",
    }


async def test_a_waiting_reader_wakes_up_with_the_note() -> None:
    stream = hub()
    reader = stream.subscribe()
    waiting = asyncio.ensure_future(reader.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    stream.publish(transitioned())
    assert len(lines(await waiting)) == 1


async def test_a_stalled_reader_loses_the_oldest_lines_and_is_told_how_many() -> None:
    stream = hub(buffered_lines=3)
    stalled, lively = stream.subscribe(), stream.subscribe()
    for number in range(10):
        stream.publish(transitioned(number))
        assert len(lines(await lively.take())) == 1
    shown = lines(await stalled.take())
    assert shown[0] == {"event": "dropped", "lines": 7}
    assert [line["instance"] for line in shown[1:]] == [7, 8, 9]
    stream.publish(transitioned(10))
    assert [line["instance"] for line in lines(await stalled.take())] == [10]


async def test_nothing_is_kept_for_readers_that_have_left() -> None:
    stream = hub()
    readers = [stream.subscribe() for _ in range(3)]
    for reader in readers:
        reader.close()
        reader.close()
    assert len(stream) == 0
    stream.publish(transitioned())
    assert await readers[0].take() == b""


async def test_the_number_of_readers_is_limited() -> None:
    stream = hub()
    readers = [stream.subscribe() for _ in range(MAX_READERS)]
    with pytest.raises(TooManyReadersError, match=f"{MAX_READERS} event readers are connected"):
        stream.subscribe()
    readers[0].close()
    assert isinstance(stream.subscribe(), Reader)


async def test_the_end_of_the_hub_ends_every_stream_after_its_last_line() -> None:
    stream = hub()
    reader = stream.subscribe()
    stream.publish(transitioned())
    stream.close()
    assert len(lines(await reader.take())) == 1
    assert await reader.take() == b""


def test_durations_are_seconds_and_long_texts_are_cut() -> None:
    note: Note = LoadFinished(
        instance=InstanceId(1),
        model=M01,
        result=LoadResult.FAILED,
        source=Source.CACHE,
        load_time=Duration(1_500_000_000),
        duration=Duration(2 * SECOND),
        stages={Stage.LOAD: Duration(1_500_000_000)},
        victims=(ModelName("m02"),),
        failure=LoadFailure.EXITED,
        detail="x" * 100_000,
        timeline=(StageSpan(Stage.LOAD, Duration(SECOND), Duration(2_500_000_000)),),
    )
    shown = event_document(note)
    assert shown == {
        "event": "load_finished",
        "instance": 1,
        "model": "m01",
        "result": "failed",
        "source": "cache",
        "load_time_s": 1.5,
        "duration_s": 2.0,
        "stages_s": {"load": 1.5},
        "victims": ["m02"],
        "failure": "exited",
        "detail": "x" * 2000 + "…",
        "relapse": False,
        "timeline": [{"stage": "load", "begin_s": 1.0, "end_s": 2.5}],
    }
    assert json.dumps(shown)
    assert type(shown["result"]) is str


def test_an_instant_of_the_daemons_own_clock_is_not_shown() -> None:
    assert event_document(CoolingDown(M01, 3, Instant(5))) == {"event": "cooling_down", "model": "m01", "failures": 3}


@pytest.mark.parametrize(
    ("note", "shown"),
    [
        (
            Placed(InstanceId(1), M01, GpuSet(0b1100), PlacementQuality.TOP),
            {"event": "placed", "instance": 1, "model": "m01", "gpus": [2, 3], "quality": "top"},
        ),
        (
            FootprintMeasured(InstanceId(1), M01, "r1", Bytes(10), Bytes(14), differs=True),
            {
                "event": "footprint_measured",
                "instance": 1,
                "model": "m01",
                "revision": "r1",
                "declared_bytes": 10,
                "measured_bytes": 14,
                "differs": True,
            },
        ),
        (
            ReleaseConfirmed(InstanceId(1), M01, Duration(12 * SECOND), ReleaseEvidence.FREE),
            {"event": "release_confirmed", "instance": 1, "model": "m01", "after_s": 12.0, "by": "free"},
        ),
        (
            GpuChanged(5, "GPU-5", GpuHealth.HEALTHY, GpuHealth.LOST, "lost: GPU is lost"),
            {
                "event": "gpu_changed",
                "gpu": 5,
                "uuid": "GPU-5",
                "before": "healthy",
                "after": "lost",
                "why": "lost: GPU is lost",
            },
        ),
        (
            DriverChanged(DriverState.UP, DriverState.RELEASED, "released for an operator"),
            {"event": "driver_changed", "before": "up", "after": "released", "detail": "released for an operator"},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_happens_to_gpus_is_told_with_units(note: Note, shown: dict[str, object]) -> None:
    assert json.loads(json.dumps(event_document(note))) == shown
