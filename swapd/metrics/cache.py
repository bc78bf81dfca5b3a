"""Turns a snapshot into the values of the metrics about the weight cache and what is known of cold starts; pure.

Without a cache its own series are absent. What belongs to a model is there with the model, absent where there is
nothing to tell.
"""

from collections.abc import Callable, Mapping

from swapd.core.ids import SECOND
from swapd.metrics.now import CacheNow, Now, Samples, one


def _cache(read: Callable[[CacheNow], float]) -> Callable[[Now], Samples]:
    return one(lambda now: None if now.cache is None else read(now.cache))


def _fetches(now: Now) -> Samples:
    if now.cache is None:
        return {}
    return {("running",): now.cache.fetches_running, ("queued",): now.cache.fetches_queued}


def _cached(now: Now) -> Samples:
    models = (model for model in now.view.models if model.configured)
    return {(model.model,): model.cached_bytes for model in models if model.cached_bytes is not None}


def _waiting(now: Now) -> Samples:
    models = (model for model in now.view.models if model.configured)
    return {(model.model,): 1.0 for model in models if model.fetch is not None and model.fetch.waits}


def _max_wait(now: Now) -> Samples:
    return {(model.model,): model.max_wait / SECOND for model in now.view.models if model.configured}


def _load_times(now: Now) -> Samples:
    return {
        (model.model, source.value): duration / SECOND
        for model in now.view.models
        if model.configured
        for source, duration in model.load_times.items()
    }


CACHE_METRICS: Mapping[str, Callable[[Now], Samples]] = {
    "swapd_cache_bytes": _cache(lambda cache: cache.used),
    "swapd_cache_capacity_bytes": _cache(lambda cache: cache.limit),
    "swapd_cache_foreign_bytes": _cache(lambda cache: cache.foreign),
    "swapd_cache_copies": _cache(lambda cache: cache.copies),
    "swapd_cache_fetches": _fetches,
    "swapd_cache_fetched_bytes_total": _cache(lambda cache: cache.fetched_bytes),
    "swapd_cache_evicted_copies_total": _cache(lambda cache: cache.evicted_copies),
    "swapd_cache_evicted_bytes_total": _cache(lambda cache: cache.evicted_bytes),
    "swapd_model_cached_bytes": _cached,
    "swapd_model_fetch_waiting": _waiting,
    "swapd_model_max_wait_seconds": _max_wait,
    "swapd_model_load_time_seconds": _load_times,
}
"""How each metric about the cache is read."""
