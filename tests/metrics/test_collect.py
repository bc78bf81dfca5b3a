"""What each metric counts."""

from dataclasses import dataclass

import pytest

from swapd.core.accounts import Costs
from swapd.core.catalog import Source
from swapd.core.commands import (
    CoolingDown,
    DriverChanged,
    Evicted,
    EvictionBlocked,
    FootprintMeasured,
    GpuChanged,
    NodeLoadChanged,
    Note,
    PromotionAdvised,
    StaleFact,
    ThrashPinChanged,
    Transitioned,
    VerdictChanged,
)
from swapd.core.ids import Bytes, GpuSet, InstanceId, Instant, ModelName
from swapd.core.reasons import (
    EvictionBlock,
    LoadFailure,
    LoadResult,
    Move,
    Outcome,
    PinnedBy,
    Rejection,
    Stage,
    State,
    ThrashPin,
    UnloadCause,
    Verdict,
    WaitingFor,
)
from swapd.core.tiers import Hour, weigh
from swapd.core.topology import DriverState, GpuHealth
from tests.fakes.node_views import at, gpu_view, instance_view, model_view, node_view
from tests.metrics.bench import Bench, seconds
from tests.metrics.full import M01, load_finished


async def test_tokens_requests_and_latency_are_told_per_model(bench: Bench) -> None:
    for prompt, completion in ((7, 11), (None, None), (3, 0)):
        bench.metrics.request_finished(
            M01,
            code=200,
            outcome=Outcome.SERVED,
            cold_start=False,
            duration_s=2.0,
            queue_wait_s=0.25,
            first_byte_s=0.5,
            prompt_tokens=prompt,
            completion_tokens=completion,
        )
    series = await bench.series()
    assert series["swapd_requests_total{code=200,model=m01,start=resident}"] == 3
    assert series["swapd_model_prompt_tokens_total{model=m01}"] == 10
    assert series["swapd_model_completion_tokens_total{model=m01}"] == 11
    assert series["swapd_model_time_to_first_byte_seconds_sum{model=m01}"] == 1.5
    assert series["swapd_model_time_to_first_byte_seconds_count{model=m01}"] == 3
    assert series["swapd_model_queue_wait_seconds_sum{model=m01}"] == 0.75
    assert series["swapd_request_duration_seconds_sum{start=resident}"] == 6
    assert series["swapd_time_to_first_byte_seconds_bucket{le=0.25,start=resident}"] == 0
    assert series["swapd_time_to_first_byte_seconds_bucket{le=0.5,start=resident}"] == 3
    assert series["swapd_time_to_first_byte_seconds_bucket{le=+Inf,start=resident}"] == 3


@dataclass
class Served:
    """A request as the metrics see it."""

    waited_s: float
    ttfb_s: float | None
    duration_s: float
    prompt_tokens: int | None
    completion_tokens: int | None


async def test_requests_counted_together_make_the_same_page_as_one_by_one(bench: Bench) -> None:
    served = [Served(0.0, 0.5, 2.0, 7, 11), Served(0.25, 0.0078125, 70.0, None, None), Served(0.0, 999.0, 999.0, 3, 0)]
    for code in (200, 404):
        bench.metrics.requests_served(M01, code, served)
    together = await bench.series()
    other = Bench()
    for code in (200, 404):
        for each in served:
            other.metrics.request_finished(
                M01,
                code=code,
                outcome=Outcome.SERVED,
                cold_start=False,
                duration_s=each.duration_s,
                queue_wait_s=each.waited_s,
                first_byte_s=each.ttfb_s,
                prompt_tokens=each.prompt_tokens,
                completion_tokens=each.completion_tokens,
            )
    one_by_one = await other.series()
    assert [name for name in together if name.startswith("swapd_") and together[name] != one_by_one[name]] == []


async def test_a_model_without_token_counts_has_no_token_series(bench: Bench) -> None:
    bench.metrics.request_finished(M01, code=200, outcome=Outcome.SERVED, cold_start=False, duration_s=1.0)
    assert [name for name in await bench.series() if "tokens" in name] == []


