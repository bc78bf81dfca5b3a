"""Decides who may leave: the guards that stand before any order of victims.

Rules that hold here:

* A victim has nothing in flight and nobody waiting, is not pinned, and is outside its protection, unless the newcomer
  is patient (see ``is_patient``). The least residency holds whoever waits.
* A load that nobody waits for may be broken off; one that somebody waits for never.
* Nobody leaves a GPU while a neighbour loads there: engines size their cache from a snapshot of free memory.
"""

from typing import Final

from swapd.core.ids import SECOND, Duration, Instant
from swapd.core.node import Node
from swapd.core.reasons import EvictionBlock, State
from swapd.core.state import Instance, Model

AUTO_PROTECTION_MOST: Final = Duration(120 * SECOND)


def protection(node: Node, model: Model) -> Duration:
    """Return the protection time T of a model."""
    if node.settings.protect is None:
        return min(model.lhat, AUTO_PROTECTION_MOST)
    return node.settings.protect


def protected_until(node: Node, instance: Instance) -> Instant:
    """Return when the protection of an idle instance ends."""
    return Instant(instance.last_used + protection(node, instance.model))


def resident_until(node: Node, instance: Instance) -> Instant:
    """Return when the least residency of an instance ends."""
    settings = node.settings
    relative = round(settings.min_residency_load_times * instance.model.lhat)
    return Instant(instance.ready_at + max(settings.min_residency, relative))


def quiet(node: Node, instance: Instance) -> bool:
    """Say whether no neighbour on the same GPUs is loading."""
    return not any(other.state is State.LOADING for other in node.neighbours(instance))


def is_patient(node: Node, model: Model, since: Instant, clearing: int) -> bool:
    """Say whether somebody who waits since then may override protection.

    That is after ``protect_max_wait``, or so much earlier that ``max_wait`` stays within reach: protection defers, it
    never makes a request miss its promise. ``clearing`` is the expected time to drain and release what is resident.
    """
    patience = node.settings.protect_max_wait
    if patience is None:
        return False
    waited = node.at - since
    return waited >= patience or waited >= model.spec.max_wait - model.lhat - clearing


def evictable(node: Node, instance: Instance, *, patient: bool, holder: bool) -> bool:
    """Say whether an instance may be a victim now; ``holder``: of the model that holds the reservation."""
    model = instance.model
    if instance.state is State.LOADING:
        return not model.claimed
    if instance.in_flight or model.pinned:
        return False
    idle = instance.state is State.READY and not model.queue
    drained = holder and instance.drain is not None and instance.drain.cause is None
    if not (idle or drained) or node.at < resident_until(node, instance):
        return False
    return (patient or node.at >= protected_until(node, instance)) and quiet(node, instance)


def drainable(node: Node, instance: Instance, *, patient: bool) -> bool:
    """Say whether an instance may be asked to drain in favour of a reservation, busy or not."""
    model = instance.model
    if instance.state is State.LOADING:
        return not model.claimed
    if instance.state is not State.READY or model.pinned or node.at < resident_until(node, instance):
        return False
    if patient or not protection(node, model):
        return True
    return not instance.in_flight and not model.queue and node.at >= protected_until(node, instance)


def blocked_by(node: Node, instance: Instance, *, patient: bool) -> EvictionBlock | None:
    """Return why a ready instance may not be a victim now, if the notes have a word for it."""
    if instance.state is not State.READY:
        return None
    if instance.model.pinned:
        return EvictionBlock.PINNED
    if instance.in_flight:
        return EvictionBlock.IN_FLIGHT
    if not patient and node.at < protected_until(node, instance):
        return EvictionBlock.PROTECTED
    return None
