"""Tells the course of a load: where its weights came from, how long that took, and what went on when.

Rules that hold here: what the load had to wait for, one stage after the other, is in ``stages``; what really went on,
side by side, is in ``timeline``. A fetch counts as a stage only while the load waited for nothing else.
"""

from collections.abc import Iterator

from swapd.core.catalog import Source
from swapd.core.commands import StageSpan
from swapd.core.ids import Duration, Instant
from swapd.core.reasons import Stage
from swapd.core.state import Instance


def source_of(instance: Instance) -> Source:
    """Return where the weights of a load came from."""
    came = instance.model.weights.came
    # a pinned model is booked in the very moment in which its copy has come
    if came is not None and came[1] >= instance.waited_from:
        return Source.REMOTE
    return Source.PAGE_CACHE if instance.warm else Source.CACHE


def load_time_of(instance: Instance, source: Source, end: Instant) -> Duration:
    """Return how long a load took from the start of its engine, with the fetch before it if there was one."""
    came = instance.model.weights.came
    fetch = came[1] - came[0] if source is Source.REMOTE and came is not None else 0
    return Duration(fetch + end - instance.started_at)


def stages_of(instance: Instance, end: Instant) -> dict[Stage, Duration]:
    """Return how long each stage of a load took."""
    stages: dict[Stage, Duration] = {}
    for stage, begin, until in waited_through(instance, end):
        stages[stage] = Duration(stages.get(stage, 0) + until - begin)
    return stages


def waited_through(instance: Instance, end: Instant) -> Iterator[tuple[Stage, Instant, Instant]]:
    """Yield the stages that a load waited for, one after the other: stage, begin, end."""
    if instance.starved is not None:
        yield Stage.FETCH, *instance.starved
    yield from _staged(instance, end)


def _staged(instance: Instance, end: Instant) -> Iterator[tuple[Stage, Instant, Instant]]:
    ends = [begin for _, begin in instance.timeline[1:]] + [end]
    for (stage, begin), until in zip(instance.timeline, ends, strict=True):
        yield stage, begin, until


def read_ahead(instance: Instance, since: Instant, end: Instant) -> Duration:
    """Return for how long between two moments its weights were read into memory, beside what the load waited for."""
    weights = instance.model.weights
    spans = [(begin, until) for stage, begin, until in weights.ended if stage is Stage.PAGE_CACHE]
    if weights.warming is not None:
        spans.append((weights.warming.since, end))
    return Duration(sum(max(0, min(until, end) - max(begin, since)) for begin, until in spans))


def timeline_of(instance: Instance, end: Instant) -> tuple[StageSpan, ...]:
    """Return everything that went on from the first waiter to the end of a load, in order of beginning."""
    origin, weights = instance.waited_from, instance.model.weights
    spans = [(Stage.QUEUED, origin, instance.reserved_at)]
    spans += [span for span in _staged(instance, end) if span[0] is not Stage.FETCH]
    spans += weights.ended
    if weights.warming is not None:
        spans.append((Stage.PAGE_CACHE, weights.warming.since, end))
    shown = [
        StageSpan(stage, Duration(max(begin, origin) - origin), Duration(min(until, end) - origin))
        for stage, begin, until in spans
        if max(begin, origin) < min(until, end)
    ]
    return tuple(sorted(shown, key=_begin))


def _begin(span: StageSpan) -> Duration:
    return span.begin
