"""Feeds the declared metrics: from the core's notes, from each request's end, and at scrape time from the snapshot.

Runs on the loop's thread. A scrape reads the node and writes its page there too, in steps between which the loop turns.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable
from typing import Final, assert_never

from swapd.aio.turns import in_turns
from swapd.core.commands import (
    CoolingDown,
    DriverChanged,
    Evicted,
    EvictionBlocked,
    FetchEnded,
    FootprintMeasured,
    GpuChanged,
    LoadFinished,
    NodeLoadChanged,
    Note,
    Placed,
    PromotionAdvised,
    ReleaseConfirmed,
    StaleFact,
    ThrashPinChanged,
    Transitioned,
    VerdictChanged,
)
from swapd.core.ids import SECOND, Duration, Instant, ModelName
from swapd.core.reasons import LoadResult, Outcome, Rejection, Stage, UnloadCause
from swapd.core.view import NodeView
from swapd.metrics.heartbeat import Heartbeat
from swapd.metrics.node import NODE_METRICS
from swapd.metrics.now import CacheNow, DriverStats, Now
from swapd.metrics.page import Renderer, Snapshot
from swapd.metrics.registry import UNKNOWN_MODEL
from swapd.metrics.slots import Series, Slots

MAX_PAGES: Final = 8
"""Pages that may be waited for at once; a scraper that asks faster than they are made gets none."""

_LOST = frozenset({UnloadCause.EXITED, UnloadCause.UNRESPONSIVE})
"""Causes that are no decision: the model server was lost."""

_BESIDE: Final = frozenset({Stage.QUEUED, Stage.FETCH, Stage.PAGE_CACHE})
"""Stages that a load need not wait for: their whole length stands in its timeline."""

_FETCHED: Final = "fetched"

_START = {False: "resident", True: "cold_start"}

# on Python 3.11 a member costs ten times as much as a global
_UPSTREAM_FAILED: Final = Outcome.UPSTREAM_FAILED
_CUT: Final = Outcome.CUT

_CODES = tuple(str(code) for code in range(600))


def _code(code: int) -> str:
    return _CODES[code] if 0 <= code < len(_CODES) else str(code)


class TooManyScrapesError(Exception):
    """Pages are asked for faster than they can be made."""


class _Ends:
    """What each request's end may touch, looked up once."""

    def __init__(self, slots: Slots) -> None:
        self.requests = slots.counter("swapd_requests_total")
        self.duration = slots.timings("swapd_request_duration_seconds")
        self.queue_wait = slots.timings("swapd_queue_wait_seconds")
        self.model_queue_wait = slots.timings("swapd_model_queue_wait_seconds")
        self.first_byte = slots.timings("swapd_time_to_first_byte_seconds")
        self.model_first_byte = slots.timings("swapd_model_time_to_first_byte_seconds")
        self.broken = slots.counter("swapd_streams_broken_total")
        self.cut = slots.counter("swapd_requests_cut_total")
        self.rejections = slots.counter("swapd_rejections_total")
        self.promise = slots.counter("swapd_cold_start_promise_total")
        self.prompt_tokens = slots.counter("swapd_model_prompt_tokens_total")
        self.completion_tokens = slots.counter("swapd_model_completion_tokens_total")


class _Ordinary:
    """The ordinary requests, granted and answered, of one model, code and start that are not in the series yet."""

    __slots__ = ("_ends", "_key", "count", "duration", "first_byte", "queue_wait")

    def __init__(self, ends: _Ends, label: str, code: int, start: str) -> None:
        self._ends, self._key = ends, (label, _code(code), start)
        self.count = 0
        self.duration = Series(ends.duration.bounds)
        self.queue_wait = Series(ends.queue_wait.bounds)
        self.first_byte = Series(ends.first_byte.bounds)

    def add(self, duration: Duration, queue_wait: Duration, first_byte: Duration) -> None:
        """Count one; as ``Series.add`` would, without the calls."""
        self.count += 1
        series, at = self.duration, duration / SECOND
        series.sum_seconds += at
        series.counts[bisect_left(series.bounds, at)] += 1
        series, at = self.first_byte, first_byte / SECOND
        series.sum_seconds += at
        series.counts[bisect_left(series.bounds, at)] += 1
        series, at = self.queue_wait, queue_wait / SECOND
        series.sum_seconds += at
        series.counts[bisect_left(series.bounds, at) if queue_wait else 0] += 1

    def fold(self) -> None:
        """Add them to the series."""
        if not self.count:
            return
        ends, (label, _, start) = self._ends, self._key
        of_model, of_start = (label,), (start,)
        ends.requests.add(self._key, self.count)
        self.duration.count = self.queue_wait.count = self.first_byte.count = self.count
        self.count = 0
        ends.model_queue_wait.of(of_model).take(self.queue_wait)
        ends.model_first_byte.of(of_model).take(self.first_byte)
        for timings, kept in (
            (ends.duration, self.duration),
            (ends.queue_wait, self.queue_wait),
            (ends.first_byte, self.first_byte),
        ):
            timings.of(of_start).take(kept)
            kept.clear()


