"""Decides how the node leaves service: who is refused, who finishes, which engines stop, when it is done.

Rules that hold here: no load begins and none goes on; whoever waits for one is refused; ready models serve newcomers
until the linger time is over, then only those who wait for a slot; engines stop once idle, if asked; after the
deadline what is left is cut. Memory of engines that have ended is waited for, except at the end of the daemon while its
driver cannot be asked. A drained node stays drained until an operator says otherwise; a final drain for good.
"""

from typing import Final

from swapd.core.commands import Answer
from swapd.core.fetching import cancel_all
from swapd.core.grants import cut_all, refuse_all
from swapd.core.ids import SECOND, Duration
from swapd.core.lifecycle import Cause
from swapd.core.moves import abort_load, forget, unload
from swapd.core.node import Node, NodeDrain
from swapd.core.reasons import Rejection, State, UnloadCause
from swapd.core.sentences import number
from swapd.core.state import Instance, Model

RETRY_AFTER: Final = Duration(5 * SECOND)
DETAIL: Final = "the node is leaving service; another one will serve this"


def advance(node: Node) -> None:
    """Take every step of the drain that is possible now."""
    drain = node.drain
    if drain is None:
        return
    for name in node.pending:
        _refuse(node, node.models[name])
    cancel_all(node, DETAIL)
    for instance in list(node.instances.values()):
        _stop(node, drain, instance)


def _refuse(node: Node, model: Model) -> None:
    refuse_all(node, model, Rejection.DRAINING, DETAIL, retry_after=RETRY_AFTER)


def _stop(node: Node, drain: NodeDrain, instance: Instance) -> None:
    model = instance.model
    if drain.deadline is not None and node.at >= drain.deadline:
        drain.cut += cut_all(node, instance)
        if model.instance is instance:
            _refuse(node, model)
    match instance.state:
        case State.RESERVED:
            _refuse(node, model)
            forget(node, instance, Cause.UNWANTED, "the node is leaving service")
        case State.LOADING:
            _refuse(node, model)
            abort_load(node, instance, Cause.WITHDRAWN, "the node is leaving service", UnloadCause.SHUTDOWN)
        case State.READY:
            lingers = node.at < drain.linger_until
            if drain.stop_engines and not lingers and not instance.in_flight and not model.queue:
                unload(node, instance, UnloadCause.SHUTDOWN, Cause.LEFT_IDLE, "the node is leaving service")
        case State.DRAINING:
            _refuse(node, model)
        case _:
            pass


def drained(node: Node) -> bool:
    """Say whether the node is draining and nothing is left to wait for."""
    drain = node.drain
    if drain is None or node.requests or node.at < drain.linger_until:
        return False
    return not drain.stop_engines or all(_is_left_alone(node, drain, instance) for instance in node.instances.values())


def _is_left_alone(node: Node, drain: NodeDrain, instance: Instance) -> bool:
    """Say whether an instance is waited for no longer: at the end also one whose memory nobody can be asked about."""
    if instance.state is State.LEAKED:
        return True
    gone = instance.stopping is not None and instance.stopping.engine_gone
    return drain.final and not node.may_load and gone


def answer_if_drained(node: Node) -> None:
    """Tell the operators who wait for the drain that it is done."""
    drain = node.drain
    if drain is None or not drain.orders or not drained(node):
        return
    leaked = sum(1 for _ in node.instances) if drain.stop_engines else 0
    detail = "the node is drained"
    if drain.cut:
        detail += f"; {number(drain.cut, 'request')} {'was' if drain.cut == 1 else 'were'} cut"
    if leaked:
        detail += f"; the memory of {number(leaked, 'instance')} was not released"
    node.story.add(node.at, detail)
    for order in drain.orders:
        node.out.append(Answer(order, ok=True, detail=detail))
    drain.orders.clear()
