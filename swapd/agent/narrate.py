"""Puts each command into one log line, with the ids an operator can search for."""

from typing import assert_never

import structlog

from swapd.admin.timeline import stages_document
from swapd.core.commands import (
    Answer,
    CancelFetch,
    Check,
    Command,
    CoolingDown,
    Cut,
    DriverChanged,
    Evicted,
    EvictionBlocked,
    FetchEnded,
    FetchWeights,
    FootprintMeasured,
    GpuChanged,
    Grant,
    KeepWeights,
    Kill,
    LoadFinished,
    NodeLoadChanged,
    Placed,
    PromotionAdvised,
    ReadMemory,
    RefetchWeights,
    Reject,
    ReleaseConfirmed,
    StaleFact,
    Start,
    Stop,
    StopWarming,
    ThrashPinChanged,
    Transitioned,
    VerdictChanged,
    VerifyWeights,
    WarmWeights,
)
from swapd.core.ids import SECOND, Duration, gpu_indices
from swapd.core.reasons import FetchFailure, LoadResult, Move, Verdict
from swapd.core.topology import DriverState, GpuHealth

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("swapd")


def narrate(command: Command) -> None:
    """Log a command."""
    match command:
        case Grant() | Reject() | Cut() | Answer():
            _narrate_request(command)
        case Start() | Check() | Stop() | Kill():
            _narrate_order(command)
        case Transitioned():
            _log.info(
                command.after.value,
                model=command.model,
                instance=command.instance,
                before=None if command.before is None else command.before.value,
                gpus=list(gpu_indices(command.gpus)),
                why=command.why,
            )
        case LoadFinished():
            _narrate_load(command)
        case Evicted() | EvictionBlocked():
            _narrate_eviction(command)
        case VerdictChanged() | NodeLoadChanged() | ThrashPinChanged() | PromotionAdvised():
            _narrate_viability(command)
        case CoolingDown():
            _log.warning("cooling_down", model=command.model, failures=command.failures)
        case ReadMemory():
            _log.debug("reading_memory")
        case (
            KeepWeights()
            | FetchWeights()
            | RefetchWeights()
            | CancelFetch()
            | WarmWeights()
            | StopWarming()
            | VerifyWeights()
            | FetchEnded()
        ):
            _narrate_weights(command)
        case Placed() | FootprintMeasured() | GpuChanged() | DriverChanged() | ReleaseConfirmed():
            _narrate_gpus(command)
        case StaleFact():
            _log.debug("stale_fact", fact=command.event)
        case _:
            assert_never(command)


def _narrate_request(command: Grant | Reject | Cut | Answer) -> None:
    match command:
        case Grant():
            write = _log.info if command.cold_start else _log.debug
            write(
                "granted",
                request=command.request,
                model=command.model,
                instance=command.instance,
                waited_s=_s(command.waited),
            )
        case Reject():
            _log.info(
                "rejected",
                request=command.request,
                model=command.model,
                reason=command.reason.value,
                detail=command.detail,
            )
        case Cut():
            _log.warning("cut", request=command.request, model=command.model, instance=command.instance)
        case Answer():
            _log.info("answered_operator", request=command.request, ok=command.ok, detail=command.detail)
        case _:
            assert_never(command)


def _narrate_order(command: Start | Check | Stop | Kill) -> None:
    match command:
        case Start():
            _log.info(
                "starting", model=command.spec.name, instance=command.instance, gpus=list(gpu_indices(command.gpus))
            )
        case Check():
            _log.info("checking", model=command.model, instance=command.instance)
        case Stop():
            _log.info("stopping", model=command.model, instance=command.instance, cause=command.cause.value)
        case Kill():
            _log.warning("killing", model=command.model, instance=command.instance)
        case _:
            assert_never(command)


def _narrate_eviction(note: Evicted | EvictionBlocked) -> None:
    if isinstance(note, Evicted):
        _log.info("evicted", model=note.model, instance=note.instance, cause=note.cause.value, successor=note.successor)
    else:
        _log.info("eviction_blocked", model=note.model, block=note.block.value, successor=note.successor)