async def test_a_cold_start_counts_against_its_promise(bench: Bench) -> None:
    for kept in (True, True, False, None):
        bench.metrics.request_finished(
            M01, code=200, outcome=Outcome.SERVED, cold_start=True, duration_s=1.0, promise_kept=kept
        )
    series = await bench.series()
    assert series["swapd_cold_start_promise_total{kept=true,model=m01}"] == 2
    assert series["swapd_cold_start_promise_total{kept=false,model=m01}"] == 1
    assert series["swapd_requests_total{code=200,model=m01,start=cold_start}"] == 4


async def test_a_name_that_a_client_made_up_never_becomes_a_label(bench: Bench) -> None:
    for name in ("nonsense", 'x"\n} 1', None):
        bench.metrics.request_finished(
            name,
            code=404,
            outcome=None,
            cold_start=False,
            duration_s=0.001,
            reason=Rejection.UNKNOWN_MODEL,
        )
    series = await bench.series()
    assert series["swapd_requests_total{code=404,model=__unknown__,start=resident}"] == 3
    assert series["swapd_rejections_total{model=__unknown__,reason=unknown_model}"] == 3
    assert "nonsense" not in await bench.text()


async def test_every_series_of_a_model_that_leaves_the_configuration_goes(bench: Bench) -> None:
    bench.metrics.observe(load_finished(model=ModelName("m02")))
    for name in ("m01", "m02"):
        bench.metrics.request_finished(
            name,
            code=200,
            outcome=Outcome.CUT,
            cold_start=True,
            duration_s=1.0,
            queue_wait_s=1.0,
            first_byte_s=1.0,
            reason=Rejection.DRAINING,
            prompt_tokens=1,
            completion_tokens=1,
            promise_kept=True,
        )
    bench.metrics.configure([M01])
    leaving = model_view("m02", configured=False, instance=instance_view("m02", state=State.DRAINING), in_flight=2)
    bench.view = node_view(model_view("m01"), leaving)
    series = await bench.series()
    assert [name for name in series if "m02" in name] == []
    assert series["swapd_inflight_requests{model=__unknown__}"] == 2
    assert series["swapd_requests_cut_total{model=m01}"] == 1


async def test_an_answer_the_engine_broke_off_is_told_from_one_that_never_began(bench: Bench) -> None:
    for first_byte_s in (None, 1.0):
        bench.metrics.request_finished(
            M01,
            code=200 if first_byte_s else 502,
            outcome=Outcome.UPSTREAM_FAILED,
            cold_start=False,
            duration_s=2.0,
            first_byte_s=first_byte_s,
        )
    assert (await bench.series())["swapd_streams_broken_total{model=m01}"] == 1


async def test_loads_count_by_result_and_only_ready_ones_are_timed(bench: Bench) -> None:
    bench.metrics.observe(load_finished())
    bench.metrics.observe(load_finished(result=LoadResult.FAILED, failure=LoadFailure.EXITED, source=Source.REMOTE))
    bench.metrics.observe(load_finished(result=LoadResult.ABORTED))
    bench.metrics.observe(load_finished(victims=()))
    series = await bench.series()
    assert series["swapd_model_loads_total{model=m01,result=ready,source=cache}"] == 2
    assert series["swapd_model_loads_total{model=m01,result=failed,source=remote}"] == 1
    assert series["swapd_model_loads_total{model=m01,result=aborted,source=cache}"] == 1
    assert series["swapd_model_load_duration_seconds_count{model=m01}"] == 2
    assert series["swapd_model_load_duration_seconds_sum{model=m01}"] == 8
    assert series[f"swapd_load_stage_duration_seconds_sum{{stage={Stage.LOAD}}}"] == 6
    assert series["swapd_swaps_total"] == 1


async def test_reloads_soon_after_the_models_own_eviction_are_counted(bench: Bench) -> None:
    for relapse in (True, False, True):
        bench.metrics.observe(load_finished(relapse=relapse))
    assert (await bench.series())["swapd_model_relapses_total{model=m01}"] == 2


