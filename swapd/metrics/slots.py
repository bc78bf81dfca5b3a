"""Holds counts and timings in plain slots, cheap enough for every request, and copies them for the page.

A labelled call into the client library costs 1–2 µs; a slot costs a tenth of that. Label values are tuples in the order
of the metric's declaration. Everything runs on the loop thread; ``freeze`` gives a copy that another thread may read.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

from swapd.metrics.metric import Kind
from swapd.metrics.registry import BY_NAME, METRICS

Labels = tuple[str, ...]
NO_LABELS: Final[Labels] = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """One frozen series of a histogram or summary."""

    #: observations per bucket, not cumulative, the last one above every bound; empty for a summary
    counts: tuple[int, ...]
    count: int
    sum_seconds: float


class Series:
    """One series of a histogram or summary."""

    __slots__ = ("bounds", "count", "counts", "sum_seconds")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        #: as in ``Timing``
        self.counts = [0] * (len(bounds) + 1) if bounds else []
        self.count = 0
        self.sum_seconds = 0.0

    def add(self, seconds: float) -> None:
        """Add an observation."""
        self.count += 1
        self.sum_seconds += seconds
        if self.counts:
            self.counts[bisect_left(self.bounds, seconds)] += 1

    def add_all(self, seconds: Sequence[float]) -> None:
        """Add observations."""
        self.count += len(seconds)
        self.sum_seconds += sum(seconds)
        counts = self.counts
        if counts:
            for bucket in map(bisect_left, repeat(self.bounds), seconds):
                counts[bucket] += 1


class Counter:
    """One counter; for paths where even the look-up of its name counts."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: dict[Labels, float] = {}

    def add(self, labels: Labels = NO_LABELS, by: float = 1) -> None:
        """Add ``by``, which is not negative."""
        try:
            self.values[labels] += by
        except KeyError:
            self.values[labels] = by


class Timings:
    """One histogram or summary."""

    __slots__ = ("bounds", "series")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.series: dict[Labels, Series] = {}

    def of(self, labels: Labels) -> Series:
        """Return a series, which is there from now on; who keeps it knows when ``keep_models`` has removed it."""
        series = self.series.get(labels)
        if series is None:
            series = self.series[labels] = Series(self.bounds)
        return series

    def observe(self, labels: Labels, seconds: float) -> None:
        """Add an observation."""
        self.of(labels).add(seconds)


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    """All slots at one moment, by metric name."""

    counters: Mapping[str, Mapping[Labels, float]]
    timings: Mapping[str, Mapping[Labels, Timing]]


class Slots:
    """The counters, histograms and summaries of the declared metrics that ``names`` admits."""

    def __init__(self, admits: Callable[[str], bool]) -> None:
        """``admits`` says of a metric's name whether it is fed here (the others come from the snapshot)."""
        fed = [metric for metric in METRICS if admits(metric.name)]
        self._counters = {m.name: Counter() for m in fed if m.kind is Kind.COUNTER}
        self._timings = {m.name: Timings(m.buckets) for m in fed if m.kind in {Kind.HISTOGRAM, Kind.SUMMARY}}

    def counter(self, name: str) -> Counter:
        """Return a counter; ``KeyError`` for a name that is not declared as one."""
        return self._counters[name]

    def timings(self, name: str) -> Timings:
        """Return a histogram or summary; ``KeyError`` for a name that is not declared as one."""
        return self._timings[name]

    def keep_models(self, models: Iterable[str]) -> None:
        """Remove every series whose label ``model`` is not among ``models``."""
        kept = frozenset(models)
        tables: dict[str, dict[Labels, float] | dict[Labels, Series]] = {
            **{name: counter.values for name, counter in self._counters.items()},
            **{name: timings.series for name, timings in self._timings.items()},
        }
        for name, table in tables.items():
            labels = BY_NAME[name].labels
            if "model" not in labels:
                continue
            at = labels.index("model")
            for gone in [key for key in table if key[at] not in kept]:
                del table[gone]

    def freeze(self) -> FrozenSlots:
        """Return a copy that no longer changes."""
        return FrozenSlots(
            counters={name: dict(counter.values) for name, counter in self._counters.items()},
            timings={
                name: {
                    labels: Timing(tuple(series.counts), series.count, series.sum_seconds)
                    for labels, series in timings.series.items()
                }
                for name, timings in self._timings.items()
            },
        )
