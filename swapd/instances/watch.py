"""Looks after an instance while it lives: its log's size, the progress of its load, its answers once it is ready."""

import asyncio

import structlog

from swapd.core.events import InstanceHealthy, InstanceUnhealthy, LoadProgressed
from swapd.core.ids import SECOND
from swapd.engines.base import EnginePlan
from swapd.instances.http import NotAskedError
from swapd.instances.probe import problem
from swapd.instances.progress import Progress
from swapd.instances.run import Phase, Run

_CHECK_PAUSE_S = 0.2

_log = structlog.get_logger(__name__)


async def look(run: Run, plan: EnginePlan) -> None:
    """Keep the log bounded, and report progress while the instance loads; never returns."""
    progress = Progress(plan.readiness.path)
    while True:
        await asyncio.sleep(run.room.settings.look_period / SECOND)
        fresh = run.output.fresh()
        try:
            advanced = run.phase is Phase.LOADING and progress.advanced(fresh, run.living())
        except OSError as error:  # out of descriptors: nothing is known of the load
            _log.warning("not_looked_at", model=run.model, instance=run.instance, error=str(error))
            continue
        if advanced:
            run.room.post(LoadProgressed(run.room.now(), run.instance))


async def watch(run: Run, plan: EnginePlan) -> None:
    """Probe a ready instance from time to time; returns when it was reported unresponsive."""
    settings = run.room.settings
    failures = 0
    while failures < settings.watch_failures:
        await asyncio.sleep(settings.watch_period / SECOND)
        try:
            wrong = await problem(plan.host, plan.port, plan.readiness)
        except NotAskedError as error:
            _log.warning("not_probed", model=run.model, instance=run.instance, error=str(error))
            continue
        failures = 0 if wrong is None else failures + 1
        if failures == settings.watch_failures:
            detail = f"{run.model} {wrong}, {failures} times in a row"
            run.room.post(InstanceUnhealthy(run.room.now(), run.instance, detail))


async def check(run: Run, plan: EnginePlan) -> None:
    """Find out now whether a ready instance answers; one bad answer may be an accident."""
    try:
        wrong = await problem(plan.host, plan.port, plan.readiness)
        if wrong is not None:
            await asyncio.sleep(_CHECK_PAUSE_S)
            wrong = await problem(plan.host, plan.port, plan.readiness)
    except NotAskedError as error:
        _log.warning("not_probed", model=run.model, instance=run.instance, error=str(error))
        wrong = None  # nothing is known against it
    if run.phase is not Phase.READY:
        return  # its end was reported or ordered meanwhile, and is the answer
    if wrong is None:
        run.room.post(InstanceHealthy(run.room.now(), run.instance))
    else:
        run.room.post(InstanceUnhealthy(run.room.now(), run.instance, f"{run.model} {wrong}"))
