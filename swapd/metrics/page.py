"""Renders the page from a frozen snapshot; runs on a worker thread, because a hundred models take milliseconds."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import assert_never

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from typing_extensions import override

from swapd.metrics.metric import Kind, Metric
from swapd.metrics.node import NODE_METRICS
from swapd.metrics.now import Now, Samples
from swapd.metrics.registry import METRICS
from swapd.metrics.slots import FrozenSlots, Timing


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the page is made of, at one moment."""

    now: Now
    slots: FrozenSlots


class Renderer:
    """Makes pages; holds the collectors of the client library's defaults, which belong to this process."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._defaults: tuple[Collector, ...] = (
            ProcessCollector(registry=registry),
            PlatformCollector(registry=registry),
            GCCollector(registry=registry),
        )

    def render(self, snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
        """Return the page and its content type: OpenMetrics where ``accept`` asks for it, else Prometheus text."""
        encode, content_type = choose_encoder(accept)
        return encode(_Page(snapshot, self._defaults)), content_type


class _Page(Collector):
    def __init__(self, snapshot: Snapshot, defaults: tuple[Collector, ...]) -> None:
        self._snapshot = snapshot
        self._defaults = defaults

    @override
    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            family = _family(metric, self._snapshot)
            if family.samples:  # a family without a series is noise, and promtool says so
                yield family
        for collector in self._defaults:
            yield from collector.collect()


def _family(metric: Metric, snapshot: Snapshot) -> Family:
    read, named = NODE_METRICS.get(metric.name), (metric.name, metric.help)
    match metric.kind:
        case Kind.GAUGE:
            assert read is not None, f"{metric.name} is declared but not read from the snapshot"
            return _plain(GaugeMetricFamily(*named, labels=metric.labels, unit=metric.unit), read(snapshot.now))
        case Kind.COUNTER:
            values = snapshot.slots.counters[metric.name] if read is None else read(snapshot.now)
            return _plain(CounterMetricFamily(*named, labels=metric.labels, unit=metric.unit), values)
        case Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(*named, labels=metric.labels, unit=metric.unit)
            for labels, timing in snapshot.slots.timings[metric.name].items():
                histogram.add_metric(labels, _cumulative(metric.buckets, timing), timing.sum_seconds)
            return histogram
        case Kind.SUMMARY:
            summary = SummaryMetricFamily(*named, labels=metric.labels, unit=metric.unit)
            for labels, timing in snapshot.slots.timings[metric.name].items():
                summary.add_metric(labels, timing.count, timing.sum_seconds)
            return summary
        case _:
            assert_never(metric.kind)


def _plain(family: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Family:
    for labels, value in samples.items():
        family.add_metric(labels, value)
    return family


def _cumulative(bounds: tuple[float, ...], timing: Timing) -> list[tuple[str, float]]:
    names = (*(str(float(bound)) for bound in bounds), "+Inf")
    return list(zip(names, accumulate(timing.counts), strict=True))
