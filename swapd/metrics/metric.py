"""Says what a declared metric is: a name with a type, labels, a sentence and, for a histogram, its buckets."""

import enum
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """The Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    #: without quantiles: ``_sum`` and ``_count``, for a mean
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as it stands on the page."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    #: one sentence; also the reference page's text
    help: str
    #: upper bounds in seconds, without +Inf; histograms only
    buckets: tuple[float, ...] = ()

    @property
    def unit(self) -> str:
        """The unit that the name ends with; empty for plain numbers."""
        stem = self.name.removesuffix("_total")
        return next((unit for unit in ("seconds", "bytes") if stem.endswith(f"_{unit}")), "")


def counter(name: str, labels: tuple[str, ...], text: str) -> Metric:
    """Declare a counter."""
    return Metric(name, Kind.COUNTER, labels, text)


def gauge(name: str, labels: tuple[str, ...], text: str) -> Metric:
    """Declare a gauge."""
    return Metric(name, Kind.GAUGE, labels, text)


def histogram(name: str, labels: tuple[str, ...], buckets: tuple[float, ...], text: str) -> Metric:
    """Declare a histogram; ``buckets`` are upper bounds in seconds, without +Inf."""
    return Metric(name, Kind.HISTOGRAM, labels, text, buckets)


def summary(name: str, labels: tuple[str, ...], text: str) -> Metric:
    """Declare a summary."""
    return Metric(name, Kind.SUMMARY, labels, text)