async def test_a_lost_server_is_a_restart_and_a_chosen_victim_an_eviction(bench: Bench) -> None:
    for cause in (UnloadCause.EVICTED, UnloadCause.IDLE, UnloadCause.EXITED, UnloadCause.UNRESPONSIVE):
        bench.metrics.observe(Evicted(InstanceId(1), M01, cause, None))
    bench.metrics.observe(EvictionBlocked(M01, EvictionBlock.PROTECTED, ModelName("m02")))
    series = await bench.series()
    counted = {name: value for name, value in series.items() if "evict" in name or "restarts" in name}
    assert counted == {
        "swapd_evictions_total{model=m01,reason=evicted}": 1,
        "swapd_evictions_total{model=m01,reason=idle}": 1,
        "swapd_model_server_restarts_total{model=m01,reason=exited}": 1,
        "swapd_model_server_restarts_total{model=m01,reason=unresponsive}": 1,
        "swapd_eviction_blocked_total{reason=protected}": 1,
    }


@pytest.mark.parametrize(
    "note",
    [
        Transitioned(InstanceId(1), M01, GpuSet(1), None, State.RESERVED, "room found"),
        VerdictChanged(M01, Verdict.OK, Verdict.THRASHING, None, 0.6, 0.5),
        NodeLoadChanged(Verdict.OK, Verdict.MARGINAL, 0.2, "the node spends 20% of its time loading"),
        CoolingDown(M01, 1, Instant(0)),
        StaleFact("EngineGone"),
        FootprintMeasured(InstanceId(1), M01, "r1", Bytes(10), Bytes(14), differs=True),
        GpuChanged(0, "GPU-0", GpuHealth.HEALTHY, GpuHealth.LOST, "lost"),
        DriverChanged(DriverState.UP, DriverState.STALLED, ""),
    ],
    ids=lambda note: type(note).__name__,
)
async def test_what_the_snapshot_tells_is_not_counted_twice(bench: Bench, note: Note) -> None:
    before = set(await bench.series())
    bench.metrics.observe(note)
    assert set(await bench.series()) == before


async def test_each_model_is_in_exactly_one_state(bench: Bench) -> None:
    bench.view = node_view(
        model_view("m01", instance=instance_view("m01", state=State.LOADING), pinned=True),
        model_view("m02"),
        model_view("m03", cooling_until=at(120), consecutive_failures=1),
    )
    series = await bench.series()
    ones = {name for name, value in series.items() if name.startswith("swapd_model_state{") and value}
    assert ones == {
        "swapd_model_state{model=m01,state=loading}",
        "swapd_model_state{model=m02,state=absent}",
        "swapd_model_state{model=m03,state=failed}",
    }
    assert sum(value for name, value in series.items() if name.startswith("swapd_models{")) == 3
    assert series["swapd_models{state=failed}"] == 1
    assert series["swapd_models{state=ready}"] == 0
    assert [series[f"swapd_model_pinned{{model=m0{i}}}"] for i in (1, 2, 3)] == [1, 0, 0]


async def test_what_requests_wait_for_is_told_apart(bench: Bench) -> None:
    bench.view = node_view(
        model_view("m01", queued={WaitingFor.LOAD: 3, WaitingFor.ENGINE_SLOT: 1}, oldest_waiter=at(92.5)),
        model_view("m02"),
    )
    series = await bench.series()
    assert series["swapd_queue_requests{model=m01,waiting_for=load}"] == 3
    assert series["swapd_queue_requests{model=m01,waiting_for=engine_slot}"] == 1
    assert series["swapd_queue_requests{model=m01,waiting_for=room}"] == 0
    assert series["swapd_queue_oldest_age_seconds{model=m01}"] == 7.5
    assert series["swapd_queue_oldest_age_seconds{model=m02}"] == 0


