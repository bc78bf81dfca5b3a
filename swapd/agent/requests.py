"""Tells metrics, the record of requests and the log how each request ended.

That is done in the loop's next turn, for all that ended in this one: run for many in a row the code stays in the
processor's caches, which saves an eighth of all that a plain request costs. No client can have its answer, ask for the
metrics and find them without it: the next turn comes before anything is read.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

import structlog

from swapd.agent.logs import Frequent
from swapd.core.ids import SECOND, Duration, InstanceId, ModelName, RequestId
from swapd.core.reasons import Outcome, Rejection, Stage
from swapd.metrics.collect import Metrics
from swapd.proxy.record import RequestRecord

# takes structs, see logs.py
_log: Any = structlog.get_logger("swapd.requests")

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
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """``max_wait`` returns a model's cold-start promise, ``None`` once the model is gone.

        ``soon`` calls a function in the loop's next turn.
        """
        self._ended: list[RequestRecord] = []
        self._soon = soon
        self._metrics = metrics
        self._max_wait = max_wait
        self._arrived = arrived
        self._first_byte = first_byte
        # bound once: finding the way to the log anew costs a microsecond each time
        self._log = _log.bind()

    def finished(self, record: RequestRecord) -> None:
        """Take the record of a request that has ended; it is told in the loop's next turn."""
        self._ended.append(record)
        if len(self._ended) == 1:
            self._soon(self.tell)

    def tell(self) -> None:
        """Count and log what has ended since the last time."""
        ended, self._ended = self._ended, []
        for record in ended:
            self._tell(record)

    def _tell(self, record: RequestRecord) -> None:
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
            self._arrived(record.model, ago=Duration(record.waited + (record.served or 0)), served=record.served)
        stages = self._cold_stages(record) if record.cold_start else None
        outcome = record.outcome
        broken = code >= 500 or outcome is _UPSTREAM_FAILED or outcome is _CUT
        ttfb = record.ttfb
        # by position: names cost a microsecond
        line = RequestLine(
            "",
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
            outcome,
            record.cold_start,
            stages,
            round(record.waited / SECOND, 4),
            None if ttfb is None else round(ttfb / SECOND, 4),
            round(record.duration / SECOND, 4),
            record.bytes_in,
            record.bytes_out,
            record.prompt_tokens,
            record.completion_tokens,
        )
        if broken:
            self._log.warning(line)
        else:
            self._log.info(line)

    def _cold_stages(self, record: RequestRecord) -> dict[str, float]:
        """Return the seconds of each stage that the request went through, and tell of its first byte."""
        stages = {stage.value: round(duration / SECOND, 4) for stage, duration in record.stages.items()}
        if record.ttfb is not None and record.served is not None and record.instance is not None:
            after_grant = Duration(max(0, record.ttfb - (record.duration - record.served)))
            stages[Stage.FIRST_BYTE.value] = round(after_grant / SECOND, 4)
            self._metrics.first_byte(after_grant)
            self._first_byte(record.instance, ago=Duration(record.duration - record.ttfb))
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
