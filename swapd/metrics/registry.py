"""Declares every metric of swapd as data: name, type, labels, help; nothing else may put a series on the page.

Rules: base units with the unit last in the name, counters end in ``_total``, ratios are 0–1. The label ``model`` takes
configured names only; whatever else a client sends is ``__unknown__``. Only the load duration is a histogram per model:
50 models on eight GPUs make some 3,600 series. The defaults of the client library (``process_*``, ``python_*``) come
on top.
"""

from typing import Final

from swapd.metrics.metric import counter, gauge, histogram, summary

UNKNOWN_MODEL: Final = "__unknown__"
"""Stands in the label ``model`` for every name that is not configured."""

LOAD_BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600)
"""Seconds; a load takes from a fraction of a second (tiny, cached) to ten minutes (hundreds of GB from a disk)."""

TTFB_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 600)
"""Seconds; from a resident model's first byte to a request that waited for a load."""

_DAEMON: Final = (
    gauge("swapd_build_info", ("version", "revision"), "Always 1; the labels say which swapd this is."),
    gauge("swapd_ready", (), "1 when /readyz answers 200."),
    gauge("swapd_draining", (), "1 while the node leaves service."),
    gauge(
        "swapd_config_last_reload_successful",
        (),
        "1 when the configuration file as it is now is in force, 0 when it was refused.",
    ),
    gauge(
        "swapd_config_last_reload_success_timestamp_seconds",
        (),
        "Unix time at which the configuration in force was applied.",
    ),
    gauge("swapd_event_loop_lag_seconds", (), "Longest delay of the event loop in the last 15 seconds."),
    counter(
        "swapd_stale_facts_total",
        (),
        "Late facts about instances or requests that no longer exist, ignored by the scheduler.",
    ),
)

_MODELS: Final = (
    gauge(
        "swapd_model_state",
        ("model", "state"),
        "1 for the state the model is in, 0 for the others. Without an instance: failed during a cool-down, cached "
        "if its weights are in the cache, else absent.",
    ),
    gauge("swapd_models", ("state",), "Number of configured models in each state."),
    gauge("swapd_model_pinned", ("model",), "1 when the model is pinned: never evicted."),
    gauge("swapd_inflight_requests", ("model",), "Requests at the model's engine now."),
    gauge(
        "swapd_queue_requests",
        ("model", "waiting_for"),
        "Requests that wait: for room, for victims to leave, for weights, for a load, or for a slot at a busy engine.",
    ),
    gauge("swapd_queue_oldest_age_seconds", ("model",), "Age of the oldest request that waits; 0 when none does."),
    gauge(
        "swapd_model_interarrival_seconds",
        ("model",),
        "Mean time between the model's requests; absent before the second one.",
    ),
    gauge(
        "swapd_model_load_ratio",
        ("model",),
        "Load time multiplied by the rate of episodes (a burst is one): the demand if each were cold; may exceed 1.",
    ),
    gauge(
        "swapd_model_load_fraction",
        ("model",),
        "Measured share of time spent loading the model, the whole swap counted.",
    ),
    gauge(
        "swapd_model_thrashing", ("model",), "1 when the scheduler's verdict is that swapping this model does not pay."
    ),
    gauge(
        "swapd_node_load_fraction",
        (),
        "Share of the node's GPU time spent loading; warn at 0.15, 0.3 is a thrashing pool.",
    ),
)

_VIABILITY: Final = (
    gauge(
        "swapd_promotion_recommended",
        ("model", "tier"),
        "1 when the model had better move: warm, pinned on this node; hot, to GPUs of its own. swapd report says why.",
    ),
    gauge(
        "swapd_model_tier",
        ("model", "tier"),
        "Always 1; the label says which tier a week of hourly counts makes of the model. Absent before that is known.",
    ),
    gauge(
        "swapd_model_week_requests_per_hour",
        ("model",),
        "Mean requests per hour over the hours of the last week in which the model was observed; absent before.",
    ),
    counter(
        "swapd_model_loading_gpu_seconds_total",
        ("model", "kind"),
        "GPU-seconds of loading that the model has caused: own, its loads; charged, reloads of models it had evicted.",
    ),
    gauge(
        "swapd_model_thrash_pinned",
        ("model",),
        "1 while the node has pinned the model because it thrashed; absent otherwise.",
    ),
    counter(
        "swapd_thrash_pins_total",
        ("model", "action"),
        "What on_thrash: pin has done about a thrashing model: pinned, refused, lifted.",
    ),
    gauge(
        "swapd_node_thrashing",
        (),
        "1 when the verdict on the node's load fraction is thrashing: no setting helps then.",
    ),
)

