"""Decides from the node's snapshot whether it takes requests.

A node whose driver cannot be asked loads nothing new, but engines that run need no driver: it is ready as long as one
of them serves. Whether a model is resident is otherwise no question of readiness.
"""

from swapd.core.reasons import State
from swapd.core.topology import DriverState
from swapd.core.view import NodeView

_ANSWERING = frozenset({DriverState.UP, DriverState.VIRTUAL})


def not_ready(view: NodeView) -> tuple[str, ...]:
    """Say why the node takes no requests, one sentence each; ``()`` is ready."""
    if view.draining:
        return ("the node is draining",)
    topology = view.topology
    if topology.driver is DriverState.STARTING:
        return (topology.trouble or "the GPUs have not been read yet",)
    if topology.driver in _ANSWERING or any(instance.state is State.READY for instance in view.instances):
        return ()
    return (topology.trouble or f"the GPU driver is {topology.driver.value.replace('_', ' ')}",)
