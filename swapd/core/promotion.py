"""Decides which models had better not be swapped here, and what it would save to move them; pure, from a snapshot.

* A model whose week is settled in the hot tier belongs on GPUs of its own, whether or not it thrashes.
* A thrashing model is to be pinned if the node can spare its GPUs: within ``max_pinned_gpus`` (without one, a quarter
  of the GPUs: more makes everybody else wait), and with enough GPUs left for the largest other model. If it cannot,
  the model needs GPUs of its own elsewhere.
* What a pin of ``on_thrash`` keeps resident stays advised: the pin is the node's makeshift, not an operator's decision.
* What it saves is at most what its loads cost now, its own and the reloads of those it evicted: with its GPUs gone, the
  others may evict each other more often.

Models are ranked by the GPU-seconds of loading they have caused in the observed week and since the daemon's start. All
pins that are advised fit the node together: they are given out by rank, but first to those that have them already.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from swapd.core.accounts import NO_COSTS, Costs
from swapd.core.ids import ModelName
from swapd.core.reasons import Move, PinnedBy, Verdict
from swapd.core.tiers import Tier, Week
from swapd.core.view import ModelView, NodeView

#: share of the GPUs that may be pinned where no limit is set
PINNED_SHARE: Final = 4
_TIERS: Final = {Move.PIN: Tier.WARM, Move.DEDICATED: Tier.HOT}


@dataclass(frozen=True, slots=True)
class Pool:
    """What the models of a node share."""

    gpus: int
    #: GPUs that pins take: those for good, and those advised so far
    pinned_gpus: int
    #: GPUs that may be pinned
    most_pinned: int
    #: they may because nothing else is configured
    by_default: bool
    #: (GPUs, name) of every model that is not pinned for good, the largest first
    swapped: tuple[tuple[int, ModelName], ...]

    @classmethod
    def of(cls, view: NodeView) -> "Pool":
        """Return the pool of a node."""
        models = [(model.gpus, model.model, _settled(model)) for model in view.models if model.configured]
        return cls.among(models, gpus=view.topology.placeable.bit_count(), most_pinned=view.max_pinned_gpus)

    @classmethod
    def among(cls, models: Sequence[tuple[int, ModelName, bool]], *, gpus: int, most_pinned: int | None) -> "Pool":
        """Return the pool of these models: GPUs, name, and whether it is pinned for good."""
        pinned = sum(count for count, _, settled in models if settled)
        most = gpus // PINNED_SHARE if most_pinned is None else most_pinned
        swapped = sorted((-count, name) for count, name, settled in models if not settled)
        return cls(gpus, pinned, most, most_pinned is None, tuple((-count, name) for count, name in swapped))

    def with_pin(self, model: ModelView) -> "Pool":
        """Return the pool as it would be with one more pin."""
        swapped = tuple(one for one in self.swapped if one[1] != model.model)
        return replace(self, pinned_gpus=self.pinned_gpus + model.gpus, swapped=swapped)

    def stranded(self, model: ModelView) -> tuple[ModelName, ...]:
        """Return the models for which no GPUs would be left beside the pins, if this one were pinned."""
        left = self.gpus - self.pinned_gpus - model.gpus
        larger = takewhile(lambda other: other[0] > left, self.swapped)
        return tuple(name for gpus, name in larger if name != model.model and gpus <= self.gpus)

    def can_pin(self, model: ModelView) -> bool:
        """Say whether the node can spare the GPUs of a model for good."""
        return self.pinned_gpus + model.gpus <= self.most_pinned and not self.stranded(model)


@dataclass(frozen=True, slots=True)
class Advice:
    """Where one model had better be."""

    model: ModelView
    move: Move
    #: what the move amounts to; ``None``: it stays
    tier: Tier | None
    #: why it cannot simply be pinned: models that would find no room then
    stranded: tuple[ModelName, ...]
    #: GPU-seconds of loading that the move would save an hour, at most; 0 when it stays
    saves_gpu_seconds: float
    #: mean wait for loads that a request of it would be spared, seconds; 0 when it stays
    saves_wait_s: float
    #: one sentence that an operator can act on
    detail: str

    @property
    def caused_gpu_seconds(self) -> float:
        """GPU-seconds of loading that it has caused."""
        return caused(self.model)


def advice_on_all(view: NodeView) -> Iterator[Advice]:
    """Yield the advice on every configured model, in the order in which pins are given out."""
    return _advised((model for model in view.models if model.configured), Pool.of(view))


def advice_on(models: Iterable[ModelView], pool: Pool) -> tuple[Advice, ...]:
    """Return the advice on these models, the costliest first; it is right if no other ``may_move``."""
    return ranked(_advised(models, pool))


def ranked(advice: Iterable[Advice]) -> tuple[Advice, ...]:
    """Return advice with the costliest model first."""
    return tuple(sorted(advice, key=lambda one: (-one.caused_gpu_seconds, one.model.model)))


def _advised(models: Iterable[ModelView], pool: Pool) -> Iterator[Advice]:
    for model in sorted(models, key=_turn):
        advice = advise(model, pool)
        yield advice
        if advice.move is Move.PIN:
            pool = pool.with_pin(model)


def may_move(*, move: Move, verdict: Verdict, pinned_by: PinnedBy | None, week: Week | None) -> bool:
    """Say whether the advice on a model is, or may be, another one than to stay."""
    if move is not Move.STAY or verdict is Verdict.THRASHING or pinned_by is PinnedBy.ON_THRASH:
        return True
    return week is not None and week.tier is Tier.HOT


def _turn(model: ModelView) -> tuple[bool, bool, float, ModelName]:
    """Return in which order pins are given out."""
    return model.pinned_by is not PinnedBy.ON_THRASH, model.move is not Move.PIN, -caused(model), model.model


def caused(model: ModelView) -> float:
    """Return what it is ranked by: GPU-seconds of loading in the observed week, or since the start if that is more.

    The counts of the week are weighed from time to time; what came after stands in the totals first.
    """
    week = NO_COSTS if model.week is None else model.week.costs
    return max(week.caused_gpu_seconds, model.totals.caused_gpu_seconds)


def advise(model: ModelView, pool: Pool) -> Advice:
    """Return the advice on one model."""
    stranded = pool.stranded(model)
    move = _move(model, pool)
    if move is Move.STAY:
        return Advice(model, move, None, stranded, 0.0, 0.0, _stay(model))
    costs = _costs(model)
    detail = _sentence(model, move, pool, costs)
    return Advice(model, move, _TIERS[move], stranded, costs.caused_gpu_seconds, costs.wait_per_request, detail)


def _move(model: ModelView, pool: Pool) -> Move:
    if _hot(model.week):
        return Move.DEDICATED
    makeshift = model.pinned_by is PinnedBy.ON_THRASH
    if makeshift or (model.verdict is Verdict.THRASHING and not model.pinned):
        return Move.PIN if makeshift or pool.can_pin(model) else Move.DEDICATED
    return Move.STAY


def _costs(model: ModelView) -> Costs:
    """Return what it costs an hour: at present if that is much, else in the mean of its week."""
    if model.verdict is Verdict.THRASHING or model.week is None:
        return model.hourly
    return model.week.hourly()


def _sentence(model: ModelView, move: Move, pool: Pool, costs: Costs) -> str:
    name, gpus = model.model, f"{model.gpus} of {pool.gpus} GPUs"
    saved = f"{costs.caused_gpu_seconds:.0f} GPU-seconds of loading an hour"
    if model.pinned_by is PinnedBy.ON_THRASH:
        return (
            f"{name} is pinned because it thrashed ({gpus}): confirm it with swapd pin {name}, or give it its own GPUs"
        )
    if move is Move.PIN:
        gain = f"saves up to {saved} and {costs.wait_per_request:.1f} s of waiting per request"
        return f"{name} thrashes{_partner(model)}: swapd pin {name} takes {gpus} and {gain}{_victims(model)}"
    if not _hot(model.week):
        limit = f"the node cannot spare {gpus}{_why_not(model, pool)}"
        return f"{name} thrashes{_partner(model)} and costs {saved}: {limit}; give it its own GPUs, or add a node"
    assert model.week is not None
    rate = f"{model.week.requests_per_hour:.0f} requests an hour"
    demand = f"{name} is in demand with {rate} ({model.week.share:.0%} of this node's)"
    if model.verdict is Verdict.THRASHING and not model.pinned:
        return f"{demand}, thrashes{_partner(model)} and costs {saved}: give it its own GPUs"
    return f"{demand}: give it its own GPUs"


def _stay(model: ModelView) -> str:
    if model.pinned:
        return f"{model.model} is pinned"
    if model.verdict is Verdict.MARGINAL:
        return f"{model.model} is swapped often{_partner(model)}; watch it"
    if model.verdict is Verdict.UNKNOWN:
        return f"swapping {model.model} is not judged yet"
    return f"swapping {model.model} is {model.verdict.value}"


def _partner(model: ModelView) -> str:
    return f" with {model.partner}" if model.partner else ""


def _victims(model: ModelView) -> str:
    return f", and it evicts {_names(name for name, _ in model.evicts)} no more" if model.evicts else ""


def _why_not(model: ModelView, pool: Pool) -> str:
    stranded = pool.stranded(model)
    if pool.pinned_gpus + model.gpus > pool.most_pinned:
        return f" (pins take {pool.pinned_gpus}, and {_limit(pool)})"
    return f" (no room would be left for {_names(stranded)})"


def _limit(pool: Pool) -> str:
    if pool.by_default:
        return f"without max_pinned_gpus no more than {pool.most_pinned} may be pinned"
    return f"max_pinned_gpus is {pool.most_pinned}"


def _names(names: Iterable[ModelName]) -> str:
    """Name up to three models."""
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


def _hot(week: Week | None) -> bool:
    """Say whether a week is settled in the hot tier."""
    return week is not None and week.tier is Tier.HOT and not week.provisional


def _settled(model: ModelView) -> bool:
    """Say whether a pin is an operator's decision."""
    return model.pinned and model.pinned_by is not PinnedBy.ON_THRASH
