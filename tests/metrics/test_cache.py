"""What the page says of the weight cache, and of every second of a cold start."""

import pytest

from swapd.core.catalog import Source
from swapd.core.commands import FetchEnded, StageSpan
from swapd.core.ids import Bytes, Duration
from swapd.core.reasons import FetchFailure, Stage
from tests.fakes.node_views import instance_view, model_view, node_view
from tests.metrics.bench import Bench, seconds
from tests.metrics.full import CACHE, M01, fetch_view, load_finished


def span(stage: Stage, begin: float, end: float) -> StageSpan:
    return StageSpan(stage, seconds(begin), seconds(end))


async def stage_sums(bench: Bench) -> dict[str, float]:
    name = "swapd_load_stage_duration_seconds_sum{stage="
    return {
        series.removeprefix(name).rstrip("}"): value
        for series, value in (await bench.series()).items()
        if series.startswith(name)
    }


async def test_stages_that_run_beside_others_are_timed_in_full(bench: Bench) -> None:
    timeline = (
        span(Stage.QUEUED, 0, 2),
        span(Stage.FETCH, 0.5, 9),
        span(Stage.STOP, 6, 7),
        span(Stage.PAGE_CACHE, 9, 10),
        span(Stage.LOAD, 9, 12),
    )
    stages = {Stage.FETCH: seconds(2), Stage.STOP: seconds(1), Stage.LOAD: seconds(3)}
    bench.metrics.observe(load_finished(stages=stages, timeline=timeline))
    bench.metrics.first_byte(0.25)
    expected = {"queued": 2, "fetch": 8.5, "page_cache": 1, "stop": 1, "load": 3, "first_byte": 0.25}
    assert await stage_sums(bench) == expected


async def test_a_load_without_a_timeline_is_timed_by_what_it_waited_for(bench: Bench) -> None:
    bench.metrics.observe(load_finished(stages={Stage.FETCH: seconds(2), Stage.LOAD: seconds(3)}))
    assert await stage_sums(bench) == {"fetch": 2, "load": 3}


async def test_loads_are_counted_by_where_their_weights_came_from(bench: Bench) -> None:
    for source in (Source.REMOTE, Source.PAGE_CACHE, Source.PAGE_CACHE):
        bench.metrics.observe(load_finished(source=source))
    series = await bench.series()
    assert series["swapd_model_loads_total{model=m01,result=ready,source=remote}"] == 1
    assert series["swapd_model_loads_total{model=m01,result=ready,source=page_cache}"] == 2


async def test_fetches_are_counted_by_how_they_ended(bench: Bench) -> None:
    for failure in (None, None, FetchFailure.UNREACHABLE, FetchFailure.CANCELLED):
        bench.metrics.observe(FetchEnded(M01, Bytes(5), Duration(1), failure))
    series = await bench.series()
    assert {name: value for name, value in series.items() if "fetches_total" in name} == {
        "swapd_model_fetches_total{model=m01,result=fetched}": 2,
        "swapd_model_fetches_total{model=m01,result=unreachable}": 1,
        "swapd_model_fetches_total{model=m01,result=cancelled}": 1,
    }


async def test_the_cache_is_shown_as_its_room_tells(bench: Bench) -> None:
    bench.cache = CACHE
    series = await bench.series()
    assert {name: value for name, value in series.items() if name.startswith("swapd_cache")} == {
        "swapd_cache_bytes": 600,
        "swapd_cache_capacity_bytes": 1000,
        "swapd_cache_foreign_bytes": 50,
        "swapd_cache_copies": 2,
        "swapd_cache_fetches{state=running}": 1,
        "swapd_cache_fetches{state=queued}": 3,
        "swapd_cache_fetched_bytes_total": 5000,
        "swapd_cache_evicted_copies_total": 4,
        "swapd_cache_evicted_bytes_total": 4000,
    }


async def test_a_node_without_a_cache_has_no_series_of_one(bench: Bench) -> None:
    assert [name for name in await bench.series() if name.startswith("swapd_cache")] == []


async def test_the_promise_and_the_measured_cold_starts_stand_beside_each_other(bench: Bench) -> None:
    measured = model_view(
        "m01",
        max_wait=seconds(30),
        load_times={Source.CACHE: seconds(4), Source.REMOTE: seconds(45)},
        cached_bytes=Bytes(7),
    )
    bench.view = node_view(measured, model_view("m02", fetch=fetch_view()))
    series = await bench.series()
    assert series["swapd_model_max_wait_seconds{model=m01}"] == 30
    assert series["swapd_model_load_time_seconds{model=m01,source=cache}"] == 4
    assert series["swapd_model_load_time_seconds{model=m01,source=remote}"] == 45
    assert series["swapd_model_cached_bytes{model=m01}"] == 7
    assert [name for name in series if "m02" in name and ("load_time" in name or "cached_b" in name)] == []


@pytest.mark.parametrize(("waits", "shown"), [("the disk is full", 1.0), ("", None)])
async def test_a_fetch_that_waits_for_the_disk_is_told_from_one_that_runs(
    bench: Bench, waits: str, shown: float | None
) -> None:
    bench.view = node_view(model_view("m01", fetch=fetch_view(waits=waits)))
    assert (await bench.series()).get("swapd_model_fetch_waiting{model=m01}") == shown


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"cached_bytes": Bytes(1)}, "cached"),
        ({}, "absent"),
        ({"cached_bytes": Bytes(1), "cooling_until": 200}, "failed"),
        ({"cached_bytes": Bytes(1), "instance": instance_view("m01")}, "ready"),
    ],
)
async def test_a_model_whose_weights_are_here_is_cached(bench: Bench, changes: dict[str, object], state: str) -> None:
    bench.view = node_view(model_view("m01", **changes))
    series = await bench.series()
    assert series[f"swapd_model_state{{model=m01,state={state}}}"] == 1
    assert series[f"swapd_models{{state={state}}}"] == 1
