"""Tells metrics, the record of requests and the log how each request ended.

That is done for many at once, and a little later: run for many in a row it costs a fraction. Who reads what is told
here has it told first, see ``tell``; so no client can have its answer, ask for the metrics and find them without it.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import structlog

from swapd.core.ids import SECOND, Duration, InstanceId, ModelName, seconds
from swapd.core.reasons import Outcome, Stage
from swapd.history.arrivals import Row
from swapd.metrics.collect import Metrics
from swapd.proxy.record import RequestRecord

# takes structs, see logs.py
_log: Any = structlog.get_logger("swapd.requests")

AT_ONCE: Final = 32
"""Requests; so many are told in one go, which takes a fraction of a millisecond."""
_LATEST_S: Final = 0.05

CLIENT_LEFT = 499
"""The code counted for a client that left before any status was sent."""

# on Python 3.11 a member costs ten times as much as a global
_SERVED: Final = Outcome.SERVED
_UPSTREAM_FAILED: Final = Outcome.UPSTREAM_FAILED
_CUT: Final = Outcome.CUT
_CANCELLED: Final = Outcome.CANCELLED


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
        arrived: Callable[[Sequence[Row]], None],
        first_byte: FirstByte,
        later: Callable[[float, Callable[[], None]], object],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``max_wait`` returns a model's cold-start promise, ``None`` once the model is gone.

        ``arrived`` takes note of requests that came to the core. ``later`` calls a function in so many seconds.
        """
        self._ended: list[RequestRecord] = []
        #: what has ended will be told, at the latest then
        self._due = False
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
        quiet: list[RequestRecord] = []
        loud: list[RequestRecord] = []
        rows: list[Row] = []
        alike: dict[tuple[ModelName | None, int], list[RequestRecord]] = {}
        for record in ended:
            model, served_s = record.model, record.served_s
            if model is not None and record.request is not None:
                rows.append((record.timestamp - record.waited_s - (served_s or 0.0), model, served_s))
            if record.outcome is _SERVED and not record.cold_start and not record.reason and record.ttfb_s is not None:
                # the common case
                key = model, record.status
                if key in alike:
                    alike[key].append(record)
                else:
                    alike[key] = [record]
                continue
            self._tell_one(record)
            is_broken = record.status >= 500 or record.outcome is _UPSTREAM_FAILED or record.outcome is _CUT
            (loud if is_broken else quiet).append(record)
        for (model, code), records in alike.items():
            self._tell_alike(model, code, records)
            (loud if code >= 500 else quiet).extend(records)
        if rows:
            self._arrived(rows)
        if loud:
            self._log.warning(loud)
        if quiet:
            self._log.info(quiet)

    def _tell_one(self, record: RequestRecord) -> None:
        """Count a request that was not served at once; what goes wrong concerns it alone."""
        if not record.status:
            record.status = CLIENT_LEFT
        try:
            self._metrics.request_finished(
                record.model,
                code=record.status,
                outcome=record.outcome,
                cold_start=record.cold_start,
                duration_s=record.duration_s,
                queue_wait_s=None if record.request is None else record.waited_s,
                first_byte_s=record.ttfb_s,
                reason=record.reason,
                prompt_tokens=record.prompt_tokens,
                completion_tokens=record.completion_tokens,
                promise_kept=self._promise_kept(record) if record.cold_start else None,
            )
            if record.cold_start:
                self._tell_first_byte(record)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this one record
            self._not_told(record, error)

    def _tell_alike(self, model: ModelName | None, code: int, records: list[RequestRecord]) -> None:
        """Count requests that were served at once; what goes wrong concerns them alone."""
        try:
            self._metrics.requests_served(model, code, records)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns these records
            for record in records:
                self._not_told(record, error)

    def _not_told(self, record: RequestRecord, error: Exception) -> None:
        self._log.error("request_not_told", request_id=record.request_id, exc_info=error)

    def _tell_first_byte(self, record: RequestRecord) -> None:
        """Count the last stage of a cold start, which its record lacks."""
        if record.ttfb_s is None or record.served_s is None or record.instance is None:
            return
        after_grant = max(0.0, record.ttfb_s - (record.duration_s - record.served_s))
        record.stages = {**(record.stages or {}), Stage.FIRST_BYTE.value: round(after_grant, 4)}
        self._metrics.first_byte(after_grant)
        ago = self._wall() - record.timestamp + record.duration_s - record.ttfb_s
        self._first_byte(record.instance, ago=seconds(ago))

    def _promise_kept(self, record: RequestRecord) -> bool | None:
        """Say whether the first byte of a cold start came within the promise; ``None`` when nothing was promised.

        A refusal after waiting for a load is a broken promise; a refusal at once is none, and neither is a wait for a
        slot at a resident engine. A client that leaves before its time is up has not let the promise be kept.
        """
        promise = None if record.model is None else self._max_wait(record.model)
        if promise is None:
            return None
        promise_s = promise / SECOND
        if record.ttfb_s is None and record.outcome is _CANCELLED and record.duration_s <= promise_s:
            return None
        return record.ttfb_s is not None and record.ttfb_s <= promise_s
