"""Renders the page from a frozen snapshot, in steps of a fraction of a millisecond.

Three hundred models have some ten thousand series, which take a tenth of a second.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Final, TypeVar, assert_never

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
from swapd.metrics.node import NODE_METRICS, OF_ALL_MODELS
from swapd.metrics.now import Now, Samples
from swapd.metrics.registry import METRICS
from swapd.metrics.slots import FrozenSlots, Labels, Timing

T = TypeVar("T")

SERIES: Final = 40
"""Written in one step."""
MODELS: Final = 20
"""Read in one step."""
_END: Final = b"# EOF\n"


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
        """Make the page in small steps; return it and its content type after the last one.

        OpenMetrics where ``accept`` asks for it, else Prometheus text.
        """
        encode, content_type = choose_encoder(accept)
        parts = _parts(snapshot.now)
        yield
        written: list[bytes] = []
        for metric in METRICS:
            begun = False
            for family in _pieces(metric, snapshot, parts):
                text = encode(_One(family)).removesuffix(_END)
                written.append(_without_head(text) if begun else text)
                begun = True
                yield
        for collector in self._defaults:
            written += [encode(_One(family)).removesuffix(_END) for family in collector.collect()]
            yield
        return b"".join(written) + encode(_One()), content_type


class _One(Collector):
    """What the library's encoders take: a collection, here of one family, or of none."""

    def __init__(self, *families: Family) -> None:
        self._families = families

    @override
    def collect(self) -> Iterator[Family]:
        return iter(self._families)


def _without_head(text: bytes) -> bytes:
    at = 0
    while text.startswith(b"#", at):
        at = text.index(b"\n", at) + 1
    return text[at:]


def _parts(now: Now) -> tuple[Now, ...]:
    """Return the same with a few of the models in each."""
    models = _batches(now.view.models, MODELS)
    return tuple(replace(now, view=replace(now.view, models=tuple(few))) for few in models)


def _pieces(metric: Metric, snapshot: Snapshot, parts: Sequence[Now]) -> Iterator[Family]:
    """Yield the metric's series, a few at a time; nothing for a metric without one.

    A family without a series would be noise, and promtool says so.
    """
    named, labels, unit = (metric.name, metric.help), metric.labels, metric.unit
    match metric.kind:
        case Kind.GAUGE | Kind.COUNTER:
            for samples in _samples(metric, snapshot, parts):
                for few in _batches(samples.items(), SERIES):
                    plain = GaugeMetricFamily if metric.kind is Kind.GAUGE else CounterMetricFamily
                    yield _plain(plain(*named, labels=labels, unit=unit), few)
        case Kind.HISTOGRAM:
            for timings in _batches(snapshot.slots.timings[metric.name].items(), SERIES // len(metric.buckets)):
                histogram = HistogramMetricFamily(*named, labels=labels, unit=unit)
                for values, timing in timings:
                    histogram.add_metric(values, _cumulative(metric.buckets, timing), timing.sum_seconds)
                yield histogram
        case Kind.SUMMARY:
            for timings in _batches(snapshot.slots.timings[metric.name].items(), SERIES):
                summary = SummaryMetricFamily(*named, labels=labels, unit=unit)
                for values, timing in timings:
                    summary.add_metric(values, timing.count, timing.sum_seconds)
                yield summary
        case _:
            assert_never(metric.kind)


def _samples(metric: Metric, snapshot: Snapshot, parts: Sequence[Now]) -> Iterator[Samples]:
    """Yield the values of a gauge or counter, those of a few models at a time where that can be."""
    read = NODE_METRICS.get(metric.name)
    if read is None:
        yield snapshot.slots.counters[metric.name]
    elif "model" in metric.labels and metric.name not in OF_ALL_MODELS:
        for part in parts:
            yield read(part)
    else:
        yield read(snapshot.now)


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _plain(family: GaugeMetricFamily | CounterMetricFamily, samples: Iterable[tuple[Labels, float]]) -> Family:
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _cumulative(bounds: tuple[float, ...], timing: Timing) -> list[tuple[str, float]]:
    names = (*(str(float(bound)) for bound in bounds), "+Inf")
    return list(zip(names, accumulate(timing.counts), strict=True))