def _narrate_gpus(note: Placed | FootprintMeasured | GpuChanged | DriverChanged | ReleaseConfirmed) -> None:
    match note:
        case Placed():
            gpus = list(gpu_indices(note.gpus))
            _log.info("placed", model=note.model, instance=note.instance, gpus=gpus, quality=note.quality.value)
        case FootprintMeasured():
            write = _log.warning if note.differs else _log.info
            write(
                "footprint_measured",
                model=note.model,
                instance=note.instance,
                declared_bytes=note.declared,
                measured_bytes=note.measured,
            )
        case GpuChanged():
            write = _log.info if note.after is GpuHealth.HEALTHY else _log.warning
            write(
                "gpu", gpu=note.gpu, uuid=note.uuid, before=note.before.value, after=note.after.value, detail=note.why
            )
        case DriverChanged():
            write = _log.info if note.after is DriverState.UP else _log.warning
            write("driver", before=note.before.value, after=note.after.value, detail=note.detail or None)
        case ReleaseConfirmed():
            _log.info(
                "memory_released",
                model=note.model,
                instance=note.instance,
                after_s=_s(note.after),
                by=note.by.value,
            )
        case _:
            assert_never(note)


def _narrate_weights(
    command: KeepWeights
    | FetchWeights
    | RefetchWeights
    | CancelFetch
    | WarmWeights
    | StopWarming
    | VerifyWeights
    | FetchEnded,
) -> None:
    match command:
        case KeepWeights():
            _log.debug("keeping_weights")
        case FetchWeights():
            _log.info("fetching", model=command.model, ahead=command.ahead)
        case RefetchWeights():
            _log.warning("fetching_again", model=command.model)
        case CancelFetch():
            _log.info("cancelling_fetch", model=command.model)
        case WarmWeights():
            _log.info("reading_ahead", model=command.model)
        case StopWarming():
            _log.debug("reading_ahead_no_more", model=command.model)
        case VerifyWeights():
            _log.info("verifying", model=command.model)
        case FetchEnded():
            write = _log.info if command.failure in (None, FetchFailure.CANCELLED) else _log.warning
            write(
                "fetch_ended",
                model=command.model,
                fetched_bytes=command.fetched,
                took_s=_s(command.took),
                failure=None if command.failure is None else command.failure.value,
                detail=command.detail or None,
            )
        case _:
            assert_never(command)


def _narrate_viability(note: VerdictChanged | NodeLoadChanged | ThrashPinChanged | PromotionAdvised) -> None:
    match note:
        case VerdictChanged():
            write = _log.warning if note.after is Verdict.THRASHING else _log.info
            write(
                "verdict",
                model=note.model,
                before=note.before.value,
                after=note.after.value,
                partner=note.partner,
                load_ratio=round(note.load_ratio, 3),
                load_fraction=round(note.load_fraction, 3),
            )
        case NodeLoadChanged():
            write = _log.info if note.after is Verdict.OK else _log.warning
            write(
                "node_load",
                before=note.before.value,
                after=note.after.value,
                load_fraction=round(note.load_fraction, 3),
                detail=note.detail,
            )
        case ThrashPinChanged():
            _log.warning("thrash_pin", model=note.model, action=note.action.value, detail=note.detail)
        case PromotionAdvised():
            write = _log.info if note.after is Move.STAY else _log.warning
            write(
                "promotion",
                model=note.model,
                before=note.before.value,
                after=note.after.value,
                saves_gpu_seconds=round(note.saves_gpu_seconds),
                detail=note.detail,
            )
        case _:
            assert_never(note)


def _narrate_load(note: LoadFinished) -> None:
    write = _log.warning if note.result is LoadResult.FAILED else _log.info
    write(
        "load_finished",
        model=note.model,
        instance=note.instance,
        result=note.result.value,
        source=note.source.value,
        load_s=_s(note.load_time),
        swap_s=_s(note.duration),
        stages={stage.value: _s(duration) for stage, duration in note.stages.items()},
        timeline=stages_document(note.timeline),
        victims=list(note.victims),
        relapse=note.relapse,
        failure=None if note.failure is None else note.failure.value,
        detail=note.detail or None,
    )


def _s(duration: Duration) -> float:
    return round(duration / SECOND, 3)
