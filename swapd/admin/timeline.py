"""Tells of the last loads second by second: ``GET /v1/timeline`` and ``GET /v1/timeline/<model>``.

Rules for readers: keys are stable, new ones may appear. Loads stand in the order in which they ended. ``begin_s`` and
``end_s`` of a stage count from the arrival of the first request that waited, or from the booking if none did; stages
that went on at the same time overlap. ``null`` says "there is none" or "not known".
"""

from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from swapd.admin.answers import known_model
from swapd.admin.control import Control
from swapd.admin.devices import Json
from swapd.core.commands import LoadFinished, StageSpan
from swapd.core.ids import SECOND, Duration
from swapd.core.reasons import Stage


@dataclass(frozen=True, slots=True)
class Timeline:
    """One load that has ended."""

    load: LoadFinished
    #: unix time of its end, seconds
    ended_at_s: float
    #: from its end to the first byte of an answer to who had waited for it; ``None``: there was none yet
    first_byte: Duration | None = None

    @property
    def spans(self) -> tuple[StageSpan, ...]:
        """All that went on, the first byte included."""
        spans = self.load.timeline
        if self.first_byte is None:
            return spans
        ready = self.ready
        return (*spans, StageSpan(Stage.FIRST_BYTE, ready, Duration(ready + self.first_byte)))

    @property
    def ready(self) -> Duration:
        """From the beginning to the end of the load."""
        return max((span.end for span in self.load.timeline), default=self.load.duration)


def timeline_document(timelines: Sequence[Timeline]) -> Json:
    """Return the document, made of plain JSON types."""
    return {"loads": [_load(timeline) for timeline in timelines]}


def stages_document(spans: Sequence[StageSpan]) -> list[Json]:
    """Return the bars of a timeline, in the order of ``spans``."""
    return [{"stage": span.stage.value, "begin_s": _seconds(span.begin), "end_s": _seconds(span.end)} for span in spans]


def routes(control: Control) -> list[web.RouteDef]:
    """Return the routes; a model without a load has an empty list."""

    async def every(_: web.Request) -> web.Response:
        return web.json_response(control.timelines(None))

    async def of_model(request: web.Request) -> web.Response:
        return web.json_response(control.timelines(known_model(control, request.match_info["model"])))

    return [web.get("/v1/timeline", every), web.get("/v1/timeline/{model:.*}", of_model)]


def _load(timeline: Timeline) -> Json:
    load, spans = timeline.load, timeline.spans
    return {
        "model": load.model,
        "instance": load.instance,
        "ended_at": round(timeline.ended_at_s, 3),
        "result": load.result.value,
        "source": load.source.value,
        "total_s": _seconds(max((span.end for span in spans), default=load.duration)),
        "load_time_s": _seconds(load.load_time),
        "swap_s": _seconds(load.duration),
        "victims": list(load.victims),
        "failure": None if load.failure is None else load.failure.value,
        "detail": load.detail or None,
        "stages": stages_document(spans),
    }


def _seconds(duration: Duration) -> float:
    return round(duration / SECOND, 3)
