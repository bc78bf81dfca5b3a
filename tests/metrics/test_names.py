"""Names, types, labels and buckets of metrics are a contract with dashboards and alerts: none changes by accident."""

import pytest

from swapd.metrics.metric import Kind
from swapd.metrics.registry import BY_NAME

COUNTER, GAUGE, HISTOGRAM, SUMMARY = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM, Kind.SUMMARY
LOAD = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600)
TTFB = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 600)

CONTRACT = {
    "swapd_build_info": (GAUGE, {"version", "revision"}),
    "swapd_ready": (GAUGE, set()),
    "swapd_draining": (GAUGE, set()),
    "swapd_config_last_reload_successful": (GAUGE, set()),
    "swapd_config_last_reload_success_timestamp_seconds": (GAUGE, set()),
    "swapd_event_loop_lag_seconds": (GAUGE, set()),
    "swapd_model_state": (GAUGE, {"model", "state"}),
    "swapd_models": (GAUGE, {"state"}),
    "swapd_model_pinned": (GAUGE, {"model"}),
    "swapd_requests_total": (COUNTER, {"model", "code", "start"}),
    "swapd_request_duration_seconds": (HISTOGRAM, {"start"}),
    "swapd_time_to_first_byte_seconds": (HISTOGRAM, {"start"}),
    "swapd_model_time_to_first_byte_seconds": (SUMMARY, {"model"}),
    "swapd_model_queue_wait_seconds": (SUMMARY, {"model"}),
    "swapd_inflight_requests": (GAUGE, {"model"}),
    "swapd_queue_oldest_age_seconds": (GAUGE, {"model"}),
    "swapd_queue_requests": (GAUGE, {"model", "waiting_for"}),
    "swapd_cold_start_promise_total": (COUNTER, {"model", "kept"}),
    "swapd_queue_wait_seconds": (HISTOGRAM, {"start"}),
    "swapd_rejections_total": (COUNTER, {"model", "reason"}),
    "swapd_model_loads_total": (COUNTER, {"model", "result", "source"}),
    "swapd_model_load_duration_seconds": (HISTOGRAM, {"model"}),
    "swapd_load_stage_duration_seconds": (HISTOGRAM, {"stage"}),
    "swapd_model_load_time_seconds": (GAUGE, {"model", "source"}),
    "swapd_model_max_wait_seconds": (GAUGE, {"model"}),
    "swapd_evictions_total": (COUNTER, {"model", "reason"}),
    "swapd_eviction_blocked_total": (COUNTER, {"reason"}),
    "swapd_model_interarrival_seconds": (GAUGE, {"model"}),
    "swapd_model_load_ratio": (GAUGE, {"model"}),
    "swapd_model_load_fraction": (GAUGE, {"model"}),
    "swapd_model_thrashing": (GAUGE, {"model"}),
    "swapd_node_load_fraction": (GAUGE, set()),
    "swapd_gpus": (GAUGE, {"health"}),
    "swapd_gpus_present": (GAUGE, set()),
    "swapd_gpus_expected": (GAUGE, set()),
    "swapd_gpu_health": (GAUGE, {"gpu", "UUID", "health"}),
    "swapd_gpu_capacity_bytes": (GAUGE, {"gpu", "UUID"}),
    "swapd_gpu_reserved_bytes": (GAUGE, {"gpu", "UUID"}),
    "swapd_gpu_quarantined_bytes": (GAUGE, {"gpu", "UUID"}),
    "swapd_gpu_free_bytes": (GAUGE, {"gpu", "UUID"}),
    "swapd_gpu_used_bytes": (GAUGE, {"gpu", "UUID"}),
    "swapd_gpu_foreign_bytes": (GAUGE, {"gpu", "UUID"}),
    "swapd_host_reserved_bytes": (GAUGE, set()),
    "swapd_host_capacity_bytes": (GAUGE, set()),
    "swapd_nvlink_largest_free_block_gpus": (GAUGE, set()),
    "swapd_nvlink_domains": (GAUGE, {"integrity"}),
    "swapd_nvlink_whole_domain_ratio": (GAUGE, set()),
    "swapd_placements_total": (COUNTER, {"quality"}),
    "swapd_gpu_release_wait_seconds": (HISTOGRAM, {"evidence"}),
    "swapd_model_declared_bytes": (GAUGE, {"model"}),
    "swapd_model_measured_bytes": (GAUGE, {"model"}),
    "swapd_nvml_up": (GAUGE, set()),
    "swapd_nvml_state": (GAUGE, {"state"}),
    "swapd_nvml_stalled_seconds": (GAUGE, set()),
    "swapd_nvml_last_read_age_seconds": (GAUGE, set()),
    "swapd_nvml_errors_total": (COUNTER, {"function", "code"}),
    "swapd_model_server_restarts_total": (COUNTER, {"model", "reason"}),
    "swapd_swaps_total": (COUNTER, set()),
    "swapd_model_relapses_total": (COUNTER, {"model"}),
    "swapd_cache_bytes": (GAUGE, set()),
    "swapd_cache_capacity_bytes": (GAUGE, set()),
    "swapd_cache_foreign_bytes": (GAUGE, set()),
    "swapd_cache_copies": (GAUGE, set()),
    "swapd_cache_fetches": (GAUGE, {"state"}),
    "swapd_cache_fetched_bytes_total": (COUNTER, set()),
    "swapd_cache_evicted_copies_total": (COUNTER, set()),
    "swapd_cache_evicted_bytes_total": (COUNTER, set()),
    "swapd_model_fetches_total": (COUNTER, {"model", "result"}),
    "swapd_model_cached_bytes": (GAUGE, {"model"}),
    "swapd_model_fetch_waiting": (GAUGE, {"model"}),
}


@pytest.mark.parametrize("name", CONTRACT)
def test_a_metric_keeps_its_type_and_labels(name: str) -> None:
    metric = BY_NAME[name]
    assert (metric.kind, set(metric.labels)) == CONTRACT[name]


@pytest.mark.parametrize(
    ("name", "buckets"),
    [
        ("swapd_request_duration_seconds", TTFB),
        ("swapd_time_to_first_byte_seconds", TTFB),
        ("swapd_queue_wait_seconds", LOAD),
        ("swapd_model_load_duration_seconds", LOAD),
        ("swapd_load_stage_duration_seconds", LOAD),
        ("swapd_gpu_release_wait_seconds", LOAD),
    ],
)
def test_a_histogram_keeps_its_buckets(name: str, buckets: tuple[float, ...]) -> None:
    assert BY_NAME[name].buckets == buckets


def test_only_the_duration_of_loads_has_a_histogram_per_model() -> None:
    per_model = {name for name, metric in BY_NAME.items() if metric.kind is HISTOGRAM and "model" in metric.labels}
    assert per_model == {"swapd_model_load_duration_seconds"}