async def test_the_schedulers_own_verdict_and_figures_are_published(bench: Bench) -> None:
    thrashing = model_view(
        "m01", verdict=Verdict.THRASHING, load_ratio=1.5, load_fraction=0.6, inter_arrival=seconds(30)
    )
    leaky = gpu_view(0, reserved_bytes=Bytes(5), quarantined_bytes=Bytes(3))
    bench.view = node_view(thrashing, model_view("m02"), gpus=(leaky,), load_fraction=0.4, stale_facts=7, draining=True)
    series = await bench.series()
    assert series["swapd_model_thrashing{model=m01}"] == 1
    assert series["swapd_model_thrashing{model=m02}"] == 0
    assert series["swapd_model_load_ratio{model=m01}"] == 1.5
    assert series["swapd_model_load_fraction{model=m01}"] == 0.6
    assert series["swapd_model_interarrival_seconds{model=m01}"] == 30
    assert "swapd_model_interarrival_seconds{model=m02}" not in series
    assert series["swapd_node_load_fraction"] == 0.4
    assert series["swapd_gpu_quarantined_bytes{UUID=virtual-0,gpu=0}"] == 3
    assert series["swapd_stale_facts_total"] == 7
    assert series["swapd_draining"] == 1


async def test_a_refused_configuration_shows_until_a_good_one_comes(bench: Bench) -> None:
    bench.metrics.config_reloaded(ok=True)
    bench.wall += 60
    bench.metrics.config_reloaded(ok=False)
    series = await bench.series()
    assert series["swapd_config_last_reload_successful"] == 0
    assert series["swapd_config_last_reload_success_timestamp_seconds"] == 1_700_000_000
    bench.metrics.config_reloaded(ok=True)
    series = await bench.series()
    assert series["swapd_config_last_reload_successful"] == 1
    assert series["swapd_config_last_reload_success_timestamp_seconds"] == 1_700_000_060


async def test_build_and_readiness_are_published(bench: Bench) -> None:
    bench.reasons = ("the daemon is starting",)
    assert (await bench.series())["swapd_ready"] == 0
    bench.reasons = ()
    series = await bench.series()
    assert series["swapd_ready"] == 1
    assert series["swapd_build_info{revision=abc,version=1.2.3}"] == 1


async def test_the_advice_the_tier_and_the_costs_of_each_model_are_on_the_page(bench: Bench) -> None:
    hourly = Costs(requests=60, loads=30, own_gpu_seconds=2400)
    thrashing = model_view("m01", verdict=Verdict.THRASHING, hourly=hourly, totals=Costs(0, 0, 80.5, 40))
    hot = model_view("m02", week=weigh([Hour(6000)] * 48))
    gone = model_view("gone", configured=False, week=weigh([Hour(1)]), totals=Costs(0, 0, 1, 1))
    bench.view = node_view(thrashing, hot, gone, max_pinned_gpus=1, load_verdict=Verdict.THRASHING)
    series = await bench.series()
    promotions = {name: value for name, value in series.items() if name.startswith("swapd_promotion_recommended")}
    assert promotions == {
        "swapd_promotion_recommended{model=m01,tier=hot}": 0,
        "swapd_promotion_recommended{model=m01,tier=warm}": 1,
        "swapd_promotion_recommended{model=m02,tier=hot}": 1,
        "swapd_promotion_recommended{model=m02,tier=warm}": 0,
    }
    assert series["swapd_model_tier{model=m02,tier=hot}"] == 1
    assert series["swapd_model_week_requests_per_hour{model=m02}"] == 6000
    assert series["swapd_model_loading_gpu_seconds_total{kind=own,model=m01}"] == 80.5
    assert series["swapd_model_loading_gpu_seconds_total{kind=charged,model=m01}"] == 40
    assert series["swapd_node_thrashing"] == 1
    assert [name for name in series if "gone" in name or "thrash_pinned" in name] == []


async def test_what_on_thrash_does_is_counted(bench: Bench) -> None:
    for action in (ThrashPin.PINNED, ThrashPin.REFUSED, ThrashPin.REFUSED, ThrashPin.LIFTED):
        bench.metrics.observe(ThrashPinChanged(M01, action, "why"))
    bench.metrics.observe(PromotionAdvised(M01, Move.STAY, Move.PIN, 5.0, "why"))
    bench.view = node_view(model_view("m01", pinned_by=PinnedBy.ON_THRASH))
    series = await bench.series()
    assert series["swapd_thrash_pins_total{action=refused,model=m01}"] == 2
    assert series["swapd_thrash_pins_total{action=lifted,model=m01}"] == 1
    assert series["swapd_model_thrash_pinned{model=m01}"] == 1
