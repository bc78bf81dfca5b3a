"""Counts what came out of a simulated run: waits, loads, evictions, refusals, the share of time spent loading.

Reads only the events and commands that pass by. The window of every share runs from the first event to the last one
that was not a wake-up.
"""

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from swapd.core.catalog import ModelSpec
from swapd.core.commands import Command, Evicted, Grant, LoadFinished, Reject, Transitioned, VerdictChanged
from swapd.core.events import Event, Tick
from swapd.core.ids import SECOND, Duration, InstanceId, Instant, ModelName, RequestId
from swapd.core.reasons import LoadResult, Rejection, State, UnloadCause, Verdict
from swapd.core.view import NodeView


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What one model experienced, or the whole node."""

    served: int
    #: of the served ones, how many waited for a load
    cold_starts: int
    rejected: Mapping[Rejection, int]
    mean_wait_s: float
    p99_wait_s: float
    max_wait_s: float
    #: the longest wait until the model was ready; what comes on top is waiting for a slot of its engine
    max_ready_wait_s: float
    #: of the served ones, shortest first
    waits: tuple[Duration, ...] = field(repr=False)
    #: loads that ended ready
    loads: int
    failed_loads: int
    #: of the loads, those soon after the model's own eviction (see ``core.viability``)
    relapses: int
    #: how often it was evicted for another model
    evictions: int
    #: share of the window spent loading (whole swaps), 0–1; for the node weighted by GPUs
    load_fraction: float
    #: share of the window under each verdict, 0–1; of the node: mean of its models. Who had no load is never judged
    verdicts: Mapping[Verdict, float]

    @property
    def delayed(self) -> int:
        """How many of the served requests were not granted at once."""
        return len(self.waits) - bisect_right(self.waits, 0)

    def wait_s(self, share: float) -> float:
        """Return the wait that this share of the served requests does not exceed."""
        return quantile(self.waits, share) / SECOND

    def over(self, limit: Duration) -> int:
        """Return how many requests waited longer than a limit, or were refused."""
        return len(self.waits) - bisect_right(self.waits, limit) + sum(self.rejected.values())

    @property
    def requests(self) -> int:
        """How many requests were answered, served or refused."""
        return self.served + sum(self.rejected.values())


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one run."""

    node: ModelReport
    models: Mapping[ModelName, ModelReport]
    #: every change of a verdict, in order
    verdicts: tuple[VerdictChanged, ...]
    window: Duration
    #: GPU-seconds of loading that each model caused, its own loads and the reloads of those it evicted
    caused: Mapping[ModelName, float] = field(default_factory=dict)

    def thrashing(self) -> dict[ModelName, VerdictChanged]:
        """Return the models that were found thrashing, by name, each with the first verdict that said so."""
        found: dict[ModelName, VerdictChanged] = {}
        for note in self.verdicts:
            if note.after is Verdict.THRASHING:
                found.setdefault(note.model, note)
        return dict(sorted(found.items()))


@dataclass(slots=True)
class _Tally:
    """Sums of one model."""

    #: by request: one that was granted a second time counts once
    waits: dict[RequestId, Duration] = field(default_factory=dict)
    cold_starts: int = 0
    ready_wait: int = 0
    rejected: dict[Rejection, int] = field(default_factory=lambda: defaultdict(int))
    loads: int = 0
    failed_loads: int = 0
    relapses: int = 0
    evictions: int = 0
    loading: int = 0
    #: the verdict now, since when, and for how long each was held before
    verdict: Verdict = Verdict.UNKNOWN
    judged: Instant = Instant(0)
    held: dict[Verdict, int] = field(default_factory=lambda: defaultdict(int))


