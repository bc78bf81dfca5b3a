"""Says when a model had better be elsewhere than before; looked at by the timer and when a week is weighed anew."""

from swapd.core import snapshot
from swapd.core.commands import PromotionAdvised
from swapd.core.events import WeekKnown
from swapd.core.node import Node
from swapd.core.promotion import report


def review(node: Node) -> None:
    """Leave a note for each model whose advice is another one than before."""
    for advice in report(snapshot.build(node, node.at)):
        model = node.models[advice.model.model]
        before, model.move = model.move, advice.move
        if before is advice.move:
            continue
        model.story.add(node.at, advice.detail)
        node.out.append(PromotionAdvised(model.name, before, advice.move, advice.saves_gpu_seconds, advice.detail))


def week_known(node: Node, event: WeekKnown) -> bool:
    """Take in what a week says of each model."""
    for model in node.models.values():
        model.week = event.weeks.get(model.name)
    review(node)
    return False
