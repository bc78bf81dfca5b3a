"""Looks after an instance while it lives: its log's size, the progress of its load, its answers once it is ready."""

import asyncio

from swapd.core.events import InstanceHealthy, InstanceUnhealthy, LoadProgressed
from swapd.core.ids import SECOND
from swapd.engines.base import EnginePlan
from swapd.instances.probe import problem
from swapd.instances.progress import Progress
from swapd.instances.run import Phase, Run

_CHECK_PAUSE_S = 0.2


async def look(run: Run, plan: EnginePlan) -> None:
    """Keep the log bounded, and report progress while the instance loads; never returns."""
    progress = Progress(plan.readiness.path)
    while True:
        await asyncio.sleep(run.room.settings.look_period / SECOND)
        fresh = run.output.fresh()
        if run.phase is Phase.LOADING and progress.advanced(fresh, run.living()):
            run.room.post(LoadProgressed(run.room.now(), run.instance))


async def watch(run: Run, plan: EnginePlan) -> None:
    """Probe a ready instance from time to time; returns when it was reported unresponsive."""
    settings = run.room.settings
    failures = 0
    while failures < settings.watch_failures:
        await asyncio.sleep(settings.watch_period / SECOND)
        wrong = await problem(plan.host, plan.port, plan.readiness)
        failures = 0 if wrong is None else failures + 1
        if failures == settings.watch_failures:
            detail = f"{run.model} {wrong}, {failures} times in a row"
            run.room.post(InstanceUnhealthy(run.room.now(), run.instance, detail))


async def check(run: Run, plan: EnginePlan) -> None:
    """Find out now whether a ready instance answers; one bad answer may be an accident."""
    wrong = await problem(plan.host, plan.port, plan.readiness)
    if wrong is not None:
        await asyncio.sleep(_CHECK_PAUSE_S)
        wrong = await problem(plan.host, plan.port, plan.readiness)
    if run.phase is not Phase.READY:
        return  # its end was reported or ordered meanwhile, and is the answer
    if wrong is None:
        run.room.post(InstanceHealthy(run.room.now(), run.instance))
    else:
        run.room.post(InstanceUnhealthy(run.room.now(), run.instance, f"{run.model} {wrong}"))
