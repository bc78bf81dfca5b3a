"""Writes the status document: the whole node as one JSON object; pure.

Rules for readers: keys are stable, new ones may appear. Times are ages in seconds at the moment of the document
(``age_s``, ``…_s``), sizes are bytes, GPU sets are lists of indices, states and reasons are the words of the metrics.
``null`` says "there is none" or "not known".
"""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field

from swapd.admin.cache import fetch_document
from swapd.admin.devices import Json, devices_part
from swapd.core.ids import SECOND, Duration, InstanceId, Instant, ModelName, gpu_indices
from swapd.core.reasons import WaitingFor
from swapd.core.view import InstanceView, ModelView, NodeView, ReservationView


@dataclass(frozen=True, slots=True)
class ConfigInfo:
    """The configuration file and what became of it."""

    path: str
    #: the file as it is now is in force
    ok: bool
    #: why the file as it is now was refused
    error: str = ""
    #: time since the configuration in force was applied
    age: Duration = Duration(0)
    #: settings of the file that differ from the running ones and wait for a restart
    restart_needed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """The process of one instance."""

    pid: int
    port: int
    #: file with its output
    log: str


@dataclass(frozen=True, slots=True)
class Extras:
    """What the core does not know and the document says."""

    version: str
    uptime: Duration
    config: ConfigInfo
    #: name -> address: ``http``, ``metrics``, ``admin``
    listeners: Mapping[str, str]
    #: why the node takes no requests, one sentence each; ``()`` is ready
    not_ready: tuple[str, ...] = ()
    aliases: Mapping[ModelName, tuple[str, ...]] = field(default_factory=dict)
    processes: Mapping[InstanceId, ProcessInfo] = field(default_factory=dict)
    #: file with the output of a model's engines, also of those that failed; ``None``: it never was started
    log: Callable[[ModelName], str | None] = lambda _: None


def status_document(view: NodeView, extras: Extras) -> Generator[None, None, Json]:
    """Make the document, of plain JSON types, in small steps; return it after the last one."""
    models: list[Json] = []
    for model in view.models:
        models.append(_model(model, view.at, extras))
        yield
    return {
        "version": extras.version,
        "uptime_s": _seconds(extras.uptime),
        "ready": not extras.not_ready,
        "not_ready": list(extras.not_ready),
        "mode": view.mode.value,
        "draining": view.draining,
        "drained": view.drained,
        "config": {
            "path": extras.config.path,
            "ok": extras.config.ok,
            "error": extras.config.error or None,
            "age_s": _seconds(extras.config.age),
            "restart_needed": list(extras.config.restart_needed),
        },
        "listeners": dict(extras.listeners),
        "loads_running": view.loads_running,
        "load_fraction": view.load_fraction,
        "stale_facts": view.stale_facts,
        **devices_part(view),
        "models": models,
        "instances": [_instance(instance, view.at, extras) for instance in view.instances],
        "reservation": None if view.reservation is None else _reservation(view.reservation, view.at),
        "why": _story(view.story, view.at),
    }


def _model(model: ModelView, at: Instant, extras: Extras) -> Json:
    return {
        "name": model.model,
        "aliases": list(extras.aliases.get(model.model, ())),
        "configured": model.configured,
        "state": _state(model),
        "instance": None if model.instance is None else model.instance.instance,
        "gpus": [] if model.instance is None else list(gpu_indices(model.instance.gpus)),
        "pinned": model.pinned,
        "pinned_by": None if model.pinned_by is None else model.pinned_by.value,
        "priority": model.priority.name.lower(),
        "in_flight": model.in_flight,
        "queued": {waiting.value: model.queued.get(waiting, 0) for waiting in WaitingFor},
        "oldest_waiter_s": _age(model.oldest_waiter, at),
        "last_used_s": None if model.instance is None else _age(model.instance.last_used, at),
        "declared_bytes": model.declared_bytes,
        "measured_bytes": model.measured_bytes,
        "load_estimate_s": _seconds(model.load_estimate),
        "load_times_s": {source.value: _seconds(time) for source, time in model.load_times.items()},
        "max_wait_s": _seconds(model.max_wait),
        "cached_bytes": model.cached_bytes,
        "fetch": None if model.fetch is None else fetch_document(model.fetch, at),
        "verdict": model.verdict.value,
        "load_ratio": model.load_ratio,
        "load_fraction": model.load_fraction,
        "partner": model.partner,
        "inter_arrival_s": None if model.inter_arrival is None else _seconds(model.inter_arrival),
        "frequency": model.frequency,
        "caused_gpu_seconds": model.caused_gpu_seconds,
        "tier": None if model.week is None else model.week.tier.value,
        "consecutive_failures": model.consecutive_failures,
        "log": extras.log(model.model),
        "cooling_down_s": _until(model.cooling_until, at),
        "last_error": model.last_error or None,
        "why": _story(model.story, at),
    }


def _instance(instance: InstanceView, at: Instant, extras: Extras) -> Json:
    process = extras.processes.get(instance.instance)
    return {
        "instance": instance.instance,
        "model": instance.model,
        "state": instance.state.value,
        "stage": None if instance.stage is None else instance.stage.value,
        "age_s": _age(instance.since, at),
        "gpus": list(gpu_indices(instance.gpus)),
        "bytes_per_gpu": instance.bytes_per_gpu,
        "in_flight": instance.in_flight,
        "last_used_s": _age(instance.last_used, at),
        "outdated": instance.outdated,
        "pid": None if process is None else process.pid,
        "port": None if process is None else process.port,
        "log": None if process is None else process.log,
    }


def _reservation(reservation: ReservationView, at: Instant) -> Json:
    return {
        "model": reservation.model,
        "gpus": list(gpu_indices(reservation.gpus)),
        "age_s": _age(reservation.since, at),
        "draining": list(reservation.draining),
    }


def _story(story: tuple[tuple[Instant, str], ...], at: Instant) -> list[Json]:
    return [{"age_s": _age(when, at), "text": text} for when, text in story]


def _state(model: ModelView) -> str:
    if model.instance is not None:
        return model.instance.state.value
    if model.cooling_until is not None:
        return "failed"
    return "absent" if model.cached_bytes is None else "cached"


def _seconds(duration: Duration) -> float:
    return round(duration / SECOND, 3)


def _age(since: Instant | None, at: Instant) -> float | None:
    return None if since is None else _seconds(Duration(at - since))


def _until(moment: Instant | None, at: Instant) -> float | None:
    return None if moment is None else _seconds(Duration(max(0, moment - at)))
