"""Writes the reference page of the metrics from their declarations."""

from swapd.metrics.metric import Kind, Metric
from swapd.metrics.node import MODEL_STATES
from swapd.metrics.registry import METRICS, UNKNOWN_MODEL

_HEAD = f"""# Metrics

Generated from `swapd/metrics/registry.py` by `make docs`; do not edit.

`GET /metrics` on the metrics port (`metrics.listen`, 127.0.0.1:9790) answers in the Prometheus text format, or in
OpenMetrics where the scraper asks for it. The usual `process_*` and `python_*` series of the Python client come on top.
`GET /metrics/models/<model>` passes on the page of a model's own engine while it is resident; it starts nothing.
`/livez` answers 200 while the event loop turns; `/readyz` answers 200 when the node takes requests, else 503 with the
reasons.

The label `model` takes configured names (aliases count under the name they stand for). Every other name that clients
send is counted as `{UNKNOWN_MODEL}`. When a model leaves the configuration, its series are removed. The label `state`
is one of {", ".join(f"`{state}`" for state in MODEL_STATES)}.

A series of a counter or histogram appears with its first event.

The labels `gpu` and `UUID` are named as in dcgm-exporter. Join on `UUID`, because the number of a GPU may differ
between programs: `swapd_gpu_reserved_bytes - on (UUID) DCGM_FI_DEV_FB_USED * 1048576`. What the driver told is on the
page only while it can be asked: a series that is absent says *not known*, where 0 would be taken for a fact.
"""


def render() -> str:
    """Return the text of ``docs/metrics.md``."""
    rows = "\n".join(_row(metric) for metric in METRICS)
    buckets = "\n".join(
        f"- `{metric.name}`: {' '.join(f'{bound:g}' for bound in metric.buckets)}"
        for metric in METRICS
        if metric.kind is Kind.HISTOGRAM
    )
    return (
        f"{_HEAD}\n| metric | type | labels | meaning |\n|---|---|---|---|\n{rows}\n\n"
        f"## Buckets\n\nUpper bounds in seconds, `+Inf` on top.\n\n{buckets}\n"
    )


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {metric.help} |"
