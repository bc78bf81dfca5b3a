"""Keeps the accounts of loads: stages, durations, demand, verdicts, and who caused them.

Nothing here decides where a model goes; it only measures, and says when swapping a model has ceased to be sensible.
"""

from collections.abc import Mapping
from typing import Final

from swapd.core.catalog import Source
from swapd.core.commands import LoadFinished, NodeLoadChanged, VerdictChanged
from swapd.core.course import load_time_of, source_of, stages_of, timeline_of
from swapd.core.eta import note_load_times
from swapd.core.ids import SECOND, Duration, Instant
from swapd.core.node import Node
from swapd.core.reasons import LoadFailure, LoadResult, Verdict
from swapd.core.state import Instance, Model
from swapd.core.viability import EVALUATE_EVERY, LOADS_NEEDED

_NODE_WORDS: Final[Mapping[Verdict, str]] = {
    Verdict.OK: ", which is well again",
    Verdict.MARGINAL: ": much; promoting a model that causes it would help",
    Verdict.THRASHING: ": pool thrashing; promote the models that cause it, or add a node",
}


def load_ended(
    node: Node, instance: Instance, result: LoadResult, *, failure: LoadFailure | None = None, detail: str = ""
) -> None:
    """Account for a load that has just ended, and leave the note."""
    at, model = node.at, instance.model
    source = source_of(instance)
    load_time = load_time_of(instance, source, at)
    began = instance.timeline[0][1]
    swap = Duration(at - began)
    gpu_seconds = swap / SECOND * instance.gpus.bit_count()
    model.demand.load_seconds.add(at, swap / SECOND)
    model.demand.account.own.add(at, gpu_seconds)
    node.load.gpu_seconds.add(at, gpu_seconds)
    relapse = False
    if result is LoadResult.READY:
        if source is not Source.REMOTE:
            model.weights.local = source
        note_load_times(model, source, (load_time,))
        relapse = model.demand.relapse(model.lhat, instance.reserved_at)
        _returned(node, model, instance.reserved_at, gpu_seconds)
    note = LoadFinished(
        instance.id,
        model.name,
        result,
        source,
        load_time,
        swap,
        stages_of(instance, at),
        instance.victims,
        failure,
        detail,
        relapse,
        timeline_of(instance, at),
    )
    node.out.append(note)
    judge_node(node)


def _returned(node: Node, model: Model, booked_at: Instant, gpu_seconds: float) -> None:
    """Count a finished load, charge it, and apply the early rule."""
    demand = model.demand
    demand.loads.append(node.at)
    demand.account.loads += 1
    by = demand.returned(node.at, model.lhat, booked_at)
    culprit = None if by is None else node.models.get(by)
    if culprit is not None:
        culprit.demand.account.charge(node.at, model.name, gpu_seconds)
    if demand.recent_loads(node.at) >= LOADS_NEEDED:
        node.load.watch(model.name, node.at)
    if demand.relapsing(node.at):
        node.load.watch(model.name, node.at)
        set_verdict(node, model, Verdict.THRASHING)


def evaluate(node: Node) -> None:
    """Judge every watched model, and the node; called by the timer, not right after an event."""
    load = node.load
    for name in list(load.watched):
        model = node.models.get(name)
        if model is None:
            del load.watched[name]
            continue
        verdict = model.demand.judge(node.at, model.lhat)
        set_verdict(node, model, verdict)
        well = verdict not in (Verdict.THRASHING, Verdict.MARGINAL)
        if well and model.demand.recent_loads(node.at) < LOADS_NEEDED and model.thrash_pin is None:
            del load.watched[name]
    load.next_evaluation = Instant(node.at + EVALUATE_EVERY) if load.watched else None
    judge_node(node)


def judge_node(node: Node) -> None:
    """Say when the share of time that the node spends loading has passed a limit; the timer sees it come down again."""
    load, before = node.load, node.load.verdict
    load.verdict = load.judge(node.at)
    if load.verdict is not Verdict.OK:
        load.run_timer(node.at)
    if load.verdict is before:
        return
    fraction = load.fraction(node.at)
    detail = f"the node spends {fraction:.0%} of its time loading{_NODE_WORDS[load.verdict]}"
    node.story.add(node.at, detail)
    node.out.append(NodeLoadChanged(before, load.verdict, fraction, detail))


def set_verdict(node: Node, model: Model, verdict: Verdict) -> None:
    """Give a model another verdict, and say so if it is another one."""
    demand, before = model.demand, model.demand.verdict
    demand.verdict = verdict
    demand.partner = demand.alternates_with(node.at) if verdict is Verdict.THRASHING else None
    if verdict is before:
        return
    ratio, fraction = demand.load_ratio(node.at, model.lhat), demand.load_fraction(node.at)
    partner = f", alternating with {demand.partner}" if demand.partner else ""
    model.story.add(node.at, f"swapping it is {verdict.value} (ratio {ratio:.2f}, fraction {fraction:.2f}){partner}")
    node.out.append(VerdictChanged(model.name, before, verdict, demand.partner, ratio, fraction))