_REQUESTS: Final = (
    counter(
        "swapd_requests_total",
        ("model", "code", "start"),
        "Requests that have ended, by status sent (499: the client left before one) and start (cold_start: waited for "
        "a load; resident: any other).",
    ),
    histogram("swapd_request_duration_seconds", ("start",), TTFB_BUCKETS, "From the request's arrival to its end."),
    histogram(
        "swapd_time_to_first_byte_seconds",
        ("start",),
        TTFB_BUCKETS,
        "From the request's arrival to the first byte of the engine's answer.",
    ),
    summary(
        "swapd_model_time_to_first_byte_seconds",
        ("model",),
        "From arrival to the first byte of the engine's answer, per model.",
    ),
    histogram(
        "swapd_queue_wait_seconds",
        ("start",),
        LOAD_BUCKETS,
        "From arrival to being sent to an engine, refused, or left by the client.",
    ),
    summary(
        "swapd_model_queue_wait_seconds",
        ("model",),
        "From arrival to being sent to an engine, refused, or left by the client, per model.",
    ),
    counter(
        "swapd_cold_start_promise_total",
        ("model", "kept"),
        "Requests that had to wait for a load, by whether their first byte came within the model's max_wait; a refusal "
        "after waiting is not kept. Not counted: refused at once, left by the client in time, waited for a slot only.",
    ),
    counter("swapd_rejections_total", ("model", "reason"), "Requests refused, by reason."),
    counter(
        "swapd_streams_broken_total",
        ("model",),
        "Answers that the engine broke off, or request_timeout ended, after their first byte; the client saw an "
        "unclean end.",
    ),
    counter("swapd_requests_cut_total", ("model",), "Answers cut because a drain's deadline had passed."),
    counter(
        "swapd_model_prompt_tokens_total",
        ("model",),
        "Prompt tokens, as the engine's usage fields state them; answers without are not counted.",
    ),
    counter(
        "swapd_model_completion_tokens_total",
        ("model",),
        "Completion tokens, as the engine's usage fields state them; answers without are not counted.",
    ),
)

_LOADS: Final = (
    counter(
        "swapd_model_loads_total",
        ("model", "result", "source"),
        "Loads that have ended, ready, failed or aborted, by where their weights came from: remote, cache, page_cache, "
        "wake.",
    ),
    histogram(
        "swapd_model_load_duration_seconds",
        ("model",),
        LOAD_BUCKETS,
        "The whole swap of a load that became ready: drain, stop and release of victims, load, warm-up.",
    ),
    histogram(
        "swapd_load_stage_duration_seconds",
        ("stage",),
        LOAD_BUCKETS,
        "The parts of the loads that became ready, by stage: queued, drain, stop, release, fetch, page_cache, spawn, "
        "load, warmup; fetch and page_cache in full, although they run beside others. first_byte: of each request that "
        "waited for a load, from being sent to the engine to its first byte.",
    ),
    gauge(
        "swapd_model_load_time_seconds",
        ("model", "source"),
        "Median of the last five load times by where the weights came from; remote includes the fetch.",
    ),
    gauge("swapd_model_max_wait_seconds", ("model",), "The published cold-start promise: the model's max_wait."),
    counter("swapd_swaps_total", (), "Loads that became ready in the place of at least one evicted model."),
    counter(
        "swapd_model_relapses_total",
        ("model",),
        "Loads that became ready soon after the model's own eviction (within five load times, at least 5 s): thrash.",
    ),
    counter("swapd_evictions_total", ("model", "reason"), "Resident models taken off the GPUs, by reason."),
    counter(
        "swapd_eviction_blocked_total",
        ("reason",),
        "Times a model could not be placed because a resident one was protected, pinned or in flight.",
    ),
    counter(
        "swapd_model_server_restarts_total",
        ("model", "reason"),
        "Model servers lost while resident: the process exited, or stopped answering and was ended.",
    ),
)