class Counter:
    """An observer of the virtual node that adds up a report."""

    def __init__(self, *, gpus: int, footprints: Mapping[ModelName, ModelSpec]) -> None:
        self._gpus = gpus
        self._footprints = footprints
        self._tallies: dict[ModelName, _Tally] = defaultdict(_Tally)
        self._verdicts: list[VerdictChanged] = []
        #: by instance that serves: since when
        self._ready: dict[InstanceId, Instant] = {}
        self._first: Instant | None = None
        self._last = Instant(0)

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Count one step."""
        if self._first is None:
            self._first = event.at
        if not isinstance(event, Tick):
            self._last = event.at
        for command in commands:
            self._count(command, event.at)

    def report(self, view: NodeView | None = None) -> Report:
        """Return the sums so far; with the node as it is now, what its models have caused as well."""
        begin = self._first or Instant(0)
        window = Duration(max(1, self._last - begin))
        for tally in self._tallies.values():
            self._judged(tally, tally.verdict, self._last)
        models = {
            name: _summary([tally], tally.loading / window, window) for name, tally in sorted(self._tallies.items())
        }
        gpu_time = sum(tally.loading * self._gpus_of(name) for name, tally in self._tallies.items())
        return Report(
            node=_summary(list(self._tallies.values()), gpu_time / (self._gpus * window), window),
            models=models,
            verdicts=tuple(self._verdicts),
            window=window,
            caused={} if view is None else {model.model: model.caused_gpu_seconds for model in view.models},
        )

    def _count(self, command: Command, at: Instant) -> None:
        match command:
            case Grant():
                tally = self._tallies[command.model]
                tally.waits[command.request] = command.waited
                tally.cold_starts += command.cold_start
                tally.ready_wait = max(tally.ready_wait, self._ready.get(command.instance, 0) - at + command.waited)
            case Transitioned(before=State.LOADING | State.WAKING, after=State.READY):
                self._ready[command.instance] = at
            case Transitioned(after=State.GONE):
                self._ready.pop(command.instance, None)
            case Reject():
                self._tallies[command.model].rejected[command.reason] += 1
            case LoadFinished():
                tally = self._tallies[command.model]
                tally.loads += command.result is LoadResult.READY
                tally.relapses += command.relapse
                tally.failed_loads += command.result is LoadResult.FAILED
                tally.loading += command.duration
            case Evicted(cause=UnloadCause.EVICTED):
                self._tallies[command.model].evictions += 1
            case VerdictChanged():
                self._verdicts.append(command)
                self._judged(self._tallies[command.model], command.after, at)
            case _:
                pass

    def _judged(self, tally: _Tally, verdict: Verdict, at: Instant) -> None:
        """Close the time under the last verdict; nobody is judged before the first event."""
        tally.held[tally.verdict] += at - max(tally.judged, self._first or 0)
        tally.verdict, tally.judged = verdict, at

    def _gpus_of(self, name: ModelName) -> int:
        spec = self._footprints.get(name)
        return spec.footprint.gpus if spec else 1


def _summary(tallies: Sequence[_Tally], load_fraction: float, window: Duration) -> ModelReport:
    waits = sorted(wait for tally in tallies for wait in tally.waits.values())
    rejected: dict[Rejection, int] = defaultdict(int)
    for tally in tallies:
        for reason, count in tally.rejected.items():
            rejected[reason] += count
    held = {
        verdict: sum(tally.held[verdict] for tally in tallies) / window / max(1, len(tallies)) for verdict in Verdict
    }
    return ModelReport(
        served=len(waits),
        cold_starts=sum(tally.cold_starts for tally in tallies),
        rejected=dict(rejected),
        mean_wait_s=sum(waits) / SECOND / len(waits) if waits else 0.0,
        p99_wait_s=quantile(waits, 0.99) / SECOND,
        max_wait_s=waits[-1] / SECOND if waits else 0.0,
        max_ready_wait_s=max((tally.ready_wait for tally in tallies), default=0) / SECOND,
        waits=tuple(waits),
        loads=sum(tally.loads for tally in tallies),
        failed_loads=sum(tally.failed_loads for tally in tallies),
        relapses=sum(tally.relapses for tally in tallies),
        evictions=sum(tally.evictions for tally in tallies),
        load_fraction=load_fraction,
        verdicts=held,
    )


def quantile(ordered: Sequence[int], share: float) -> int:
    """Return the smallest value that at least this share of the ordered values does not exceed; 0 for none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0


def table(rows: Iterable[tuple[str, Report]]) -> str:
    """Lay named reports out as a text table, one line each."""
    lines = [f"{'run':<34}{'served':>8}{'refused':>9}{'mean s':>9}{'p99 s':>9}{'loads':>7}{'evicted':>9}{'loading':>9}"]
    for name, report in rows:
        node = report.node
        refused = sum(node.rejected.values())
        lines.append(
            f"{name:<34}{node.served:>8}{refused:>9}{node.mean_wait_s:>9.1f}{node.p99_wait_s:>9.1f}"
            f"{node.loads:>7}{node.evictions:>9}{node.load_fraction:>9.1%}"
        )
    return "\n".join(lines)
