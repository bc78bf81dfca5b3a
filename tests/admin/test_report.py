"""The promotion report as a document: stable keys, plain figures, the costliest first."""

import json

import pytest

from swapd.admin.report import report_document
from swapd.aio.turns import at_once
from swapd.core.accounts import Costs
from swapd.core.catalog import OnThrash
from swapd.core.ids import Duration, ModelName
from swapd.core.reasons import PinnedBy, Verdict
from swapd.core.tiers import Hour, Tier, weigh
from tests.fakes.node_views import model_view, node_view

HOURLY = Costs(requests=60, loads=30, own_gpu_seconds=2400, charged_gpu_seconds=600, waited_seconds=1800)


def test_the_report_says_what_each_model_costs_and_what_to_do() -> None:
    week = weigh([Hour(60)] * 48, Tier.WARM, costs=HOURLY)
    thrashing = model_view(
        "t",
        verdict=Verdict.THRASHING,
        partner=ModelName("u"),
        hourly=HOURLY,
        totals=HOURLY,
        week=week,
        evicts=((ModelName("u"), 600.0),),
    )
    view = node_view(
        model_view("u"),
        thrashing,
        model_view("gone", configured=False),
        max_pinned_gpus=1,
        load_verdict=Verdict.THRASHING,
        load_fraction=0.4,
    )
    document = json.loads(json.dumps(at_once(report_document(view))))
    assert document["node"] == {
        "gpus": 2,
        "pinned_gpus": 0,
        "max_pinned_gpus": 1,
        "on_thrash": "report",
        "load_fraction": 0.4,
        "verdict": "thrashing",
        "saves_gpu_seconds_per_hour": 3000,
        "detail": "the pool thrashes, and no setting makes room: move the models that cost most, or add a node",
    }
    first, second = document["models"]
    assert (first["name"], second["name"]) == ("t", "u")
    assert first["advice"] == {
        "move": "pin",
        "tier": "warm",
        "saves_gpu_seconds_per_hour": 3000,
        "saves_wait_per_request_s": 30,
        "evicts": [{"model": "u", "gpu_seconds": 600}],
        "stranded": [],
        "detail": first["advice"]["detail"],
    }
    assert "swapd pin t" in first["advice"]["detail"]
    costs = {"requests": 60, "loads": 30, "own_gpu_seconds": 2400, "charged_gpu_seconds": 600, "waited_s": 1800}
    assert first["since_start"] == first["per_hour"] == costs
    assert first["week"] == {
        "tier": "warm",
        "provisional": False,
        "observed_hours": 48,
        "requests_per_hour": 60,
        "p99_requests_per_hour": 60,
        "share": 0,
        "hot_limit_per_hour": 5000,
        "warm_limit_per_hour": 50,
        "costs": costs,
    }
    assert first["warm_limit_per_hour"] == 900  # a load takes 2 s
    assert second["advice"]["move"] == "stay"
    assert (second["week"], second["advice"]["tier"]) == (None, None)


def test_pins_are_told_with_who_made_them() -> None:
    pinned = model_view("p", pinned_by=PinnedBy.ON_THRASH, load_estimate=Duration(0))
    document = at_once(report_document(node_view(pinned, on_thrash=OnThrash.PIN)))
    assert document["node"]["pinned_gpus"] == 1
    (model,) = document["models"]
    assert (model["pinned_by"], model["warm_limit_per_hour"]) == ("on_thrash", None)


@pytest.mark.parametrize("verdict", Verdict)
def test_the_node_has_a_sentence_for_every_verdict(verdict: Verdict) -> None:
    document = at_once(report_document(node_view(load_verdict=verdict)))
    assert document["node"]["detail"]
