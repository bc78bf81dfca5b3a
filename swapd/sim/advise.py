"""Finds out which models of a trace can be swapped, and which to pin or to give GPUs of their own, by trying it.

Rules that hold here:

* The goal: at most one request in a hundred waits longer than the limit, or is refused.
* A pin costs no GPU, so it is tried first; a model gets GPUs of its own where no pin is worth it. One step at a time,
  the best of those tried, measured by playing the whole trace again. A step that does not lower the share above the
  limit by a twentieth is not advised.
* Tried are the models that wait too long most often and those whose loads cost the pool most. A long trace is tried on
  its busiest day first.
* The requests of a model with GPUs of its own go on counting, as answered at once: it never has to be loaded.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from swapd.core.ids import SECOND, Duration, Instant, ModelName
from swapd.sim.rehearse import rehearse
from swapd.sim.report import Report
from swapd.sim.study import Rules, Study, play
from swapd.sim.workload import Arrival

GOAL: Final = 0.01
_LEAST_GAIN: Final = 0.05
#: a pin that gains this much is taken before any dedication is tried
_WORTHWHILE_PIN: Final = 0.10
_TRIED: Final = 3
_MAX_STEPS: Final = 8
_DAY: Final = Duration(86_400 * SECOND)

PIN, DEDICATE = "pin", "dedicate"


@dataclass(frozen=True, slots=True)
class Measured:
    """What all requests of the trace get, those of dedicated models included."""

    #: above the limit or refused, 0–1
    over_share: float
    wait_mean_s: float
    wait_p99_s: float
    loads_per_h: float
    loading_share: float


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, on top of the ones before it."""

    action: str
    model: ModelName
    gpus: int
    before: Measured
    after: Measured


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do, and what comes of it."""

    limit: Duration
    #: share of the requests that may be above the limit
    goal: float
    before: Measured
    steps: tuple[Step, ...]
    #: models whose load alone takes longer than the limit and that are still swapped
    slow: tuple[ModelName, ...]
    #: models that stay swapped
    swapped: tuple[ModelName, ...]
    #: of these, the ones that need so many GPUs that beside them no further model of one GPU can be pinned
    wide: tuple[ModelName, ...]

    @property
    def after(self) -> Measured:
        """What comes of all steps."""
        return self.steps[-1].after if self.steps else self.before

    @property
    def met(self) -> bool:
        """Whether the goal is met then."""
        return self.after.over_share <= self.goal


@dataclass(frozen=True, slots=True)
class _Plan:
    """A node with some models pinned and some gone to GPUs of their own."""

    study: Study
    pins: tuple[ModelName, ...] = ()
    dedicated: tuple[ModelName, ...] = ()

    def study_now(self) -> Study:
        return self.study.without(self.dedicated).pinning(self.pins)

    def with_step(self, action: str, model: ModelName) -> "_Plan":
        if action == PIN:
            return replace(self, pins=(*self.pins, model))
        return replace(self, dedicated=(*self.dedicated, model))


@dataclass(slots=True)
class _Search:
    rules: Rules
    limit: Duration
    told: Callable[[str], None]
    #: tried on the whole trace and found to be of no use
    useless: list[tuple[str, ModelName]] = field(default_factory=list)

    def measure(self, plan: _Plan, study: Study | None = None) -> tuple[Measured, Report]:
        """Play a plan; on another trace, if one is given."""
        base = plan.study if study is None else study
        played = replace(plan, study=base).study_now()
        report = play(played, self.rules).report
        return _measured(report, len(base.arrivals), self.limit), report

    def next_step(self, plan: _Plan, now: Measured, report: Report) -> tuple[Step, _Plan, Report] | None:
        """Return the best step from here; ``None``: none is worth it."""
        short = replace(plan.study, arrivals=busiest(plan.study.arrivals, _DAY))
        is_short = len(short.arrivals) < len(plan.study.arrivals)
        base = self.measure(plan, short)[0] if is_short else now
        suspects = _suspects(plan, report, self.limit)
        pins = self._ranked(plan, PIN, suspects, base, short)
        worthwhile = [model for gain, model in pins if gain >= _WORTHWHILE_PIN]
        found = self._first(plan, PIN, worthwhile, now)
        if found is None:
            dedications = [model for _, model in self._ranked(plan, DEDICATE, suspects, base, short)]
            found = self._first(plan, DEDICATE, dedications, now)
        return found or self._first(plan, PIN, [model for _, model in pins if model not in worthwhile], now)

    def _first(
        self, plan: _Plan, action: str, models: Iterable[ModelName], now: Measured
    ) -> tuple[Step, _Plan, Report] | None:
        """Return the first of these steps that is worth it on the whole trace."""
        for model in models:
            further = plan.with_step(action, model)
            after, report = self.measure(further)
            if _gain(now, after) >= _LEAST_GAIN:
                self.told(f"{action} {model}: {after.over_share:.1%} above the limit")
                return Step(action, model, _gpus(plan, model), now, after), further, report
            self.useless.append((action, model))
        return None

    def _ranked(
        self, plan: _Plan, action: str, suspects: Iterable[ModelName], base: Measured, short: Study
    ) -> list[tuple[float, ModelName]]:
        """Return gain and model of the steps that look worth it, the best first; the gain of a dedication per GPU."""
        found = []
        for model in suspects:
            further = plan.with_step(action, model)
            if (action, model) in self.useless or (action == PIN and not _has_room(further.study_now())):
                continue
            gain = _gain(base, self.measure(further, short)[0])
            if gain >= _LEAST_GAIN:
                found.append((gain / (_gpus(plan, model) if action == DEDICATE else 1), model))
        return sorted(found, key=lambda one: (-one[0], one[1]))


def advise(study: Study, rules: Rules, limit: Duration, told: Callable[[str], None] = lambda _: None) -> Advice:
    """Try pins and dedications until the goal is met or nothing helps any more; ``told`` hears of each step taken."""
    search = _Search(rules, limit, told)
    plan = _Plan(study)
    steps: list[Step] = []
    before, report = search.measure(plan)
    now = before
    told(f"as it is: {now.over_share:.1%} above the limit")
    while now.over_share > GOAL and len(steps) < _MAX_STEPS:
        found = search.next_step(plan, now, report)
        if found is None:
            break
        step, plan, report = found
        steps.append(step)
        now = step.after
    kept = {name for name, spec in study.catalog.models.items() if spec.pinned} | {step.model for step in steps}
    asked = {arrival.model for arrival in study.arrivals}
    swapped = [name for name in sorted(study.catalog.models) if name not in kept]
    slow = [name for name in swapped if name in asked and study.catalog.models[name].load_estimate > limit]
    return Advice(limit, GOAL, before, tuple(steps), tuple(slow), tuple(swapped), tuple(_wide(plan, swapped)))


def busiest(arrivals: Sequence[Arrival], window: Duration) -> Sequence[Arrival]:
    """Return the stretch of this length with most requests; all if the trace is hardly longer."""
    if not arrivals or arrivals[-1].at - arrivals[0].at <= 1.5 * window:
        return arrivals
    times = [arrival.at for arrival in arrivals]
    ends = [bisect_left(times, at + window) for at in times]
    first = max(range(len(times)), key=lambda place: ends[place] - place)
    begin = Instant(times[first])
    return [replace(arrival, at=Instant(arrival.at - begin)) for arrival in arrivals[first : ends[first]]]


def _suspects(plan: _Plan, report: Report, limit: Duration) -> Iterable[ModelName]:
    """Return the models that wait too long most often, and those whose loads cost the pool most."""
    free = [name for name in report.models if name not in plan.pins and not plan.study.catalog.models[name].pinned]
    waiting = sorted(free, key=lambda name: (-report.models[name].over(limit), name))
    costly = sorted(free, key=lambda name: (-report.caused.get(name, 0.0), name))
    return dict.fromkeys([*waiting[:_TRIED], *costly[:_TRIED]])


def _wide(plan: _Plan, swapped: Iterable[ModelName]) -> list[ModelName]:
    specs = plan.study.catalog.models
    pinned = sum(spec.footprint.gpus for name, spec in specs.items() if spec.pinned or name in plan.pins)
    most = len(plan.study.topology.gpus) - pinned
    return [name for name in swapped if specs[name].footprint.gpus >= most]


def _gpus(plan: _Plan, model: ModelName) -> int:
    return plan.study.catalog.models[model].footprint.gpus


def _has_room(study: Study) -> bool:
    return not any(place.why for place in rehearse(study.topology, study.catalog))


def _gain(before: Measured, after: Measured) -> float:
    """Return by which part of itself the share above the limit falls."""
    return (before.over_share - after.over_share) / before.over_share if before.over_share else 0.0


def _measured(report: Report, requests: int, limit: Duration) -> Measured:
    node = report.node
    elsewhere = requests - node.requests
    waits = sorted((*node.waits, *([Duration(0)] * elsewhere)))
    return Measured(
        over_share=node.over(limit) / max(1, requests),
        wait_mean_s=sum(waits) / SECOND / max(1, len(waits)),
        wait_p99_s=(waits[int(0.99 * (len(waits) - 1))] / SECOND) if waits else 0.0,
        loads_per_h=node.loads / (report.window / SECOND / 3600),
        loading_share=node.load_fraction,
    )
