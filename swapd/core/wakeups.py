"""Decides when the core has to be woken next: the first of every deadline that lies ahead.

A moment that has passed is never named: what was due then is done, or waits for an event. Waking early is harmless.
"""

from swapd.core import gate
from swapd.core.asking import next_order
from swapd.core.due import idle_moment
from swapd.core.eta import clearing_estimate, keep_after, longest_release
from swapd.core.guards import protected_until, resident_until
from swapd.core.ids import Instant
from swapd.core.node import Node
from swapd.core.reasons import State
from swapd.core.state import Instance
from swapd.core.weights import near_moment


def next_wakeup(node: Node) -> Instant | None:
    """Return the first moment after now at which something may be due."""
    at = node.at
    best: int | None = None
    for moment in _moments(node):
        if moment > at and (best is None or moment < best):
            best = moment
    return None if best is None else Instant(best)


def _moments(node: Node) -> list[int]:
    """Return every moment that may matter, passed ones included."""
    found: list[int] = []
    first = node.deadlines.first()
    if first is not None:
        found.append(first)
    wanted = bool(node.pending) or any(model.instance is None for model in node.pins.values())
    for instance in node.instances.values():
        _of_instance(node, instance, found, wanted=wanted)
    if node.pending:
        _of_pending(node, found)
    found += [model.cooling_until for model in node.pins.values() if model.cooling_until is not None]
    _of_weights(node, found)
    order = next_order(node)
    if order is not None:
        found.append(order)
    if node.load.next_evaluation is not None:
        found.append(node.load.next_evaluation)
    if node.drain is not None:
        found.append(node.drain.linger_until)
        if node.drain.deadline is not None:
            found.append(node.drain.deadline)
    return found


def _of_weights(node: Node, found: list[int]) -> None:
    """Add when fetches are near their end, and when those that failed may be tried again."""
    found += [model.cooling_until for model in node.hungry.values() if model.cooling_until is not None]
    if node.fetching:
        spans = (clearing_estimate(node), longest_release(node))
        for model in node.fetching.values():
            fetch = model.weights.fetch
            if model.instance is None and fetch is not None:
                near = (near_moment(node, model, span) for span in (*spans, fetch.lead))
                found += [moment for moment in near if moment is not None]


def _of_instance(node: Node, instance: Instance, found: list[int], *, wanted: bool) -> None:
    match instance.state:
        case State.LOADING:
            found.append(instance.started_at + instance.spec.load_timeout)
            found.append(instance.progress_at + instance.spec.load_stall)
        case State.UNLOADING:
            assert instance.stopping is not None
            moments = (instance.stopping.kill_at, instance.stopping.leak_at)
            found += [moment for moment in moments if moment is not None]
        case State.READY | State.DRAINING:
            _of_resident(node, instance, found)
            if wanted and not instance.model.pinned:
                found.append(protected_until(node, instance))
                found.append(resident_until(node, instance))
        case State.RESERVED if instance.gated_since is not None or instance.weights_wanting is not None:
            found.append(gate.deadline(node, instance))
        case _:
            pass


def _of_resident(node: Node, instance: Instance, found: list[int]) -> None:
    if instance.drain is not None:
        if instance.drain.deadline is not None:
            found.append(instance.drain.deadline)
        return
    idle = idle_moment(node, instance)
    if idle is not None:
        found.append(idle)
    if instance.outdated_since is not None:
        found.append(instance.outdated_since + node.settings.drain_after)


def _of_pending(node: Node, found: list[int]) -> None:
    """Add when the next pending model's patience with protection, or with busy victims, ends."""
    at, settings = node.at, node.settings
    if settings.protect_max_wait is not None:
        _add(found, node.ages.after(at - settings.protect_max_wait), settings.protect_max_wait)
    if node.reservation is None:
        for wait in (settings.drain_after, keep_after(node)):
            _add(found, node.ages.after(at - wait), wait)
    clearing = clearing_estimate(node)
    _add(found, node.limits.after(at + clearing), -clearing)


def _add(found: list[int], moment: int | None, wait: int) -> None:
    if moment is not None:
        found.append(moment + wait)
