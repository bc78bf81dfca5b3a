"""Feeds every declared metric once, through the doors the daemon uses."""

from typing import Any

from swapd.core.catalog import Source
from swapd.core.commands import (
    Evicted,
    EvictionBlocked,
    FetchEnded,
    LoadFinished,
    Placed,
    ReleaseConfirmed,
    ThrashPinChanged,
)
from swapd.core.ids import SECOND, Bytes, Duration, GpuSet, InstanceId, ModelName
from swapd.core.reasons import (
    EvictionBlock,
    LoadResult,
    Outcome,
    PinnedBy,
    PlacementQuality,
    Rejection,
    ReleaseEvidence,
    Stage,
    ThrashPin,
    UnloadCause,
)
from swapd.core.tiers import Hour, weigh
from swapd.core.view import FetchView
from swapd.metrics.now import CacheNow, DriverStats
from tests.fakes.gpu_nodes import gpu_node
from tests.fakes.node_views import at, model_view
from tests.metrics.bench import Bench, seconds

M01 = ModelName("m01")
WEEK = weigh([Hour(60)] * 168)
CACHE = CacheNow(
    used=Bytes(600),
    limit=Bytes(1000),
    foreign=Bytes(50),
    copies=2,
    fetches_running=1,
    fetches_queued=3,
    fetched_bytes=5000,
    evicted_copies=4,
    evicted_bytes=4000,
)


def fetch_view(**changes: Any) -> FetchView:
    fields: dict[str, Any] = {
        "since": at(60),
        "running": True,
        "done": Bytes(43),
        "total": Bytes(100),
        "rate": 2.0,
        "remaining": seconds(35),
        "waits": "",
    }
    return FetchView(**(fields | changes))


def load_finished(**changes: Any) -> LoadFinished:
    fields: dict[str, Any] = {
        "instance": InstanceId(1),
        "model": M01,
        "result": LoadResult.READY,
        "source": Source.CACHE,
        "load_time": seconds(3),
        "duration": seconds(4),
        "stages": {Stage.STOP: seconds(1), Stage.LOAD: seconds(3)},
        "victims": (ModelName("m02"),),
        "relapse": True,
    }
    return LoadFinished(**(fields | changes))


def feed_everything(bench: Bench) -> None:
    measured = model_view(
        "m01",
        inter_arrival=Duration(60 * SECOND),
        measured_bytes=Bytes(5),
        week=WEEK,
        pinned_by=PinnedBy.ON_THRASH,
        load_times={Source.REMOTE: seconds(60)},
        cached_bytes=Bytes(300),
        fetch=fetch_view(waits="the disk is full"),
    )
    bench.cache = CACHE
    bench.view = gpu_node(measured, model_view("m02"))
    bench.driver = DriverStats(up=True, errors={("nvmlInit", "DriverNotLoaded"): 1}, last_read_age_s=1)
    metrics = bench.metrics
    metrics.config_reloaded(ok=True)
    metrics.observe(load_finished())
    metrics.observe(FetchEnded(M01, Bytes(300), seconds(30)))
    metrics.first_byte(0.2)
    metrics.observe(Evicted(InstanceId(2), ModelName("m02"), UnloadCause.EVICTED, M01))
    metrics.observe(Evicted(InstanceId(3), M01, UnloadCause.EXITED, None))
    metrics.observe(EvictionBlocked(ModelName("m02"), EvictionBlock.PINNED, M01))
    metrics.observe(ThrashPinChanged(M01, ThrashPin.PINNED, "m01 thrashes and is pinned now"))
    metrics.observe(Placed(InstanceId(1), M01, GpuSet(1), PlacementQuality.SINGLE))
    metrics.observe(ReleaseConfirmed(InstanceId(2), M01, seconds(2), ReleaseEvidence.FREE))
    ends = ((Outcome.UPSTREAM_FAILED, None), (Outcome.CUT, None), (Outcome.REJECTED, Rejection.DRAINING))
    for outcome, reason in ends:
        metrics.request_finished(
            M01,
            code=200,
            outcome=outcome,
            cold_start=True,
            duration_s=5.0,
            queue_wait_s=4.0,
            first_byte_s=4.5,
            reason=reason,
            prompt_tokens=7,
            completion_tokens=11,
            promise_kept=True,
        )
