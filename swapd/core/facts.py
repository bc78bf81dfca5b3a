"""Applies what the shell reports of instances: stages, readiness, failures, exits, checks, stops, releases.

A fact about an instance that is gone, or past the state it speaks of, is stale: counted and ignored. Each function
returns whether the node has to settle.
"""

from swapd.core.events import (
    EngineGone,
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
from swapd.core.footprints import await_measurement
from swapd.core.grants import serve
from swapd.core.ids import InstanceId, Instant
from swapd.core.lifecycle import Cause
from swapd.core.loads import break_down, fail_load, ready
from swapd.core.node import Node
from swapd.core.reasons import LoadFailure, Stage, State, UnloadCause
from swapd.core.release import nothing_left
from swapd.core.state import Instance


def _in(node: Node, instance_id: InstanceId, what: str, *states: State) -> Instance | None:
    """Return the instance if it is in one of these states; else count the fact as stale."""
    instance = node.instances.get(instance_id)
    if instance is None or instance.state not in states:
        where = "gone" if instance is None else instance.state.value
        node.stale(f"instance {instance_id} {what}, but is {where}")
        return None
    return instance


def stage_entered(node: Node, event: StageEntered) -> bool:
    """Note the next stage of a load; that is progress, too."""
    instance = _in(node, event.instance, f"entered {event.stage.value}", State.LOADING)
    if instance is not None:
        instance.timeline.append((event.stage, event.at))
        instance.progress_at = event.at
    return False


def load_progressed(node: Node, event: LoadProgressed) -> bool:
    """Put the stall deadline off."""
    instance = _in(node, event.instance, "progressed", State.LOADING)
    if instance is not None:
        instance.progress_at = event.at
    return False


def instance_ready(node: Node, event: InstanceReady) -> bool:
    """Take a loaded instance into service."""
    instance = _in(node, event.instance, "became ready", State.LOADING)
    if instance is not None:
        ready(node, instance)
        await_measurement(node, instance)
    return instance is not None


def load_failed(node: Node, event: LoadFailed) -> bool:
    """End a load that did not succeed."""
    instance = _in(node, event.instance, "failed to load", State.LOADING)
    if instance is not None:
        fail_load(node, instance, event.failure, event.detail, cause=Cause.LOAD_FAILED, permanent=event.permanent)
    return instance is not None


def instance_exited(node: Node, event: InstanceExited) -> bool:
    """Let an instance go whose process ended by itself; the rest of its group is still to be reaped."""
    instance = _in(node, event.instance, "exited", State.LOADING, State.READY, State.DRAINING)
    if instance is None:
        return False
    status = "unknown" if event.status is None else str(event.status)
    detail = event.detail or f"the engine of {instance.model.name} exited with status {status}"
    if instance.state is State.LOADING:
        fail_load(node, instance, LoadFailure.EXITED, detail, cause=Cause.EXITED)
    else:
        break_down(node, instance, UnloadCause.EXITED, Cause.EXITED, detail)
    return True


def instance_healthy(node: Node, event: InstanceHealthy) -> bool:
    """Trust a checked instance again."""
    instance = _in(node, event.instance, "is healthy", State.READY, State.DRAINING)
    if instance is not None:
        instance.suspect = False
        serve(node, instance)
    return instance is not None


def instance_unhealthy(node: Node, event: InstanceUnhealthy) -> bool:
    """Stop an engine that does not answer; whoever it serves loses the answer."""
    instance = _in(node, event.instance, "is unhealthy", State.READY, State.DRAINING)
    if instance is not None:
        detail = event.detail or f"the engine of {instance.model.name} does not answer"
        break_down(node, instance, UnloadCause.UNRESPONSIVE, Cause.UNRESPONSIVE, detail)
    return instance is not None


def stop_signalled(node: Node, event: StopSignalled) -> bool:
    """Let the grace count from the signal."""
    instance = _in(node, event.instance, "was signalled", State.UNLOADING)
    if instance is None:
        return False
    stopping = instance.stopping
    assert stopping is not None
    if stopping.kill_at is not None:
        stopping.kill_at = Instant(event.at + stopping.grace)
        node.wake_by(stopping.kill_at)
    return False


def processes_gone(node: Node, event: ProcessesGone) -> bool:
    """Let the release deadline count from here; nobody is left to kill."""
    instance = _in(node, event.instance, "lost its processes", State.UNLOADING, State.LEAKED)
    if instance is None:
        return False
    stopping = instance.stopping
    assert stopping is not None
    stopping.gone_at = stopping.gone_at or event.at
    stopping.kill_at = None
    stopping.leak_at = Instant(event.at + node.settings.release_timeout)
    for successor in node.neighbours(instance):
        if successor.state is State.RESERVED:
            _enter_release(node, successor)
    node.wake_by(stopping.leak_at)
    return False


def _enter_release(node: Node, successor: Instance) -> None:
    """Note that a successor waits for memory only, once the last of its victims has no process left."""
    leaving = [other for other in node.neighbours(successor) if other.state is State.UNLOADING]
    stopped = all(other.stopping is not None and other.stopping.processes_gone for other in leaving)
    if stopped and successor.timeline and successor.timeline[-1][0] is Stage.STOP:
        successor.timeline.append((Stage.RELEASE, node.at))


def engine_gone(node: Node, event: EngineGone) -> bool:
    """Let an instance go as soon as its memory is free; a late end frees leaked memory."""
    instance = _in(node, event.instance, "has nothing left", State.UNLOADING, State.LEAKED)
    if instance is not None:
        nothing_left(node, instance)
    return instance is not None
