"""Works out what a placer is told of this node, whatever form it is written in; pure.

Rules that hold here:

* Equal states give equal facts: nothing counts up, nothing carries a time, and figures that drift from reading to
  reading are rounded, because every change is a write that all watchers of the node see.
* Nothing is free while the driver cannot be asked: nothing would be loaded there, and nobody knows.
* Free memory is what the accounts leave, not the driver's last word: while a model loads, the driver's figure falls by
  the second, and the accounts have known the end of it since the reservation.

The forms (one module each) read the snapshot and these functions and nothing else.
"""

import enum
from collections.abc import Sequence
from typing import Final

from swapd.core.ids import NO_GPUS, Bytes, GpuSet, ModelName
from swapd.core.reasons import State, Verdict
from swapd.core.topology import DriverState, GpuHealth
from swapd.core.view import FreeView, GpuView, InstanceView, NodeView

FREE_STEP: Final = 256 << 20
"""Free bytes are rounded down to a multiple of this."""

_RESIDENT = frozenset({State.READY, State.DRAINING})
_LOADING = frozenset({State.RESERVED, State.LOADING, State.WAKING})
_BROKEN = frozenset({GpuHealth.DEGRADED, GpuHealth.FAILED, GpuHealth.LOST})
_PLACEABLE = frozenset({GpuHealth.HEALTHY, GpuHealth.DEGRADED})
_ANSWERING = frozenset({DriverState.UP, DriverState.VIRTUAL})
_NOTHING = FreeView(NO_GPUS, 0, NO_GPUS, NO_GPUS, (), ())


class Condition(enum.StrEnum):
    """What a placer may expect of the node."""

    READY = "ready"
    #: it leaves service: nothing may be sent here
    DRAINING = "draining"
    #: something is not as it should be; the reasons say what that costs
    DEGRADED = "degraded"


def condition(view: NodeView, not_ready: Sequence[str]) -> tuple[Condition, tuple[str, ...]]:
    """Return the node's condition and its reasons, one sentence each.

    ``not_ready`` says why the node takes no requests; a node that takes them may be degraded nevertheless.
    """
    topology = view.topology
    told = [*not_ready, *filter(None, [topology.trouble]), *topology.complaints]
    for gpu in topology.gpus:
        if gpu.health in _BROKEN and not (gpu.why and any(gpu.why in reason for reason in told)):
            told.append(f"GPU {gpu.index}: {gpu.why or gpu.health.value}")
    reasons = tuple(dict.fromkeys(told))
    if view.draining:
        return Condition.DRAINING, reasons
    return (Condition.DEGRADED if reasons else Condition.READY), reasons


def of_health(view: NodeView, *healths: GpuHealth) -> GpuSet:
    """Return the GPUs in one of these states of health."""
    return GpuSet(sum(1 << gpu.index for gpu in view.gpus if gpu.health in healths))


def free(view: NodeView) -> FreeView:
    """Return what could be taken without evicting anybody."""
    return view.free if view.topology.driver in _ANSWERING else _NOTHING


def free_bytes(view: NodeView) -> tuple[Bytes, ...]:
    """Return the memory that a model could still be given on each GPU, rounded down to ``FREE_STEP``."""
    answering = view.topology.driver in _ANSWERING
    return tuple(_left(gpu) if answering and gpu.health in _PLACEABLE else Bytes(0) for gpu in view.gpus)


def _left(gpu: GpuView) -> Bytes:
    left = gpu.memory_bytes - gpu.reserved_bytes - gpu.foreign_bytes
    return Bytes(max(0, left) // FREE_STEP * FREE_STEP)


def resident(view: NodeView) -> tuple[InstanceView, ...]:
    """Return the instances that serve, by model."""
    return _in(view, _RESIDENT)


def loading(view: NodeView) -> tuple[InstanceView, ...]:
    """Return the instances that will serve, by model."""
    return _in(view, _LOADING)


def thrashing(view: NodeView) -> tuple[ModelName, ...]:
    """Return the models of which swapping does not pay, by name."""
    return tuple(model.model for model in view.models if model.configured and model.verdict is Verdict.THRASHING)


def _in(view: NodeView, states: frozenset[State]) -> tuple[InstanceView, ...]:
    found = (instance for instance in view.instances if instance.state in states)
    return tuple(sorted(found, key=lambda instance: (instance.model, instance.instance)))
