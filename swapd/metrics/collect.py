"""Feeds the declared metrics: from the core's notes, from each request's end, and at scrape time from the snapshot.

Runs on the loop's thread. A scrape reads the node and writes its page there too, in steps between which the loop turns.
"""

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final, Protocol, assert_never

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
from swapd.metrics.slots import Slots

MAX_PAGES: Final = 8
"""Pages that may be waited for at once; a scraper that asks faster than they are made gets none."""

_LOST = frozenset({UnloadCause.EXITED, UnloadCause.UNRESPONSIVE})
"""Causes that are no decision: the model server was lost."""

_BESIDE: Final = frozenset({Stage.QUEUED, Stage.FETCH, Stage.PAGE_CACHE})
"""Stages that a load need not wait for: their whole length stands in its timeline."""

_FETCHED: Final = "fetched"

_RESIDENT: Final = "resident"
_OF_RESIDENT: Final = (_RESIDENT,)
_START: Final = {False: _RESIDENT, True: "cold_start"}

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


class Served(Protocol):
    """A request that waited for no load and was answered; times in seconds."""

    waited_s: float
    #: not ``None``
    ttfb_s: float | None
    duration_s: float
    #: ``None``: not told
    prompt_tokens: int | None
    completion_tokens: int | None


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
        self._config_ok = False
        self._config_applied_s = 0.0
        self._renderer = Renderer()
        self._pages = 0

    def configure(self, names: Iterable[ModelName]) -> None:
        """Take these names, and no others, as values of the label ``model``; the series of the others go."""
        self._models = frozenset(names)
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

    def requests_served(self, model: str | None, code: int, requests: Sequence[Served]) -> None:
        """Count the ends of requests for one model that got this status; see ``request_finished``."""
        ends, label, count = self._ends, self._label(model), len(requests)
        of_model = (label,)
        ends.requests.add((label, _code(code), _RESIDENT), count)
        ends.duration.of(_OF_RESIDENT).add_all([request.duration_s for request in requests])
        waits = [request.waited_s for request in requests]
        ends.queue_wait.of(_OF_RESIDENT).add_all(waits)
        ends.model_queue_wait.of(of_model).add_all(waits)
        first_bytes = [request.ttfb_s or 0.0 for request in requests]
        ends.first_byte.of(_OF_RESIDENT).add_all(first_bytes)
        ends.model_first_byte.of(of_model).add_all(first_bytes)
        prompts = [request.prompt_tokens for request in requests if request.prompt_tokens is not None]
        if prompts:
            ends.prompt_tokens.add(of_model, sum(prompts))
        completions = [request.completion_tokens for request in requests if request.completion_tokens is not None]
        if completions:
            ends.completion_tokens.add(of_model, sum(completions))

    def request_finished(
        self,
        model: str | None,
        *,
        code: int,
        outcome: Outcome | None,
        cold_start: bool,
        duration_s: float,
        queue_wait_s: float | None = None,
        first_byte_s: float | None = None,
        reason: Rejection | None = None,
        prompt_tokens: int | None = None,
        completion_tokens: int | None = None,
        promise_kept: bool | None = None,
    ) -> None:
        """Count the end of a request; ``requests_served`` is quicker for many that were answered without a load.

        ``model`` is the configured name (aliases resolved); anything else counts as unknown. ``code`` is the status
        sent, 499 when the client left before one; ``outcome`` is ``None`` when the core never saw the request.
        ``queue_wait_s`` is ``None`` for a request that never came to the queue; ``first_byte_s`` counts from arrival
        and is ``None`` when the engine sent no byte. ``promise_kept`` says of a request that waited for a load whether
        its first byte came within the model's max_wait.
        """
        ends, label, start = self._ends, self._label(model), _START[cold_start]
        of_model, of_start = (label,), (start,)
        ends.requests.add((label, _code(code), start))
        ends.duration.observe(of_start, duration_s)
        if queue_wait_s is not None:
            ends.queue_wait.observe(of_start, queue_wait_s)
            ends.model_queue_wait.observe(of_model, queue_wait_s)
        if first_byte_s is not None:
            ends.first_byte.observe(of_start, first_byte_s)
            ends.model_first_byte.observe(of_model, first_byte_s)
        if outcome is Outcome.UPSTREAM_FAILED and first_byte_s is not None:
            ends.broken.add(of_model)
        elif outcome is Outcome.CUT:
            ends.cut.add(of_model)
        if reason is not None:
            ends.rejections.add((label, reason.value))
        if promise_kept is not None:
            ends.promise.add((label, "true" if promise_kept else "false"))
        if prompt_tokens is not None:
            ends.prompt_tokens.add(of_model, prompt_tokens)
        if completion_tokens is not None:
            ends.completion_tokens.add(of_model, completion_tokens)

    def first_byte(self, after_s: float) -> None:
        """Count the last stage of a cold start: the seconds from the grant of a request to its first byte."""
        self._stages.observe((Stage.FIRST_BYTE.value,), after_s)

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
        snapshot = Snapshot(now=self._now_values(view), slots=self._slots.freeze())
        yield
        return (yield from self._renderer.render(snapshot, accept))

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
