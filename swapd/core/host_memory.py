"""Keeps the accounts of host memory: what instances are charged, and what a newcomer lacks.

Rules that hold here:

* An instance is charged what its model declares, from the booking until nothing of its engine is left. Nothing is
  measured: host memory is the kernel's to give and to take back.
* As with GPUs, what is held and what is promised may each be as much as there is: a victim and the successor that is
  booked on its room count once each.
* A model that declares none, and a node that limits none, are not accounted.
"""

from collections.abc import Iterable

from swapd.core.node import Node
from swapd.core.reasons import State
from swapd.core.state import Instance, Need


def lacking(node: Node, need: Need) -> int:
    """Return how much must be given up before a model that wants some can be booked, bytes; 0 or less: nothing."""
    most = node.topology.host_bytes
    return 0 if most is None else promised(node) + need.host_bytes - most


def promised(node: Node) -> int:
    """Return what instances are charged that stay, or come, bytes."""
    return sum(instance.host_bytes for instance in node.instances.values() if instance.state is not State.UNLOADING)


def held(node: Node) -> int:
    """Return what instances are charged whose engines may be there already, or still, bytes."""
    return sum(instance.host_bytes for instance in node.instances.values() if instance.holds)


def is_short(node: Node, host_bytes: int) -> bool:
    """Say whether as much is not there right now, on top of what is held."""
    most = node.topology.host_bytes
    return host_bytes > 0 and most is not None and held(node) + host_bytes > most


def given_up(leaving: Iterable[Instance]) -> int:
    """Return what these instances are charged together, bytes."""
    return sum(instance.host_bytes for instance in leaving)