class Metrics:
    """All metrics of one daemon."""

    def __init__(
        self,
        *,
        view: Callable[[], Generator[None, None, NodeView]],
        now: Callable[[], Instant],
        not_ready: Callable[[], tuple[str, ...]],
        version: str,
        driver: Callable[[], DriverStats | None] = lambda: None,
        cache: Callable[[], CacheNow | None] = lambda: None,
        settle: Callable[[], None] = lambda: None,
        revision: str = "unknown",
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``view`` builds the node's snapshot in small steps, and returns it after the last one.

        ``not_ready`` says why the node takes no requests, one sentence each; ``()`` is ready.

        ``driver`` says how asking the driver goes; ``None``: the devices are virtual. ``cache`` says how the weight
        cache stands; ``None``: there is none. ``settle`` is called before a page is made, to count what is still to be
        counted.
        """
        self.not_ready = not_ready
        self.heartbeat = Heartbeat(now)
        self._view = view
        self._driver = driver
        self._cache = cache
        self._settle = settle
        self._version = version
        self._revision = revision
        self._wall = wall
        self._models: frozenset[str] = frozenset()
        self._slots = Slots(lambda name: name not in NODE_METRICS)
        self._ends = _Ends(self._slots)
        self._stages = self._slots.timings("swapd_load_stage_duration_seconds")
        self._ordinary: dict[tuple[str, int, bool], _Ordinary] = {}
        self._config_ok = False
        self._config_applied_s = 0.0
        self._renderer = Renderer()
        self._pages = 0

    def configure(self, names: Iterable[ModelName]) -> None:
        """Take these names, and no others, as values of the label ``model``; the series of the others go."""
        self._models = frozenset(names)
        self._fold()
        self._ordinary.clear()
        self._slots.keep_models(self._models | {UNKNOWN_MODEL})

    def config_reloaded(self, *, ok: bool) -> None:
        """Note that the configuration file was applied or refused; the first one counts too."""
        self._config_ok = ok
        if ok:
            self._config_applied_s = self._wall()

    def observe(self, note: Note) -> None:
        """Count what the core has noted."""
        match note:
            case LoadFinished():
                self._load_finished(note)
            case Evicted(model=model, cause=cause):
                lost = cause in _LOST
                name = "swapd_model_server_restarts_total" if lost else "swapd_evictions_total"
                self._slots.counter(name).add((self._label(model), cause.value))
            case FetchEnded(model=model, failure=failure):
                result = _FETCHED if failure is None else failure.value
                self._slots.counter("swapd_model_fetches_total").add((self._label(model), result))
            case EvictionBlocked(block=block):
                self._slots.counter("swapd_eviction_blocked_total").add((block.value,))
            case Transitioned() | VerdictChanged() | NodeLoadChanged() | CoolingDown() | StaleFact():
                pass  # read from the snapshot, like the next
            case FootprintMeasured() | GpuChanged() | DriverChanged() | PromotionAdvised():
                pass
            case ThrashPinChanged(model=model, action=action):
                self._slots.counter("swapd_thrash_pins_total").add((self._label(model), action.value))
            case Placed(quality=quality):
                self._slots.counter("swapd_placements_total").add((quality.value,))
            case ReleaseConfirmed(after=after, by=by):
                self._slots.timings("swapd_gpu_release_wait_seconds").observe((by.value,), after / SECOND)
            case _:
                assert_never(note)

    def request_finished(
        self,
        model: str | None,
        *,
        code: int,
        outcome: Outcome | None,
        cold_start: bool,
        duration: Duration,
        queue_wait: Duration | None = None,
        first_byte: Duration | None = None,
        reason: Rejection | None = None,
        prompt_tokens: int | None = None,
        completion_tokens: int | None = None,
        promise_kept: bool | None = None,
    ) -> None:
        """Count the end of a request.

        ``model`` is the configured name (aliases resolved); anything else counts as unknown. ``code`` is the status
        sent, 499 when the client left before one; ``outcome`` is ``None`` when the core never saw the request.
        ``queue_wait`` is ``None`` for a request that never came to the queue; ``first_byte`` counts from arrival and is
        ``None`` when the engine sent no byte. ``promise_kept`` says of a request that waited for a load whether its
        first byte came within the model's max_wait.
        """
        ends = self._ends
        label = model if model is not None and model in self._models else UNKNOWN_MODEL
        if queue_wait is not None and first_byte is not None:
            ordinary = self._ordinary.get((label, code, cold_start))
            if ordinary is None:
                ordinary = _Ordinary(ends, label, code, _START[cold_start])
                self._ordinary[label, code, cold_start] = ordinary
            ordinary.add(duration, queue_wait, first_byte)
        else:
            self._other_finished(
                label, code, cold_start, duration=duration, queue_wait=queue_wait, first_byte=first_byte
            )
        of_model = (label,)
        if outcome is _UPSTREAM_FAILED and first_byte is not None:
            ends.broken.add(of_model)
        elif outcome is _CUT:
            ends.cut.add(of_model)
        if reason is not None:
            ends.rejections.add((label, reason.value))
        if promise_kept is not None:
            ends.promise.add((label, "true" if promise_kept else "false"))
        if prompt_tokens is not None:
            ends.prompt_tokens.add(of_model, prompt_tokens)
        if completion_tokens is not None:
            ends.completion_tokens.add(of_model, completion_tokens)

    def first_byte(self, after: Duration) -> None:
        """Count the last stage of a cold start: from the grant of a request to its first byte."""
        self._stages.observe((Stage.FIRST_BYTE.value,), after / SECOND)

    def _other_finished(
        self,
        label: str,
        code: int,
        cold_start: bool,  # noqa: FBT001
        *,
        duration: Duration,
        queue_wait: Duration | None,
        first_byte: Duration | None,
    ) -> None:
        """Count a request that has not come to the queue, or to its first byte."""
        ends, start = self._ends, _START[cold_start]
        of_model, of_start = (label,), (start,)
        ends.requests.add((label, _code(code), start))
        ends.duration.observe(of_start, duration / SECOND)
        if queue_wait is not None:
            ends.queue_wait.observe(of_start, queue_wait / SECOND)
            ends.model_queue_wait.observe(of_model, queue_wait / SECOND)
        if first_byte is not None:
            ends.first_byte.observe(of_start, first_byte / SECOND)
            ends.model_first_byte.observe(of_model, first_byte / SECOND)

    async def page(self, accept: str) -> tuple[bytes, str]:
        """Return the page and its content type for an ``Accept`` header. Raises TooManyScrapesError."""
        if self._pages >= MAX_PAGES:
            raise TooManyScrapesError(f"{MAX_PAGES} scrapes are being answered; scrape less often")
        self._pages += 1
        try:
            return await in_turns(self._page(accept))
        finally:
            self._pages -= 1

    def _page(self, accept: str) -> Generator[None, None, tuple[bytes, str]]:
        view = yield from self._view()
        yield
        self._settle()
        self._fold()
        snapshot = Snapshot(now=self._now_values(view), slots=self._slots.freeze())
        yield
        return (yield from self._renderer.render(snapshot, accept))

    def _fold(self) -> None:
        for ordinary in self._ordinary.values():
            ordinary.fold()

    def _label(self, model: str | None) -> str:
        return model if model is not None and model in self._models else UNKNOWN_MODEL

    def _load_finished(self, note: LoadFinished) -> None:
        label = self._label(note.model)
        self._slots.counter("swapd_model_loads_total").add((label, note.result.value, note.source.value))
        if note.result is not LoadResult.READY:
            return
        self._slots.timings("swapd_model_load_duration_seconds").observe((label,), note.duration / SECOND)
        for stage, duration in _stages(note).items():
            self._stages.observe((stage.value,), duration / SECOND)
        if note.victims:
            self._slots.counter("swapd_swaps_total").add()
        if note.relapse:
            self._slots.counter("swapd_model_relapses_total").add((label,))

    def _now_values(self, view: NodeView) -> Now:
        return Now(
            view=view,
            ready=not self.not_ready(),
            version=self._version,
            revision=self._revision,
            config_ok=self._config_ok,
            config_applied_s=self._config_applied_s,
            loop_lag=self.heartbeat.lag(),
            driver=self._driver(),
            cache=self._cache(),
        )


def _stages(note: LoadFinished) -> dict[Stage, Duration]:
    """Return how long each stage of a load took, those beside others in full."""
    beside: dict[Stage, Duration] = {}
    for span in note.timeline:
        if span.stage in _BESIDE:
            beside[span.stage] = Duration(beside.get(span.stage, 0) + span.end - span.begin)
    return {**note.stages, **beside}
