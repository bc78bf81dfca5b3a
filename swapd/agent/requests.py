"""Tells metrics, the record of requests and the log how each request ended.

That is done for many at once, and a little later: run for many in a row the code stays in the processor's caches, which
saves an eighth of all that a plain request costs. Who reads what is told here has it told first, see ``tell``; so no
client can have its answer, ask for the metrics and find them without it.
"""

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog

from swapd.agent.logs import Frequent
from swapd.core.ids import SECOND, Duration, InstanceId, Instant, ModelName, RequestId
from swapd.core.reasons import Outcome, Rejection, Stage
from swapd.metrics.collect import Metrics
from swapd.proxy.record import RequestRecord

# takes structs, see logs.py
_log: Any = structlog.get_logger("swapd.requests")

AT_ONCE: Final = 32
"""Requests; so many are told in one go, which takes a fraction of a millisecond."""
_LATEST_S: Final = 0.05
_TENTH_MS: Final = 100_000
"""Nanoseconds."""
_HALF: Final = _TENTH_MS // 2
_TENTHS: Final = 10_000
"""Of a millisecond, in a second."""

CLIENT_LEFT = 499
"""The code counted for a client that left before any status was sent."""

# on Python 3.11 a member costs ten times as much as a global
_UPSTREAM_FAILED: Final = Outcome.UPSTREAM_FAILED
_CUT: Final = Outcome.CUT
_CANCELLED: Final = Outcome.CANCELLED


class RequestLine(Frequent):
    """What the log says of a request."""

    event: str
    request_id: str
    request: RequestId | None
    model: ModelName | None
    instance: InstanceId | None
    method: str
    path: str
    status: int
    reason: Rejection | None
    outcome: Outcome | None
    cold_start: bool
    stages: dict[str, float] | None
    waited_s: float
    ttfb_s: float | None
    duration_s: float
    bytes_in: int
    bytes_out: int
    prompt_tokens: int | None
    completion_tokens: int | None
    logger: str = "swapd.requests"


class Arrived(Protocol):
    """Takes note of a request that has ended."""

    def __call__(self, model: ModelName, *, ago: Duration, served: Duration | None) -> None:
        """``ago``: since it came to the core; ``served``: since its grant, ``None``: it never had one."""


class FirstByte(Protocol):
    """Takes note of the first byte that a request got that had waited for a load."""

    def __call__(self, instance: InstanceId, *, ago: Duration) -> None:
        """``ago``: since that byte."""


class RequestObserver:
    """Takes one record per request."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        max_wait: Callable[[ModelName], Duration | None],
        arrived: Arrived,
        first_byte: FirstByte,
        now: Callable[[], Instant],
        later: Callable[[float, Callable[[], None]], object],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``max_wait`` returns a model's cold-start promise, ``None`` once the model is gone.

        ``later`` calls a function in so many seconds.
        """
        self._ended: list[RequestRecord] = []
        #: what has ended will be told, at the latest then
        self._due = False
        self._now = now
        self._later = later
        self._wall = wall
        self._metrics = metrics
        self._max_wait = max_wait
        self._arrived = arrived
        self._first_byte = first_byte
        # bound once: finding the way to the log anew costs a microsecond each time
        self._log = _log.bind()

    def finished(self, record: RequestRecord) -> None:
        """Take the record of a request that has ended; one that waited for a load is told at once."""
        ended = self._ended
        ended.append(record)
        if record.cold_start or len(ended) >= AT_ONCE:
            self.tell()
        elif not self._due:
            self._due = True
            self._later(_LATEST_S, self._tell_in_time)

    def _tell_in_time(self) -> None:
        self._due = False
        self.tell()

    def tell(self) -> None:
        """Count and log what has ended since the last time."""
        ended, self._ended = self._ended, []
        if not ended:
            return
        now, wall = self._now(), self._wall()
        ordinary: list[Frequent] = []
        for record in ended:
            ago = now - record.ended
            try:
                line = self._tell(record, wall - ago / SECOND, Duration(ago))
            except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this one record
                self._log.error("request_not_told", request_id=record.request_id, exc_info=error)
                continue
            outcome = line.outcome
            if line.status >= 500 or outcome is _UPSTREAM_FAILED or outcome is _CUT:
                self._log.warning([line])
            else:
                ordinary.append(line)
        if ordinary:
            self._log.info(ordinary)

    def _tell(self, record: RequestRecord, moment: float, ago: Duration) -> RequestLine:
        """Count a request that ended at a moment, so long ago; return its line."""
        code = record.status or CLIENT_LEFT
        self._metrics.request_finished(
            record.model,
            code=code,
            outcome=record.outcome,
            cold_start=record.cold_start,
            duration=record.duration,
            queue_wait=None if record.request is None else record.waited,
            first_byte=record.ttfb,
            reason=record.reason,
            prompt_tokens=record.prompt_tokens,
            completion_tokens=record.completion_tokens,
            promise_kept=self._promise_kept(record) if record.cold_start else None,
        )
        if record.model is not None and record.request is not None:
            here = record.waited + (record.served or 0)
            self._arrived(record.model, ago=Duration(ago + here), served=record.served)
        stages = self._cold_stages(record, ago) if record.cold_start else None
        ttfb = record.ttfb
        # by position: names cost a microsecond
        return RequestLine(
            moment,
            "",
            "request",
            record.request_id,
            record.request,
            record.model,
            record.instance,
            record.method,
            record.path,
            code,
            record.reason,
            record.outcome,
            record.cold_start,
            stages,
            _seconds(record.waited) if record.waited else 0.0,
            # as ``_seconds`` does
            None if ttfb is None else (ttfb + _HALF) // _TENTH_MS / _TENTHS,
            (record.duration + _HALF) // _TENTH_MS / _TENTHS,
            record.bytes_in,
            record.bytes_out,
            record.prompt_tokens,
            record.completion_tokens,
        )

    def _cold_stages(self, record: RequestRecord, ago: Duration) -> dict[str, float]:
        """Return the seconds of each stage that the request went through, and tell of its first byte."""
        stages = {stage.value: _seconds(duration) for stage, duration in record.stages.items()}
        if record.ttfb is not None and record.served is not None and record.instance is not None:
            after_grant = Duration(max(0, record.ttfb - (record.duration - record.served)))
            stages[Stage.FIRST_BYTE.value] = _seconds(after_grant)
            self._metrics.first_byte(after_grant)
            self._first_byte(record.instance, ago=Duration(ago + record.duration - record.ttfb))
        return stages

    def _promise_kept(self, record: RequestRecord) -> bool | None:
        """Say whether the first byte of a cold start came within the promise; ``None`` when nothing was promised.

        A refusal after waiting for a load is a broken promise; a refusal at once is none, and neither is a wait for a
        slot at a resident engine. A client that leaves before its time is up has not let the promise be kept.
        """
        promise = None if record.model is None else self._max_wait(record.model)
        if promise is None:
            return None
        if record.ttfb is None and record.outcome is _CANCELLED and record.duration <= promise:
            return None
        return record.ttfb is not None and record.ttfb <= promise


def _seconds(duration: Duration) -> float:
    """Return seconds to four places; ``round`` would cost twenty times as much."""
    return (duration + _HALF) // _TENTH_MS / _TENTHS
