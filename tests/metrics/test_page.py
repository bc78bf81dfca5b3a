"""The page as a scraper sees it: complete, well-formed, written in steps."""

import asyncio
import os
import re
import shutil
import subprocess
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from swapd.core.catalog import Source
from swapd.core.reasons import Outcome
from swapd.metrics import page
from swapd.metrics.document import render
from swapd.metrics.metric import Kind
from swapd.metrics.registry import METRICS
from tests.fakes.gpu_nodes import gpu_node
from tests.fakes.node_views import gpu_view, instance_view, model_view, node_view
from tests.fakes.source_tree import ROOT
from tests.metrics.bench import Bench, seconds
from tests.metrics.full import WEEK, feed_everything, load_finished

OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.9,text/plain;q=0.3"
_SUFFIX = {Kind.HISTOGRAM: "_bucket", Kind.SUMMARY: "_count"}


async def test_every_declared_metric_is_fed_by_the_daemons_own_doors(bench: Bench) -> None:
    feed_everything(bench)
    names = {name.partition("{")[0] for name in await bench.series()}
    assert [metric.name for metric in METRICS if metric.name + _SUFFIX.get(metric.kind, "") not in names] == []


async def test_nothing_is_on_the_page_that_is_not_declared(bench: Bench) -> None:
    feed_everything(bench)
    declared = {metric.name for metric in METRICS}
    helped = set(re.findall(r"^# HELP (\S+)", await bench.text(), re.MULTILINE))
    assert {name for name in helped if not name.startswith(("process_", "python_"))} == declared
    assert {"process_resident_memory_bytes", "python_info", "python_gc_collections_total"} <= helped


async def test_no_series_doubles_as_a_creation_time(bench: Bench) -> None:
    feed_everything(bench)
    assert "_created" not in await bench.text() + await bench.text(OPENMETRICS)


async def test_a_scraper_that_asks_for_openmetrics_gets_it_and_others_get_text(bench: Bench) -> None:
    feed_everything(bench)
    body, content_type = await bench.metrics.page(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    assert b"# UNIT swapd_gpu_reserved_bytes bytes\n" in body
    body, content_type = await bench.metrics.page("*/*")
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert b"# EOF" not in body


async def test_promtool_finds_nothing_to_say_about_the_page(bench: Bench) -> None:
    if "SWAPD_WITHOUT_PROMTOOL" in os.environ:
        pytest.skip("SWAPD_WITHOUT_PROMTOOL is set")
    promtool = shutil.which("promtool")
    assert promtool, "promtool is needed: apt-get install --no-install-recommends prometheus"
    feed_everything(bench)
    body, _ = await bench.metrics.page("")
    command = [promtool, "check", "metrics"]
    done = await asyncio.to_thread(subprocess.run, command, input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (0, "", "")


async def test_eight_gpus_are_all_in_every_scrape(bench: Bench) -> None:
    bench.view = node_view(gpus=tuple(gpu_view(index, reserved_bytes=index) for index in range(8)))
    for _ in range(2):
        series = await bench.series()
        assert [series[f"swapd_gpu_reserved_bytes{{UUID=virtual-{i},gpu={i}}}"] for i in range(8)] == list(range(8))


async def test_the_page_is_of_one_moment_however_the_node_moves_on_while_it_is_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = page.choose_encoder

    def moved_on(accept: str) -> object:
        """Let the node move on after the snapshot was taken, before the page is written."""
        bench.view = node_view(model_view("m01", in_flight=99))
        bench.metrics.observe(load_finished())
        return choose(accept)

    bench.view = node_view(model_view("m01", in_flight=3))
    monkeypatch.setattr(page, "choose_encoder", moved_on)
    series = await bench.series()
    assert series["swapd_inflight_requests{model=m01}"] == 3
    assert "swapd_swaps_total" not in series


def fed_with(bench: Bench, names: list[str]) -> None:
    """Give every model one series of each kind."""
    feed_everything(bench)
    bench.metrics.configure(names)
    for name in names:
        bench.metrics.observe(load_finished(model=name))
        for cold_start in (False, True):
            bench.metrics.request_finished(
                name,
                code=200,
                outcome=Outcome.SERVED,
                cold_start=cold_start,
                duration_s=1.0,
                queue_wait_s=1.0,
                first_byte_s=1.0,
            )
    known: dict[str, Any] = {
        "measured_bytes": 5,
        "week": WEEK,
        "cached_bytes": 5,
        "load_times": dict.fromkeys((Source.CACHE, Source.REMOTE, Source.PAGE_CACHE), seconds(3)),
    }
    bench.view = gpu_node(*(model_view(name, instance=instance_view(name), **known) for name in names))


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
async def test_a_page_in_many_steps_is_the_page_that_the_library_writes_at_once(bench: Bench, accept: str) -> None:
    fed_with(bench, [f"m{i:02}" for i in range(50)])
    body, _ = await bench.metrics.page(accept)
    text = body.decode()
    heads = re.findall(r"^# (?:HELP|TYPE|UNIT) \S+", text, re.MULTILINE)
    assert len(heads) == len(set(heads))
    parse = openmetrics_families if accept else text_string_to_metric_families
    families = [family for family in parse(text) if family.name.startswith("swapd_")]
    samples = [sample for family in families for sample in family.samples]
    assert len({(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples}) == len(samples)
    encode, _ = page.choose_encoder(accept)
    whole = b"".join(encode(page._One(family)).removesuffix(b"# EOF\n") for family in families)
    assert [line for line in text.splitlines() if line.startswith(("swapd_", "# TYPE swapd_"))] == [
        line for line in whole.decode().splitlines() if line.startswith(("swapd_", "# TYPE swapd_"))
    ]


async def test_no_step_of_a_page_grows_with_the_number_of_models(bench: Bench) -> None:
    turns = []
    for count in (50, 200):
        fed_with(bench, [f"m{i:03}" for i in range(count)])
        snapshot = page.Snapshot(now=bench.metrics._now_values(bench.view), slots=bench.metrics._slots.freeze())
        parts = page._parts(snapshot.now)
        pieces = [len(family.samples) for metric in METRICS for family in page._pieces(metric, snapshot, parts)]
        turns.append(len(pieces))
        assert max(pieces) <= 2 * page.SERIES
    assert turns[1] > turns[0] * 2


async def test_fifty_models_on_eight_gpus_stay_within_the_budget_of_series(bench: Bench) -> None:
    fed_with(bench, [f"m{i:02}" for i in range(50)])
    own = [name for name in await bench.series() if name.startswith("swapd_")]
    assert len(own) < 3600


def test_the_reference_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == render(), "run: make docs"


def test_counters_end_in_total_and_nothing_else_does() -> None:
    assert [m.name for m in METRICS if m.name.endswith("_total") is not (m.kind is Kind.COUNTER)] == []


def test_names_are_declared_once_and_none_collides_with_a_counter() -> None:
    stems = [metric.name.removesuffix("_total") for metric in METRICS]
    assert len(stems) == len(set(stems))
