"""Puts the outcome of simulated runs into figures with fixed names, for programs and for tables.

Names end in their unit: ``_s`` seconds, ``_per_h`` per hour of the trace, ``_share`` 0–1, ``_gpus`` GPUs on
average. Of several seeds the figures are means, but for maxima, and verdicts are the worst of all.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from swapd.core.catalog import Catalog, ModelSpec
from swapd.core.ids import SECOND, Duration
from swapd.core.reasons import Verdict
from swapd.core.tiers import weigh
from swapd.sim.report import ModelReport, Report
from swapd.sim.study import Outcome, Rules, Study

Figures = dict[str, Any]

_MAXIMA: Final = ("wait_max_s", "wait_ready_max_s")
_WORST: Final = (Verdict.THRASHING, Verdict.MARGINAL, Verdict.OK)


def row(rules: Rules, outcomes: Mapping[int | None, Outcome], study: Study, limit: Duration) -> Figures:
    """Return one row: figures of the node over all seeds, of each seed alone if there are any, and of the models."""
    runs = [node_figures(outcome, limit) for outcome in outcomes.values()]
    models = [model_figures(outcome.report, study.catalog, limit) for outcome in outcomes.values()]
    tiers = {model: weigh(hours).tier for model, hours in study.hours()}
    found: Figures = {
        "policy": rules.policy,
        "protect_s": None if rules.protect is None else rules.protect / SECOND,
        **_together(runs),
        "models": [{**_together(same), "tier": tiers[same[0]["model"]].value} for same in zip(*models, strict=True)],
    }
    if None not in outcomes:
        found["runs"] = [{"seed": seed, **_together([run])} for seed, run in zip(outcomes, runs, strict=True)]
    return found


def node_figures(outcome: Outcome, limit: Duration) -> Figures:
    """Return the figures of the whole node."""
    report, waste = outcome.report, outcome.waste
    hours = report.window / SECOND / 3600
    return {
        **_waits(report.node, limit),
        "loads": report.node.loads,
        "evictions": report.node.evictions,
        "loads_per_h": report.node.loads / hours,
        "evictions_per_h": report.node.evictions / hours,
        "loading_share": report.node.load_fraction,
        "failed_loads": report.node.failed_loads,
        "thrash_loads": report.node.relapses,
        "thrashing_models": len(report.thrashing()),
        "empty_gpus": waste.empty,
        "stranded_gpus": waste.stranded,
        "unneeded_gpus": waste.unneeded,
        "wasted_gpus": waste.empty + waste.unneeded,
    }


def model_figures(report: Report, catalog: Catalog, limit: Duration) -> list[Figures]:
    """Return the figures of each model, by name."""
    hours = report.window / SECOND / 3600
    return [
        _model(spec, report.models.get(name), report.caused.get(name, 0.0), hours, limit)
        for name, spec in sorted(catalog.models.items())
    ]


def worst(verdicts: Mapping[Verdict, float]) -> Verdict:
    """Return the worst verdict that was ever taken; of who was never judged: ok."""
    return next((verdict for verdict in _WORST if verdicts.get(verdict)), Verdict.OK)


def _model(spec: ModelSpec, report: ModelReport | None, caused: float, hours: float, limit: Duration) -> Figures:
    known: Figures = {"model": str(spec.name), "gpus": spec.footprint.gpus, "load_s": spec.load_estimate / SECOND}
    if report is None:
        report = _UNASKED
    return {
        **known,
        "pinned": spec.pinned,
        "requests_per_h": report.requests / hours,
        **_waits(report, limit),
        "loads_per_h": report.loads / hours,
        "evictions_per_h": report.evictions / hours,
        "loading_share": report.load_fraction,
        "thrash_loads": report.relapses,
        "verdict": worst(report.verdicts).value,
        "thrashing_share": report.verdicts.get(Verdict.THRASHING, 0.0),
        "caused_gpu_s": caused,
    }


def _waits(report: ModelReport, limit: Duration) -> Figures:
    return {
        "requests": report.requests,
        "served": report.served,
        "refused": sum(report.rejected.values()),
        "wait_mean_s": report.mean_wait_s,
        "wait_p50_s": report.wait_s(0.5),
        "wait_p95_s": report.wait_s(0.95),
        "wait_p99_s": report.wait_s(0.99),
        "wait_max_s": report.max_wait_s,
        "wait_ready_max_s": report.max_ready_wait_s,
        "delayed_share": report.delayed / max(1, report.served),
        "over_limit_share": report.over(limit) / max(1, report.requests),
    }


def _together(runs: Sequence[Figures]) -> Figures:
    """Return the figures of several runs in one."""
    return {key: _one(key, [run[key] for run in runs]) for key in runs[0]}


def _one(key: str, values: Sequence[Any]) -> Any:
    first = values[0]
    if key == "verdict":
        return worst(dict.fromkeys(map(Verdict, values), 1.0)).value
    if isinstance(first, str | bool) or first is None or all(value == first for value in values):
        return round(first, 6) if isinstance(first, float) else first
    if key in _MAXIMA:
        return round(max(values), 6)
    return round(sum(values) / len(values), 6)


_UNASKED: Final = ModelReport(
    served=0,
    cold_starts=0,
    rejected={},
    mean_wait_s=0.0,
    p99_wait_s=0.0,
    max_wait_s=0.0,
    max_ready_wait_s=0.0,
    waits=(),
    loads=0,
    failed_loads=0,
    relapses=0,
    evictions=0,
    load_fraction=0.0,
    verdicts={},
)
