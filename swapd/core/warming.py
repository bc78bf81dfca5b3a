"""Decides when weights are read into the page cache: from the booking of a load until its engine has them.

Rules that hold here: a load never waits for the reading; the reading ends with the load, or when nobody waits for the
load any more; a model is read once at a time, and what was ended early is ordered again if the next load wants it.
"""

from swapd.core.commands import StopWarming, WarmWeights
from swapd.core.copies import Warming
from swapd.core.events import WeightsWarmed
from swapd.core.node import Node
from swapd.core.reasons import Stage, State
from swapd.core.state import Model

_LOADING = (State.RESERVED, State.LOADING)


def warm(node: Node, model: Model) -> None:
    """Have the weights of a model read that was booked, if they are here and no reading is under way."""
    spec, weights = model.spec, model.weights
    here = spec.local_weights or (spec.fetched and weights.cached is not None and not weights.verifying)
    if here and weights.warming is None:
        weights.warming = Warming(node.at)
        node.warming[model.name] = model
        node.out.append(WarmWeights(model.name))


def stop_needless(node: Node) -> None:
    """End every reading that serves no load, or one that nobody waits for any more."""
    for model in node.warming.values():
        warming = model.weights.warming
        assert warming is not None
        if not warming.stopped and not _serves(node, model):
            warming.stopped = True
            node.out.append(StopWarming(model.name))


def _serves(node: Node, model: Model) -> bool:
    instance = model.instance
    if instance is None or instance.state not in _LOADING:
        return False
    return model.claimed or model.name in node.wishes or instance.ahead


def weights_warmed(node: Node, event: WeightsWarmed) -> bool:
    """Note that a reading has ended."""
    model = node.models.get(event.model)
    warming = None if model is None else model.weights.warming
    if model is None or warming is None:
        node.stale(f"the weights of {event.model} are in memory, but nobody wanted that")
        return False
    model.weights.warming = None
    del node.warming[model.name]
    model.weights.ended.append((Stage.PAGE_CACHE, warming.since, event.at))
    instance = model.instance
    if instance is not None and instance.state is State.RESERVED:
        if event.whole:
            instance.warm = True
        elif warming.stopped:
            warm(node, model)
    return model.name in node.removed
