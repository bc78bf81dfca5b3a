"""Puts each command into one log line, with the ids an operator can search for."""

from typing import assert_never

import structlog

from swapd.core.commands import (
    Answer,
    Check,
    Command,
    CoolingDown,
    Cut,
    Evicted,
    EvictionBlocked,
    Grant,
    Kill,
    LoadFinished,
    Reject,
    StaleFact,
    Start,
    Stop,
    Transitioned,
    VerdictChanged,
)
from swapd.core.ids import SECOND, Duration, gpu_indices
from swapd.core.reasons import LoadResult, Verdict

_log: structlog.stdlib.BoundLogger = structlog.get_logger("swapd")


def narrate(command: Command) -> None:
    """Log a command."""
    log = _log
    match command:
        case Grant():
            write = log.info if command.cold_start else log.debug
            write(
                "granted",
                request=command.request,
                model=command.model,
                instance=command.instance,
                waited_s=_s(command.waited),
            )
        case Reject():
            log.info(
                "rejected",
                request=command.request,
                model=command.model,
                reason=command.reason.value,
                detail=command.detail,
            )
        case Cut():
            log.warning("cut", request=command.request)
        case Start():
            log.info(
                "starting", model=command.spec.name, instance=command.instance, gpus=list(gpu_indices(command.gpus))
            )
        case Check():
            log.info("checking", instance=command.instance)
        case Stop():
            log.info("stopping", instance=command.instance, cause=command.cause.value)
        case Kill():
            log.warning("killing", instance=command.instance)
        case Answer():
            log.info("answered_operator", request=command.request, ok=command.ok, detail=command.detail)
        case Transitioned():
            log.info(
                command.after.value,
                model=command.model,
                instance=command.instance,
                before=None if command.before is None else command.before.value,
                gpus=list(gpu_indices(command.gpus)),
                why=command.why,
            )
        case LoadFinished():
            _narrate_load(command)
        case Evicted():
            log.info(
                "evicted",
                model=command.model,
                instance=command.instance,
                cause=command.cause.value,
                successor=command.successor,
            )
        case EvictionBlocked():
            log.info("eviction_blocked", model=command.model, block=command.block.value, successor=command.successor)
        case VerdictChanged():
            write = log.warning if command.after is Verdict.THRASHING else log.info
            write(
                "verdict",
                model=command.model,
                before=command.before.value,
                after=command.after.value,
                partner=command.partner,
                load_ratio=round(command.load_ratio, 3),
                load_fraction=round(command.load_fraction, 3),
            )
        case CoolingDown():
            log.warning("cooling_down", model=command.model, failures=command.failures)
        case StaleFact():
            log.debug("stale_fact", fact=command.event)
        case _:
            assert_never(command)


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
        victims=list(note.victims),
        failure=None if note.failure is None else note.failure.value,
        detail=note.detail or None,
    )


def _s(duration: Duration) -> float:
    return round(duration / SECOND, 3)
