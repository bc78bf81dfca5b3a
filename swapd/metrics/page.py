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

    def render(self, snapshot: Snapshot, accept: str) -> Generator[None, None, tuple[bytes, str]]:
        """Return the page and its content type: OpenMetrics where ``accept`` asks for it, else Prometheus text."""
        encode, content_type = choose_encoder(accept)
        written: list[bytes] = []
        for metric in METRICS:
            head: tuple[bytes, ...] = ()
            for family in _families(metric, snapshot):
                # a family without a series is noise, and promtool says so
                text = encode(_One(family)).removesuffix(_END) if family.samples else b""
                lines = text.splitlines(keepends=True)
                names = tuple(line for line in lines if line.startswith(b"# "))
                written += lines if names != head else lines[len(names) :]
                head = names or head
                yield
        for collector in self._defaults:
            written += [encode(_One(family)).removesuffix(_END) for family in collector.collect()]
            yield
        return b"".join(written) + (encode(_One()) if encode is not generate_latest else b""), content_type


class _One(Collector):
    """What the library's encoders take: a collection, here of one family, or none."""

    def __init__(self, *families: Family) -> None:
        self._families = families

    @override
    def collect(self) -> Iterator[Family]:
        return iter(self._families)


def _families(metric: Metric, snapshot: Snapshot) -> Iterator[Family]:
    """Yield the metric's series, a few at a time."""
    named = (metric.name, metric.help)
    match metric.kind:
        case Kind.GAUGE:
            for labels, value in _few(_values(metric, snapshot), SERIES):
                ...
        case _:
            assert_never(metric.kind)


def _plain(family: GaugeMetricFamily | CounterMetricFamily, samples: Samples) -> Family:
    for labels, value in samples.items():
        family.add_metric(labels, value)
    return family


def _cumulative(bounds: tuple[float, ...], timing: Timing) -> list[tuple[str, float]]:
    names = (*(str(float(bound)) for bound in bounds), "+Inf")
    return list(zip(names, accumulate(timing.counts), strict=True))
