"""Counts what came out of a simulated run: waits, loads, evictions, refusals, the share of time spent loading.

Reads only the events and commands that pass by. The window of every share runs from the first event to the last one
that was not a wake-up.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from swapd.core.catalog import ModelSpec
from swapd.core.commands import Command, Evicted, Grant, LoadFinished, Reject, VerdictChanged
from swapd.core.events import Event, Tick
from swapd.core.ids import SECOND, Duration, Instant, ModelName, RequestId
from swapd.core.reasons import LoadResult, Rejection, UnloadCause, Verdict


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
    #: loads that ended ready
    loads: int
    failed_loads: int
    #: how often it was evicted for another model
    evictions: int
    #: share of the window spent loading (whole swaps), 0–1; for the node weighted by GPUs
    load_fraction: float


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one run."""

    node: ModelReport
    models: Mapping[ModelName, ModelReport]
    #: every change of a verdict, in order
    verdicts: tuple[VerdictChanged, ...]
    window: Duration

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
    rejected: dict[Rejection, int] = field(default_factory=lambda: defaultdict(int))
    loads: int = 0
    failed_loads: int = 0
    evictions: int = 0
    loading: int = 0


class Counter:
    """An observer of the virtual node that adds up a report."""

    def __init__(self, *, gpus: int, footprints: Mapping[ModelName, ModelSpec]) -> None:
        self._gpus = gpus
        self._footprints = footprints
        self._tallies: dict[ModelName, _Tally] = defaultdict(_Tally)
        self._verdicts: list[VerdictChanged] = []
        self._first: Instant | None = None
        self._last = Instant(0)

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Count one step."""
        if self._first is None:
            self._first = event.at
        if not isinstance(event, Tick):
            self._last = event.at
        for command in commands:
            self._count(command)

    def report(self) -> Report:
        """Return the sums so far."""
        window = Duration(max(1, self._last - (self._first or 0)))
        models = {name: _summary([tally], tally.loading / window) for name, tally in sorted(self._tallies.items())}
        gpu_time = sum(tally.loading * self._gpus_of(name) for name, tally in self._tallies.items())
        return Report(
            node=_summary(list(self._tallies.values()), gpu_time / (self._gpus * window)),
            models=models,
            verdicts=tuple(self._verdicts),
            window=window,
        )

    def _count(self, command: Command) -> None:
        match command:
            case Grant():
                tally = self._tallies[command.model]
                tally.waits[command.request] = command.waited
                tally.cold_starts += command.cold_start
            case Reject():
                self._tallies[command.model].rejected[command.reason] += 1
            case LoadFinished():
                tally = self._tallies[command.model]
                tally.loads += command.result is LoadResult.READY
                tally.failed_loads += command.result is LoadResult.FAILED
                tally.loading += command.duration
            case Evicted(cause=UnloadCause.EVICTED):
                self._tallies[command.model].evictions += 1
            case VerdictChanged():
                self._verdicts.append(command)
            case _:
                pass

    def _gpus_of(self, name: ModelName) -> int:
        spec = self._footprints.get(name)
        return spec.footprint.gpus if spec else 1


def _summary(tallies: Sequence[_Tally], load_fraction: float) -> ModelReport:
    waits = sorted(wait for tally in tallies for wait in tally.waits.values())
    rejected: dict[Rejection, int] = defaultdict(int)
    for tally in tallies:
        for reason, count in tally.rejected.items():
            rejected[reason] += count
    return ModelReport(
        served=len(waits),
        cold_starts=sum(tally.cold_starts for tally in tallies),
        rejected=dict(rejected),
        mean_wait_s=sum(waits) / SECOND / len(waits) if waits else 0.0,
        p99_wait_s=quantile(waits, 0.99) / SECOND,
        max_wait_s=waits[-1] / SECOND if waits else 0.0,
        loads=sum(tally.loads for tally in tallies),
        failed_loads=sum(tally.failed_loads for tally in tallies),
        evictions=sum(tally.evictions for tally in tallies),
        load_fraction=load_fraction,
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
