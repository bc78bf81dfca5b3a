"""Says which facts may be true of an instance at a moment, by what it was ordered and what was heard of it before."""

from collections.abc import Iterator

from swapd.core.events import (
    EngineGone,
    Event,
    InstanceExited,
    InstanceHealthy,
    InstanceReady,
    InstanceUnhealthy,
    LoadFailed,
    LoadProgressed,
    ProcessesGone,
    StageEntered,
    StopSignalled,
)
from swapd.core.ids import InstanceId, Instant
from swapd.core.reasons import LoadFailure, Stage
from tests.properties.books import Instance


def facts(instance: Instance, now: Instant) -> Iterator[Event]:
    """Yield what the shell might report next; nothing false, but also repetitions."""
    if instance.started is None:
        return
    if instance.stop is not None or instance.killed:
        yield from _stopping(instance, now)
    elif instance.broken:
        return
    elif instance.ready is None:
        yield from _loading(instance.id, now)
    else:
        if instance.checks:
            yield InstanceHealthy(now, instance.id)
        yield InstanceExited(now, instance.id, -9, "killed from outside")
        yield InstanceUnhealthy(now, instance.id, "no answer")
        yield InstanceReady(now, instance.id)


def _loading(instance: InstanceId, now: Instant) -> Iterator[Event]:
    yield InstanceReady(now, instance)
    yield StageEntered(now, instance, Stage.LOAD)
    yield LoadFailed(now, instance, LoadFailure.WARMUP, "no answer to the warm-up")
    yield InstanceReady(now, instance)
    yield LoadProgressed(now, instance)
    yield InstanceExited(now, instance, 1, "out of memory")
    yield InstanceReady(now, instance)
    yield LoadFailed(now, instance, LoadFailure.SPAWN, "no such file", permanent=True)


def _stopping(instance: Instance, now: Instant) -> Iterator[Event]:
    if instance.gone is not None:
        yield EngineGone(now, instance.id)
        yield EngineGone(now, instance.id)
    yield ProcessesGone(now, instance.id)
    if not instance.killed and instance.gone is None:
        yield StopSignalled(now, instance.id)
        yield InstanceExited(now, instance.id, 0, "left by itself")


def old_facts(instance: InstanceId, now: Instant) -> tuple[Event, ...]:
    """Return every fact about an instance, to be told when it is long gone."""
    return (
        StageEntered(now, instance, Stage.WARMUP),
        LoadProgressed(now, instance),
        InstanceReady(now, instance),
        LoadFailed(now, instance, LoadFailure.EXITED, "late"),
        InstanceExited(now, instance, None),
        InstanceHealthy(now, instance),
        InstanceUnhealthy(now, instance),
        StopSignalled(now, instance),
        ProcessesGone(now, instance),
        EngineGone(now, instance),
    )


def truth(instance: Instance, now: Instant) -> Event | None:
    """Return the next fact if the instance does what it was told; ``None`` when nothing is outstanding."""
    if instance.started is None or instance.engine_gone:
        return None
    if instance.stop is not None or instance.killed:
        if instance.gone is not None:
            return EngineGone(now, instance.id)
        if instance.killed or instance.signalled is not None:
            return ProcessesGone(now, instance.id)
        return StopSignalled(now, instance.id)
    if instance.broken:
        return None
    if instance.ready is None:
        return InstanceReady(now, instance.id)
    return InstanceHealthy(now, instance.id) if instance.checks else None