_GPUS: Final = (
    gauge("swapd_gpus", ("health",), "GPUs in each state of health; absent while the driver cannot be asked."),
    gauge(
        "swapd_gpus_present",
        (),
        "GPUs that can be read, partitioned and failed ones included; absent while the driver cannot be asked.",
    ),
    gauge(
        "swapd_gpus_expected",
        (),
        "GPUs the node should have: the configured number, or the most ever seen; absent without an expectation.",
    ),
    gauge(
        "swapd_gpu_health",
        ("gpu", "UUID", "health"),
        "1 for the health the GPU is in, 0 for the others; absent while the driver cannot be asked.",
    ),
    gauge("swapd_gpu_capacity_bytes", ("gpu", "UUID"), "Usable memory of the GPU; absent if it was never readable."),
    gauge("swapd_gpu_reserved_bytes", ("gpu", "UUID"), "Memory promised to instances on the GPU."),
    gauge(
        "swapd_gpu_quarantined_bytes",
        ("gpu", "UUID"),
        "Memory of ended instances whose release was not confirmed; not given out.",
    ),
    gauge(
        "swapd_gpu_free_bytes",
        ("gpu", "UUID"),
        "Free memory by the driver's last word; absent when it has none, or cannot be asked now.",
    ),
    gauge("swapd_gpu_used_bytes", ("gpu", "UUID"), "Capacity less free memory; absent as the free memory is."),
    gauge(
        "swapd_gpu_foreign_bytes",
        ("gpu", "UUID"),
        "Memory taken by others than swapd's instances, as far as can be told; absent as the free memory is.",
    ),
    gauge(
        "swapd_host_reserved_bytes",
        (),
        "Host memory booked by instances; absent where host memory is not accounted.",
    ),
    gauge("swapd_host_capacity_bytes", (), "Host memory that models may take; absent where it is not accounted."),
    gauge(
        "swapd_nvlink_largest_free_block_gpus",
        (),
        "Most GPUs through which an NVLink ring passes, all free; 1: only single GPUs, 0: none. Absent while the "
        "driver cannot be asked.",
    ),
    gauge(
        "swapd_nvlink_domains",
        ("integrity",),
        "NVLink domains (GPUs joined by links) that are whole: all free or all taken, and fragmented: partly taken. "
        "Absent while the driver cannot be asked.",
    ),
    gauge(
        "swapd_nvlink_whole_domain_ratio",
        (),
        "Whole NVLink domains among all; absent without NVLink, and while the driver cannot be asked.",
    ),
    counter(
        "swapd_placements_total",
        ("quality",),
        "GPUs chosen for a load, by the class of the set: single, top (of its size on this node), linked, local, "
        "spread.",
    ),
    histogram(
        "swapd_gpu_release_wait_seconds",
        ("evidence",),
        LOAD_BUCKETS,
        "From the end of an instance's processes until its memory was known to be free, by what told so: free, "
        "processes, accounts.",
    ),
    gauge("swapd_model_declared_bytes", ("model",), "Memory of the model on each of its GPUs, as configured."),
    gauge(
        "swapd_model_measured_bytes",
        ("model",),
        "Memory of the model on each of its GPUs, as measured when it was last ready; absent before.",
    ),
)

_NVML: Final = (
    gauge("swapd_nvml_up", (), "1 while the driver can be asked; absent with virtual devices."),
    gauge(
        "swapd_nvml_state",
        ("state",),
        "1 for the state the driver is in, 0 for the others; absent with virtual devices.",
    ),
    gauge(
        "swapd_nvml_stalled_seconds", (), "How long the driver has owed an answer beyond its deadline; 0: it does not."
    ),
    gauge(
        "swapd_nvml_last_read_age_seconds",
        (),
        "Time since the driver last told how much memory is free; absent before it ever did.",
    ),
    counter("swapd_nvml_errors_total", ("function", "code"), "Calls into the driver's library that failed."),
)

_CACHE: Final = (
    gauge(
        "swapd_cache_bytes",
        (),
        "What lies in the weight cache's folder or is promised to a fetch; absent without a cache, like the next.",
    ),
    gauge("swapd_cache_capacity_bytes", (), "The most that the cache may take now, by max_size and keep_free."),
    gauge("swapd_cache_foreign_bytes", (), "Files in the cache's folder that are not its own; never removed."),
    gauge("swapd_cache_copies", (), "Complete copies of weights in the cache."),
    gauge("swapd_cache_fetches", ("state",), "Fetches of weights: running, queued."),
    counter("swapd_cache_fetched_bytes_total", (), "Bytes that have come from sources of weights."),
    counter("swapd_cache_evicted_copies_total", (), "Copies that have left the cache to make room for others."),
    counter("swapd_cache_evicted_bytes_total", (), "What these copies gave back to the disk."),
    counter(
        "swapd_model_fetches_total",
        ("model", "result"),
        "Fetches that have ended: fetched, or why not: cancelled, refused, unreachable, corrupt, too_large, disk.",
    ),
    gauge("swapd_model_cached_bytes", ("model",), "Size of the model's copy in the cache; absent when there is none."),
    gauge(
        "swapd_model_fetch_waiting",
        ("model",),
        "1 while the fetch of the model waits for room on the disk; absent otherwise.",
    ),
)

METRICS: Final = (*_DAEMON, *_REQUESTS, *_MODELS, *_LOADS, *_VIABILITY, *_GPUS, *_NVML, *_CACHE)
"""Every metric, in the order of the page."""

BY_NAME: Final = {metric.name: metric for metric in METRICS}
