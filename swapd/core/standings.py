"""Says what the weight cache has to keep, and when it is told anew.

Rules that hold here: a copy is held while an instance of its model exists, somebody waits for it, or it is fetched or
verified; who waits does not hold a copy that is given up for another fetch; the cache is told before any order of the
same step, and only when something has changed.
"""

from swapd.core.commands import KeepWeights
from swapd.core.ids import Instant, ModelName
from swapd.core.node import Node
from swapd.core.state import Model
from swapd.core.view import WeightStanding
from swapd.core.weights import expected_fetch


def keep(node: Node) -> None:
    """Have the weight cache told anew if any model is held or pinned that was not, or the other way round."""
    changed = False
    for model in node.unkept.values():
        now = (_held(node, model), model.pinned) if model.spec.fetched else (False, False)
        changed = changed or now != model.weights.kept
        model.weights.kept = now
    node.unkept.clear()
    if changed:
        node.out.insert(0, KeepWeights())


def _held(node: Node, model: Model) -> bool:
    weights = model.weights
    if model.instance is not None or (model.since is not None and weights.given_to is None):
        return True
    if weights.fetch is not None or weights.verifying:
        return True
    return any(instance.model is model for instance in node.instances.values())


def standings(node: Node, at: Instant) -> dict[ModelName, WeightStanding]:
    """Return what the weight cache has to know of each model whose weights it keeps, ages reckoned to ``at``."""
    half_life = node.settings.frequency_half_life
    return {
        name: WeightStanding(
            held=_held(node, model),
            pinned=model.pinned,
            frequency=model.frequency * 2.0 ** ((model.frequency_at - at) / half_life),
            refetch=expected_fetch(node, model),
            last_used=model.demand.last_arrival,
        )
        for name, model in node.models.items()
        if model.spec.fetched
    }
