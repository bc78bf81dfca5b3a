"""Applies operators' orders: load, unload, pin, drain the node and take it back. Each is answered exactly once.

An order may do what the node would not do by itself: it holds in manual mode, it clears a cool-down, and its load is
not broken off. It does not override the guards: nobody in flight is cut without a deadline, and nothing pinned leaves.
"""

from swapd.core.commands import Answer
from swapd.core.events import LoadOrdered, NodeDrainOrdered, NodeUndrainOrdered, PinOrdered, UnloadOrdered
from swapd.core.feasibility import infeasible
from swapd.core.fetching import consider
from swapd.core.grants import serve, settle_orders
from swapd.core.ids import Instant, ModelName, RequestId
from swapd.core.lifecycle import Cause
from swapd.core.loads import clear_cool_down, drop_wish
from swapd.core.moves import abort_load, drain, forget
from swapd.core.node import Node, NodeDrain
from swapd.core.reasons import PinnedBy, Rejection, State, UnloadCause
from swapd.core.sentences import number
from swapd.core.state import Model


def _model(node: Node, request: RequestId, name: ModelName) -> Model | None:
    """Return a configured model, or answer that there is none."""
    model = node.models.get(name)
    if model is not None and model.configured:
        return model
    node.out.append(Answer(request, ok=False, detail=f"no model {name}", reason=Rejection.UNKNOWN_MODEL))
    return None


def load_ordered(node: Node, event: LoadOrdered) -> bool:
    """Make a model resident; answered when it is ready, or cannot be."""
    model = _model(node, event.request, event.model)
    if model is None:
        return False
    if node.drain is not None:
        detail = "the node is out of service; swapd undrain brings it back"
        node.out.append(Answer(event.request, ok=False, detail=detail, reason=Rejection.DRAINING))
        return False
    clear_cool_down(model)
    model.breakdowns.clear()
    if model.instance is not None and model.instance.state is State.READY:
        node.out.append(Answer(event.request, ok=True, detail=f"{model.name} is ready"))
        return False
    never = infeasible(node, model) if model.instance is None else None
    if never is not None:
        node.out.append(Answer(event.request, ok=False, detail=never.detail, reason=never.reason))
        return False
    model.orders[event.request] = event.at
    model.story.add(event.at, "an operator wants it loaded")
    node.refresh(model)
    return True


def unload_ordered(node: Node, event: UnloadOrdered) -> bool:
    """Take a model off the GPUs once it is idle; answered when its memory is free."""
    model = node.models.get(event.model)
    if model is None:
        _model(node, event.request, event.model)
        return False
    if model.pinned and not node.manual:
        detail = f"{model.name} is pinned and would be loaded again; unpin it first"
        node.out.append(Answer(event.request, ok=False, detail=detail, reason=Rejection.ALL_PINNED))
        return False
    model.story.add(event.at, "an operator wants it unloaded")
    settle_orders(node, model, ok=False, detail=f"an operator had {model.name} unloaded")
    drop_wish(node, model)
    instance = model.instance
    if instance is None:
        leaving = [i for i in node.instances.values() if i.model is model and i.state is State.UNLOADING]
        if leaving:
            leaving[-1].unload_orders.append(event.request)
        else:
            node.out.append(Answer(event.request, ok=True, detail=f"{model.name} is not loaded"))
        node.refresh(model)
        return True
    instance.unload_orders.append(event.request)
    why = "an operator ordered it"
    limit = node.settings.drain_timeout if event.drain_timeout is None else event.drain_timeout
    if instance.state is State.RESERVED:
        forget(node, instance, Cause.UNWANTED, why)
    elif instance.state is State.LOADING:
        abort_load(node, instance, Cause.WITHDRAWN, why, UnloadCause.OPERATOR)
    else:
        drain(node, instance, UnloadCause.OPERATOR, why, limit)
    return True


def pin_ordered(node: Node, event: PinOrdered) -> bool:
    """Pin or unpin a model until the next such order."""
    model = _model(node, event.request, event.model)
    if model is None:
        return False
    most = node.settings.max_pinned_gpus
    wanted = pinned_gpus(node, besides=model) + model.spec.footprint.gpus
    if event.pinned and most is not None and wanted > most:
        detail = f"pinning {model.name} would pin {number(wanted, 'GPU')}, and max_pinned_gpus is {most}"
        own = [name for name, other in node.pins.items() if other.pinned_by is PinnedBy.ON_THRASH]
        detail += f"; unpin what on_thrash has pinned first: {', '.join(own)}" if own else ""
        node.out.append(Answer(event.request, ok=False, detail=detail, reason=Rejection.ALL_PINNED))
        return False
    model.pin_override = event.pinned
    model.thrash_pin = None
    enter_pin(node, model)
    said = "pinned" if event.pinned else "unpinned"
    model.story.add(event.at, f"an operator {said} it")
    absent = event.pinned and model.instance is None
    detail = f"{model.name} is {said}" + ("; it is loaded as soon as there is room" if absent else "")
    node.out.append(Answer(event.request, ok=True, detail=detail))
    return True


def pinned_gpus(node: Node, *, besides: Model | None = None) -> int:
    """Return how many GPUs the pinned models take together, one of them left out if named."""
    return sum(model.spec.footprint.gpus for model in node.pins.values() if model is not besides)


def enter_pin(node: Node, model: Model) -> None:
    """Keep the list of pinned models, by name, and what depends on it."""
    if model.pinned:
        node.pins[model.name] = model
        node.pins = dict(sorted(node.pins.items()))
    else:
        node.pins.pop(model.name, None)
    if model.spec.fetched:
        node.unkept[model.name] = model
        consider(node, model)
    node.recheck = True


def node_drain_ordered(node: Node, event: NodeDrainOrdered) -> bool:
    """Take the node out of service; a second order replaces the terms of the first and shares its answer.

    The terms of a final drain stay: the daemon is exiting by them.
    """
    before = node.drain
    if before is not None and before.final:
        before.orders.append(event.request)
        return True
    node.drain = NodeDrain(
        orders=[*(before.orders if before is not None else ()), event.request],
        linger_until=Instant(event.at + event.linger),
        deadline=None if event.timeout is None else Instant(event.at + event.timeout),
        stop_engines=event.stop_engines,
        final=event.final,
        cut=0 if before is None else before.cut,
    )
    node.story.add(event.at, "the node leaves service")
    return True


def node_undrain_ordered(node: Node, event: NodeUndrainOrdered) -> bool:
    """Take the node back into service."""
    drain_ = node.drain
    if drain_ is not None and drain_.final:
        detail = "this drain is final, the daemon is exiting"
        node.out.append(Answer(event.request, ok=False, detail=detail, reason=Rejection.DRAINING))
        return False
    if drain_ is not None:
        for order in drain_.orders:
            detail = "the node was taken back into service"
            node.out.append(Answer(order, ok=False, detail=detail, reason=Rejection.DRAINING))
        node.drain = None
        node.story.add(event.at, "the node is back in service")
    node.out.append(Answer(event.request, ok=True, detail="the node is in service"))
    for instance in list(node.instances.values()):
        serve(node, instance)
    return True
