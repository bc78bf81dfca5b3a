"""Says when a model had better be elsewhere than before; looked at by the timer and when a week is weighed anew.

Most models stay where they are, and nothing is reckoned for them: the look is paid for by those that may move.
"""

from swapd.core import snapshot
from swapd.core.commands import PromotionAdvised
from swapd.core.events import WeekKnown
from swapd.core.node import Node
from swapd.core.promotion import Pool, advice_on, may_move
from swapd.core.reasons import PinnedBy
from swapd.core.state import Model


def review(node: Node) -> None:
    """Leave a note for each model whose advice is another one than before."""
    moving = [model for model in node.models.values() if model.configured and _may_move(node, model)]
    if not moving:
        return
    for advice in advice_on(snapshot.models(node, moving, node.at), _pool(node)):
        model = node.models[advice.model.model]
        before, model.move = model.move, advice.move
        if before is advice.move:
            continue
        model.story.add(node.at, advice.detail)
        node.out.append(PromotionAdvised(model.name, before, advice.move, advice.saves_gpu_seconds, advice.detail))


def _may_move(node: Node, model: Model) -> bool:
    verdict = model.demand.shown(node.at)
    return may_move(move=model.move, verdict=verdict, pinned_by=model.pinned_by, week=model.week)


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
    review(node)
    return False
