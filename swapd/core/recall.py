"""Puts demand and verdicts on record, and takes a record back in after a restart, as if the node had been idle between.

What is taken back is added to what has been observed since the start, so that it does not matter when it comes. Time
away counts as silence: it lowers the rates. A model that is configured no more is passed over.
"""

from swapd.core.decay import Decayed
from swapd.core.events import DemandKnown
from swapd.core.ids import Duration, Instant
from swapd.core.node import Node
from swapd.core.reasons import Verdict
from swapd.core.records import DemandRecord
from swapd.core.state import Model
from swapd.core.swaps import judge_node, set_verdict
from swapd.core.thrash_pins import recall_pin
from swapd.core.viability import EARLY_WINDOW, LOADS_WINDOW


def record(node: Node) -> DemandKnown:
    """Return the demand of every model that was ever asked for or loaded, and of the node."""
    models = {
        name: _record(model, node.at)
        for name, model in node.models.items()
        if model.configured and (model.demand.arrivals or model.demand.recalled or model.demand.loads)
    }
    load = node.load
    return DemandKnown(node.at, models, Duration(node.at - load.began), load.gpu_seconds.faded(node.at))


def _record(model: Model, at: Instant) -> DemandRecord:
    demand, account = model.demand, model.demand.account
    return DemandRecord(
        age=Duration(at - demand.began),
        arrivals=demand.arrivals + demand.recalled,
        requests=demand.requests.faded(at),
        episodes=demand.episodes.faded(at),
        load_seconds=demand.load_seconds.faded(at),
        own_gpu_seconds=account.own.recent.faded(at),
        charged_gpu_seconds=account.charged.recent.faded(at),
        waited_seconds=account.waited.recent.faded(at),
        loads=tuple(Duration(at - ended) for ended in demand.loads if at - ended <= LOADS_WINDOW),
        relapses=tuple((Duration(at - when), by) for when, by in demand.relapses if at - when <= EARLY_WINDOW),
        evicts=account.collateral(at),
        verdict=demand.verdict,
        partner=demand.partner,
        thrash_pinned=model.thrash_pin is not None,
    )


def recall(node: Node, event: DemandKnown) -> bool:
    """Take a record back in."""
    load = node.load
    then = Instant(event.at - event.away)
    load.began = min(load.began, Instant(then - event.node_age))
    _add(load.gpu_seconds, then, event.node_gpu_seconds, event.at)
    for name, known in event.models.items():
        model = node.models.get(name)
        if model is not None and model.configured:
            _recall(node, model, known, then)
    judge_node(node)
    return True


def _recall(node: Node, model: Model, known: DemandRecord, then: Instant) -> None:
    demand, account, at = model.demand, model.demand.account, node.at
    demand.began = min(demand.began, Instant(then - known.age))
    demand.recalled += known.arrivals
    for decayed, amount in (
        (demand.requests, known.requests),
        (demand.episodes, known.episodes),
        (demand.load_seconds, known.load_seconds),
        (account.own.recent, known.own_gpu_seconds),
        (account.charged.recent, known.charged_gpu_seconds),
        (account.waited.recent, known.waited_seconds),
    ):
        _add(decayed, then, amount, at)
    demand.loads.extendleft(Instant(then - age) for age in reversed(known.loads))
    demand.relapses.extendleft((Instant(then - age), by) for age, by in reversed(known.relapses))
    for victim, gpu_seconds in known.evicts:
        account.remember_victim(then, victim, gpu_seconds)
    if known.verdict in (Verdict.THRASHING, Verdict.MARGINAL):
        node.load.watch(model.name, at)
        if demand.verdict is Verdict.UNKNOWN:
            set_verdict(node, model, known.verdict)
            demand.partner = known.partner
    if known.thrash_pinned:
        recall_pin(node, model)


def _add(decayed: Decayed, then: Instant, amount: float, at: Instant) -> None:
    """Add what was left of a sum then; a sum that has not begun begins there."""
    decayed.add(at, Decayed(amount, then, decayed.tau).faded(at))
