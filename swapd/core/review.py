"""Says when a model had better be elsewhere than before; looked at by the timer and when a week is weighed anew.

Most models stay where they are, and nobody looks at them: only those may move that the timer judges (who thrashes or is
pinned for it is one of them), those that were advised to, and those whose week is in the hot tier.
"""

from swapd.core import snapshot
from swapd.core.commands import PromotionAdvised
from swapd.core.events import WeekKnown
from swapd.core.node import Node
from swapd.core.promotion import Pool, advice_on, may_move
from swapd.core.reasons import Move, PinnedBy
from swapd.core.state import Model
from swapd.core.tiers import Tier


def review(node: Node) -> None:
    """Leave a note for each model whose advice is another one than before."""
    load = node.load
    known = [node.models.get(name) for name in dict.fromkeys([*load.watched, *load.advised])]
    moving = [model for model in known if model is not None and model.configured and _may_move(node, model)]
    load.advised.clear()
    if not moving:
        return
    for advice in advice_on(snapshot.models(node, moving, node.at), _pool(node)):
        model = node.models[advice.model.model]
        before, model.move = model.move, advice.move
        if advice.move is not Move.STAY or _is_hot(model):
            load.advised[model.name] = None
        if before is advice.move:
            continue
        model.story.add(node.at, advice.detail)
        node.out.append(PromotionAdvised(model.name, before, advice.move, advice.saves_gpu_seconds, advice.detail))


def _may_move(node: Node, model: Model) -> bool:
    verdict = model.demand.shown(node.at)
    return may_move(move=model.move, verdict=verdict, pinned_by=model.pinned_by, week=model.week)


def _is_hot(model: Model) -> bool:
    return model.week is not None and model.week.tier is Tier.HOT


def _pool(node: Node) -> Pool:
    models = [
        (model.spec.footprint.gpus, model.name, model.pinned and model.pinned_by is not PinnedBy.ON_THRASH)
        for model in node.models.values()
        if model.configured
    ]
    gpus = node.topology.placeable.bit_count()
    return Pool.among(models, gpus=gpus, most_pinned=node.settings.max_pinned_gpus)


def week_known(node: Node, event: WeekKnown) -> bool:
    """Take in what a week says of each model."""
    for model in node.models.values():
        model.week = event.weeks.get(model.name)
        if _is_hot(model):
            node.load.advised[model.name] = None
    review(node)
    return False
