"""Writes the promotion report: which models had better not be swapped here, and what it would save; pure.

Rules for readers: keys are stable, new ones may appear. Models stand in the order of what they have cost. Times are in
seconds, costs in GPU-seconds of loading, rates per hour; ``null`` says "there is none" or "not known".
"""

from collections.abc import Generator
from typing import Final

from swapd.admin.devices import Json
from swapd.core.accounts import Costs
from swapd.core.ids import SECOND
from swapd.core.promotion import Advice, advice_on_all, ranked
from swapd.core.reasons import Move, Verdict
from swapd.core.tiers import HOT_PER_HOUR, WARM_PER_HOUR, Week, warm_limit
from swapd.core.view import NodeView

_NODE_SENTENCES: Final = {
    Verdict.UNKNOWN: "the node is judged once it has run for a quarter of an hour",
    Verdict.OK: "the share of its time that the node spends loading is well",
    Verdict.MARGINAL: "the node spends much of its time loading: moving a model that costs much would help",
    Verdict.THRASHING: "the pool thrashes, and no setting makes room: move the models that cost most, or add a node",
}


def report_document(view: NodeView) -> Generator[None, None, Json]:
    """Make the report, of plain JSON types, in small steps; return it after the last one."""
    advice: list[Advice] = []
    for one in advice_on_all(view):
        advice.append(one)
        yield
    models: list[Json] = []
    for one in ranked(advice):
        models.append(_model(one))
        yield
    moving = [one for one in advice if one.move is not Move.STAY]
    return {
        "node": {
            "gpus": view.topology.placeable.bit_count(),
            "pinned_gpus": sum(model.gpus for model in view.models if model.pinned),
            "max_pinned_gpus": view.max_pinned_gpus,
            "on_thrash": view.on_thrash.value,
            "load_fraction": view.load_fraction,
            "verdict": view.load_verdict.value,
            "saves_gpu_seconds_per_hour": sum(one.saves_gpu_seconds for one in moving),
            "detail": _NODE_SENTENCES[view.load_verdict],
        },
        "models": models,
    }


def _model(one: Advice) -> Json:
    model = one.model
    return {
        "name": model.model,
        "gpus": model.gpus,
        "pinned_by": None if model.pinned_by is None else model.pinned_by.value,
        "verdict": model.verdict.value,
        "partner": model.partner,
        "load_ratio": model.load_ratio,
        "load_fraction": model.load_fraction,
        "load_time_s": round(model.load_estimate / SECOND, 3),
        "caused_gpu_seconds": one.caused_gpu_seconds,
        "since_start": _costs(model.totals),
        "per_hour": _costs(model.hourly),
        "wait_per_request_s": model.hourly.wait_per_request,
        "week": None if model.week is None else _week(model.week),
        "warm_limit_per_hour": warm_limit(model.load_estimate) if model.load_estimate else None,
        "advice": {
            "move": one.move.value,
            "tier": None if one.tier is None else one.tier.value,
            "saves_gpu_seconds_per_hour": one.saves_gpu_seconds,
            "saves_wait_per_request_s": one.saves_wait_s,
            "evicts": [{"model": victim, "gpu_seconds": cost} for victim, cost in model.evicts],
            "stranded": list(one.stranded),
            "detail": one.detail,
        },
    }


def _costs(costs: Costs) -> Json:
    return {
        "requests": costs.requests,
        "loads": costs.loads,
        "own_gpu_seconds": costs.own_gpu_seconds,
        "charged_gpu_seconds": costs.charged_gpu_seconds,
        "waited_s": costs.waited_seconds,
    }


def _week(week: Week) -> Json:
    return {
        "tier": week.tier.value,
        "provisional": week.provisional,
        "observed_hours": week.observed_hours,
        "requests_per_hour": week.requests_per_hour,
        "p99_requests_per_hour": week.p99_per_hour,
        "share": week.share,
        "hot_limit_per_hour": HOT_PER_HOUR,
        "warm_limit_per_hour": WARM_PER_HOUR,
        "costs": _costs(week.costs),
    }
