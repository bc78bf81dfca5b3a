"""Declares every metric of swapd as data: name, type, labels, help; nothing else may put a series on the page.

Rules: base units with the unit last in the name, counters end in ``_total``, ratios are 0–1. The label ``model`` takes
configured names only; whatever else a client sends is ``__unknown__``. Only the load duration is a histogram per model:
50 models make some 2,700 series. The defaults of the client library (``process_*``, ``python_*``) come
on top.
"""

import enum
from dataclasses import dataclass
from typing import Final

UNKNOWN_MODEL: Final = "__unknown__"
"""Stands in the label ``model`` for every name that is not configured."""

LOAD_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600)
"""Seconds; a load takes from a fraction of a second (tiny, cached) to ten minutes (hundreds of GB from a disk)."""

TTFB_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 600)
"""Seconds; from a resident model's first byte to a request that waited for a load."""


class Kind(enum.StrEnum):
    """The Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    #: without quantiles: ``_sum`` and ``_count``, for a mean
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as it stands on the page."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    #: one sentence; also the reference page's text
    help: str
    #: upper bounds in seconds, without +Inf; histograms only
    buckets: tuple[float, ...] = ()

    @property
    def unit(self) -> str:
        """The unit that the name ends with; empty for plain numbers."""
        stem = self.name.removesuffix("_total")
        return next((unit for unit in ("seconds", "bytes") if stem.endswith(f"_{unit}")), "")


def _counter(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name, Kind.COUNTER, labels, text)


def _gauge(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name, Kind.GAUGE, labels, text)


def _histogram(name: str, labels: tuple[str, ...], buckets: tuple[float, ...], text: str) -> Metric:
    return Metric(name, Kind.HISTOGRAM, labels, text, buckets)


def _summary(name: str, labels: tuple[str, ...], text: str) -> Metric:
    return Metric(name, Kind.SUMMARY, labels, text)


_DAEMON: Final = (
    _gauge("swapd_build_info", ("version", "revision"), "Always 1; the labels say which swapd this is."),
    _gauge("swapd_ready", (), "1 when /readyz answers 200."),
    _gauge("swapd_draining", (), "1 while the node leaves service."),
    _gauge(
        "swapd_config_last_reload_successful",
        (),
        "1 when the configuration file as it is now is in force, 0 when it was refused.",
    ),
    _gauge(
        "swapd_config_last_reload_success_timestamp_seconds",
        (),
        "Unix time at which the configuration in force was applied.",
    ),
    _gauge("swapd_event_loop_lag_seconds", (), "Longest delay of the event loop in the last 15 seconds."),
    _counter(
        "swapd_stale_facts_total",
        (),
        "Late facts about instances or requests that no longer exist, ignored by the scheduler.",
    ),
)

_MODELS: Final = (
    _gauge(
        "swapd_model_state",
        ("model", "state"),
        "1 for the state the model is in, 0 for the others; absent without an instance, failed during a cool-down.",
    ),
    _gauge("swapd_models", ("state",), "Number of configured models in each state."),
    _gauge("swapd_model_pinned", ("model",), "1 when the model is pinned: never evicted."),
    _gauge("swapd_inflight_requests", ("model",), "Requests at the model's engine now."),
    _gauge(
        "swapd_queue_requests",
        ("model", "waiting_for"),
        "Requests that wait: for room, for victims to leave, for weights, for a load, or for a slot at a busy engine.",
    ),
    _gauge("swapd_queue_oldest_age_seconds", ("model",), "Age of the oldest request that waits; 0 when none does."),
    _gauge(
        "swapd_model_interarrival_seconds",
        ("model",),
        "Mean time between the model's requests; absent before the second one.",
    ),
    _gauge(
        "swapd_model_load_ratio",
        ("model",),
        "Load time multiplied by the rate of episodes (a burst is one): the demand if each were cold; may exceed 1.",
    ),
    _gauge(
        "swapd_model_load_fraction",
        ("model",),
        "Measured share of time spent loading the model, the whole swap counted.",
    ),
    _gauge(
        "swapd_model_thrashing", ("model",), "1 when the scheduler's verdict is that swapping this model does not pay."
    ),
    _gauge(
        "swapd_node_load_fraction",
        (),
        "Share of the node's GPU time spent loading; warn at 0.15, 0.3 is a thrashing pool.",
    ),
)

_GPUS: Final = (
    _gauge("swapd_gpu_reserved_bytes", ("gpu", "UUID"), "Memory promised to instances on the GPU."),
    _gauge(
        "swapd_gpu_quarantined_bytes",
        ("gpu", "UUID"),
        "Memory of ended instances whose release was not confirmed; not given out.",
    ),
)

_REQUESTS: Final = (
    _counter(
        "swapd_requests_total",
        ("model", "code", "start"),
        "Requests that have ended, by status sent (499: the client left before one) and start (cold_start: waited for "
        "a load; resident: any other).",
    ),
    _histogram("swapd_request_duration_seconds", ("start",), TTFB_BUCKETS, "From the request's arrival to its end."),
    _histogram(
        "swapd_time_to_first_byte_seconds",
        ("start",),
        TTFB_BUCKETS,
        "From the request's arrival to the first byte of the engine's answer.",
    ),
    _summary(
        "swapd_model_time_to_first_byte_seconds",
        ("model",),
        "From arrival to the first byte of the engine's answer, per model.",
    ),
    _histogram(
        "swapd_queue_wait_seconds",
        ("start",),
        LOAD_BUCKETS,
        "From arrival to being sent to an engine, refused, or left by the client.",
    ),
    _summary(
        "swapd_model_queue_wait_seconds",
        ("model",),
        "From arrival to being sent to an engine, refused, or left by the client, per model.",
    ),
    _counter(
        "swapd_cold_start_promise_total",
        ("model", "kept"),
        "Requests that had to wait for a load, by whether their first byte came within the model's max_wait; a refusal "
        "after waiting is not kept. Not counted: refused at once, left by the client, waited for a slot only.",
    ),
    _counter("swapd_rejections_total", ("model", "reason"), "Requests refused, by reason."),
    _counter(
        "swapd_streams_broken_total",
        ("model",),
        "Answers that the engine broke off, or request_timeout ended, after their first byte; the client saw an "
        "unclean end.",
    ),
    _counter("swapd_requests_cut_total", ("model",), "Answers cut because a drain's deadline had passed."),
    _counter(
        "swapd_model_prompt_tokens_total",
        ("model",),
        "Prompt tokens, as the engine's usage fields state them; answers without are not counted.",
    ),
    _counter(
        "swapd_model_completion_tokens_total",
        ("model",),
        "Completion tokens, as the engine's usage fields state them; answers without are not counted.",
    ),
)

_LOADS: Final = (
    _counter("swapd_model_loads_total", ("model", "result"), "Loads that have ended: ready, failed or aborted."),
    _histogram(
        "swapd_model_load_duration_seconds",
        ("model",),
        LOAD_BUCKETS,
        "The whole swap of a load that became ready: drain, stop and release of victims, load, warm-up.",
    ),
    _histogram(
        "swapd_load_stage_duration_seconds",
        ("stage",),
        LOAD_BUCKETS,
        "The parts of the loads that became ready, by stage: drain, stop, release, spawn, load, warmup.",
    ),
    _counter("swapd_swaps_total", (), "Loads that became ready in the place of at least one evicted model."),
    _counter(
        "swapd_model_relapses_total",
        ("model",),
        "Loads that became ready soon after the model's own eviction (within five load times, at least 5 s): thrash.",
    ),
    _counter("swapd_evictions_total", ("model", "reason"), "Resident models taken off the GPUs, by reason."),
    _counter(
        "swapd_eviction_blocked_total",
        ("reason",),
        "Times a model could not be placed because a resident one was protected, pinned or in flight.",
    ),
    _counter(
        "swapd_model_server_restarts_total",
        ("model", "reason"),
        "Model servers lost while resident: the process exited, or stopped answering and was ended.",
    ),
)

METRICS: Final = (*_DAEMON, *_REQUESTS, *_MODELS, *_LOADS, *_GPUS)
"""Every metric, in the order of the page."""

BY_NAME: Final = {metric.name: metric for metric in METRICS}
