"""Answers thrashing where the node may: ``on_thrash: pin`` pins a thrashing model, and takes its pin away in time.

* Looked at by the timer, the model first whose loads cost most per GPU.
* An operator's word wins: a model that an operator has pinned or unpinned is left alone.
* A pin must stay within ``max_pinned_gpus``, and leave every other model a place where it could go before.
* A pinned model loads no more, so that only its demand can tell when the pin has done its duty: it is lifted once the
  load ratio is below that of *marginal*, but not within the first hour.
* Nothing here is silent: each pin, each refusal (once per reason) and each end of a pin is a note.
"""

from typing import Final

from swapd.core.accounts import HOUR_S
from swapd.core.catalog import OnThrash
from swapd.core.commands import ThrashPinChanged
from swapd.core.feasibility import infeasible
from swapd.core.ids import SECOND, Duration
from swapd.core.node import Node
from swapd.core.operators import enter_pin, pinned_gpus
from swapd.core.reasons import PinnedBy, ThrashPin, Verdict
from swapd.core.sentences import number
from swapd.core.state import Model
from swapd.core.viability import MARGINAL_RATIO

PIN_LEAST: Final = Duration(HOUR_S * SECOND)


def attend(node: Node) -> None:
    """Lift what is not needed any more, then pin what thrashes."""
    if node.settings.on_thrash is not OnThrash.PIN or node.manual:
        return
    for model in _pinned(node):
        assert model.thrash_pin is not None
        ratio = model.demand.load_ratio(node.at, model.lhat)
        if node.at - model.thrash_pin >= PIN_LEAST and ratio < MARGINAL_RATIO:
            _lift(node, model, f"{model.name} is pinned no more: its demand (load ratio {ratio:.2f}) has gone down")
    judged = [node.models[name] for name in node.load.watched]
    thrashing = [model for model in judged if model.demand.verdict is Verdict.THRASHING and _may_pin(model)]
    for model in sorted(thrashing, key=lambda m: (-_worth(node, m), m.name)):
        _try(node, model)


def conform(node: Node) -> None:
    """Lift the pins that changed settings do not allow any more; the cheapest first."""
    pinned = sorted(_pinned(node), key=lambda m: (_worth(node, m), m.name))
    if node.settings.on_thrash is not OnThrash.PIN:
        for model in pinned:
            _lift(node, model, f"{model.name} is pinned no more: on_thrash is {node.settings.on_thrash.value} now")
        return
    for model in pinned:
        most = node.settings.max_pinned_gpus
        if most is None or pinned_gpus(node) > most:
            limit = "no longer set" if most is None else f"{most} now"
            _lift(node, model, f"{model.name} is pinned no more: max_pinned_gpus is {limit}")


def recall_pin(node: Node, model: Model) -> None:
    """Pin a model again that an earlier run had pinned, if that is still allowed."""
    if node.settings.on_thrash is OnThrash.PIN and not node.manual and _may_pin(model):
        _try(node, model)


def _try(node: Node, model: Model) -> None:
    obstacle = _obstacle(node, model)
    if obstacle:
        if obstacle != model.thrash_pin_refused:
            model.thrash_pin_refused = obstacle
            _say(node, model, ThrashPin.REFUSED, f"{model.name} thrashes but is not pinned: {obstacle}")
        return
    model.thrash_pin = node.at
    model.thrash_pin_refused = ""
    enter_pin(node, model)
    node.load.watch(model.name, node.at)
    partner = f" with {model.demand.partner}" if model.demand.partner else ""
    taken, most = pinned_gpus(node), node.settings.max_pinned_gpus
    detail = (
        f"{model.name} thrashes{partner} and is pinned now; pins take {taken} of at most {number(most or 0, 'GPU')}"
    )
    _say(node, model, ThrashPin.PINNED, f"{detail}, swapd unpin {model.name} takes it back")


def _obstacle(node: Node, model: Model) -> str:
    """Return why a model cannot be pinned; empty: it can."""
    most, wanted = node.settings.max_pinned_gpus, pinned_gpus(node, besides=model) + model.spec.footprint.gpus
    if most is None:
        return "max_pinned_gpus is not set"
    if wanted > most:
        return f"that would pin {number(wanted, 'GPU')}, and max_pinned_gpus is {most}"
    left = node.topology.placeable.bit_count() - wanted
    others = [m for m in node.models.values() if m.configured and m is not model and not m.pinned]
    could = [m for m in others if infeasible(node, m) is None]
    model.thrash_pin = node.at
    stranded = [m.name for m in could if m.spec.footprint.gpus > left or infeasible(node, m) is not None]
    model.thrash_pin = None
    return f"that would leave no room for {', '.join(stranded)}" if stranded else ""


def _may_pin(model: Model) -> bool:
    return model.configured and not model.pinned and model.pin_override is None


def _worth(node: Node, model: Model) -> float:
    """Return what its loads cost at present, per GPU that a pin would take."""
    return model.demand.hourly(node.at).caused_gpu_seconds / model.spec.footprint.gpus


def _pinned(node: Node) -> list[Model]:
    return [model for model in node.pins.values() if model.pinned_by is PinnedBy.ON_THRASH]


def _lift(node: Node, model: Model, detail: str) -> None:
    model.thrash_pin = None
    enter_pin(node, model)
    _say(node, model, ThrashPin.LIFTED, detail)


def _say(node: Node, model: Model, action: ThrashPin, detail: str) -> None:
    model.story.add(node.at, detail)
    node.story.add(node.at, detail)
    node.out.append(ThrashPinChanged(model.name, action, detail))
