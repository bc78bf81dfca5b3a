"""Turns a snapshot of the node into the values of the metrics that describe it as it is now; pure.

Nothing is remembered here, so a series cannot outlive its model. Models that have left the configuration but still have
an instance show only in the in-flight requests, under ``__unknown__``.
"""

from collections.abc import Callable, Mapping

from swapd.core.ids import SECOND
from swapd.core.promotion import Pool, advice_on, may_move
from swapd.core.reasons import PinnedBy, State, Verdict, WaitingFor
from swapd.core.tiers import Tier
from swapd.core.view import ModelView
from swapd.metrics.cache import CACHE_METRICS
from swapd.metrics.gpus import GPU_METRICS
from swapd.metrics.now import Now, Samples, one
from swapd.metrics.registry import UNKNOWN_MODEL
from swapd.metrics.slots import Labels

MODEL_STATES = (
    "absent",
    "cached",
    *(state.value for state in State if state is not State.GONE),
    "failed",
)
"""The values of the label ``state``."""


def model_state(model: ModelView) -> str:
    """Return the model's state in one word of ``MODEL_STATES``."""
    if model.instance is not None:
        return model.instance.state.value
    if model.cooling_until is not None:
        return "failed"
    return "absent" if model.cached_bytes is None else "cached"


def _per_model(read: Callable[[ModelView], float | None]) -> Callable[[Now], Samples]:
    """Read one value from each configured model; ``None`` leaves the model out."""

    def samples(now: Now) -> Samples:
        values = ((model.model, read(model)) for model in now.view.models if model.configured)
        return {(name,): value for name, value in values if value is not None}

    return samples


def _states(now: Now) -> Samples:
    return {
        (model.model, state): float(state == current)
        for model in now.view.models
        if model.configured
        for current in (model_state(model),)
        for state in MODEL_STATES
    }


def _models(now: Now) -> Samples:
    states = [model_state(model) for model in now.view.models if model.configured]
    return {(state,): states.count(state) for state in MODEL_STATES}


def _in_flight(now: Now) -> Samples:
    values: dict[Labels, float] = {}
    for model in now.view.models:
        if model.configured:
            values[(model.model,)] = model.in_flight
        elif model.in_flight:
            values[(UNKNOWN_MODEL,)] = values.get((UNKNOWN_MODEL,), 0) + model.in_flight
    return values


def _queues(now: Now) -> Samples:
    return {
        (model.model, waiting.value): model.queued.get(waiting, 0)
        for model in now.view.models
        if model.configured
        for waiting in WaitingFor
    }


def _oldest(now: Now) -> Samples:
    return {
        (model.model,): 0.0 if model.oldest_waiter is None else (now.view.at - model.oldest_waiter) / SECOND
        for model in now.view.models
        if model.configured
    }


def _promotions(now: Now) -> Samples:
    configured = [model for model in now.view.models if model.configured]
    movable = [
        model
        for model in configured
        if may_move(move=model.move, verdict=model.verdict, pinned_by=model.pinned_by, week=model.week)
    ]
    advice = advice_on(movable, Pool.of(now.view)) if movable else ()
    tiers = {one.model.model: one.tier for one in advice}
    return {
        (model.model, tier.value): float(tiers.get(model.model) is tier)
        for model in configured
        for tier in (Tier.HOT, Tier.WARM)
    }


def _tiers(now: Now) -> Samples:
    return {
        (model.model, model.week.tier.value): 1.0
        for model in now.view.models
        if model.configured and model.week is not None
    }


def _loading(now: Now) -> Samples:
    values: dict[Labels, float] = {}
    for model in now.view.models:
        if model.configured:
            values[(model.model, "own")] = model.totals.own_gpu_seconds
            values[(model.model, "charged")] = model.totals.charged_gpu_seconds
    return values


NODE_METRICS: Mapping[str, Callable[[Now], Samples]] = {
    "swapd_build_info": lambda now: {(now.version, now.revision): 1.0},
    "swapd_ready": one(lambda now: float(now.ready)),
    "swapd_draining": one(lambda now: float(now.view.draining)),
    "swapd_config_last_reload_successful": one(lambda now: float(now.config_ok)),
    "swapd_config_last_reload_success_timestamp_seconds": one(lambda now: now.config_applied_s),
    "swapd_event_loop_lag_seconds": one(lambda now: now.loop_lag / SECOND),
    "swapd_stale_facts_total": one(lambda now: now.view.stale_facts),
    "swapd_model_state": _states,
    "swapd_models": _models,
    "swapd_model_pinned": _per_model(lambda model: float(model.pinned)),
    "swapd_inflight_requests": _in_flight,
    "swapd_queue_requests": _queues,
    "swapd_queue_oldest_age_seconds": _oldest,
    "swapd_model_interarrival_seconds": _per_model(
        lambda model: None if model.inter_arrival is None else model.inter_arrival / SECOND
    ),
    "swapd_model_load_ratio": _per_model(lambda model: model.load_ratio),
    "swapd_model_load_fraction": _per_model(lambda model: model.load_fraction),
    "swapd_model_thrashing": _per_model(lambda model: float(model.verdict is Verdict.THRASHING)),
    "swapd_node_load_fraction": one(lambda now: now.view.load_fraction),
    "swapd_node_thrashing": one(lambda now: float(now.view.load_verdict is Verdict.THRASHING)),
    "swapd_promotion_recommended": _promotions,
    "swapd_model_tier": _tiers,
    "swapd_model_week_requests_per_hour": _per_model(
        lambda model: None if model.week is None else model.week.requests_per_hour
    ),
    "swapd_model_loading_gpu_seconds_total": _loading,
    "swapd_model_thrash_pinned": _per_model(lambda model: 1.0 if model.pinned_by is PinnedBy.ON_THRASH else None),
    "swapd_model_declared_bytes": _per_model(lambda model: model.declared_bytes),
    "swapd_model_measured_bytes": _per_model(lambda model: model.measured_bytes),
    **GPU_METRICS,
    **CACHE_METRICS,
}
"""How each metric of the node's present state is read; the other declared metrics live in slots."""

OF_ALL_MODELS: frozenset[str] = frozenset({"swapd_promotion_recommended", "swapd_inflight_requests"})
"""Metrics with the label ``model`` that cannot be read of some models at a time."""
