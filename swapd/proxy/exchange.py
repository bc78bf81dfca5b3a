"""Keeps what happens to one request while it happens, and makes the record of it at its end."""

import asyncio
from dataclasses import dataclass, field
from time import time

from aiohttp import web

from swapd.core.ids import SECOND, Instant, ModelName
from swapd.core.reasons import Outcome, Rejection
from swapd.proxy.body import Body
from swapd.proxy.desk import Desk
from swapd.proxy.dialects import Dialect
from swapd.proxy.gate import Lease
from swapd.proxy.record import EVENT, RequestRecord, told_stages
from swapd.proxy.relay import Answer, MalformedAnswerError, UnansweredError
from swapd.proxy.routes import Match
from swapd.proxy.usage import Usage, UsageReader

Opening = asyncio.Task[Answer | UnansweredError | MalformedAnswerError]


@dataclass(slots=True, eq=False)
class Exchange:
    """One request to an engine, from its head to its end."""

    request: web.BaseRequest
    match: Match
    request_id: str
    arrived: Instant
    body: Body
    #: path and query for the engine
    target: str
    path: str
    #: in which errors are told
    dialect: Dialect
    model: ModelName | None = None
    lease: Lease | None = None
    #: the engine's answer, once its head is in
    answer: Answer | None = None
    #: an answer on its way, if it is to be read to the end without the client, too
    opening: Opening | None = None
    finish_on_abort: bool = False
    reader: UsageReader | None = None
    #: the answer to the client, once its head has gone out
    response: web.StreamResponse | None = None
    status: int = 0
    reason: Rejection | None = None
    first_byte: Instant | None = None
    bytes_out: int = 0
    usage: Usage = field(default_factory=Usage)
    #: how it has ended, where that is known before its connections are closed
    verdict: Outcome | None = None
    #: somebody else brings the exchange to its end
    handed_over: bool = False

    def wrote(self, count: int, now: Instant) -> None:
        """Note that bytes of the answer's body have gone out."""
        if self.first_byte is None:
            self.first_byte = now
        self.bytes_out += count

    def close(self, desk: Desk, outcome: Outcome) -> None:
        """Let go of everything and report the end; ``outcome`` counts unless the lease has ended already."""
        if self.answer is not None:
            self.answer.abort()
        if self.opening is not None:
            self._abandon(self.opening)
        self.body.release()
        if self.lease is not None:
            if self.lease.waits:
                ready = desk.ready_since(self.lease.model)
                self.lease.left(cold_start=ready is None or ready > self.lease.arrived)
            self.lease.end(outcome)
        desk.services.finished(self._record(desk.services.now()))

    @staticmethod
    def _abandon(opening: Opening) -> None:
        """Drop an answer that is on its way, or has just come and was not taken."""
        if opening.cancel() or opening.cancelled() or opening.exception() is not None:
            return
        result = opening.result()
        if not isinstance(result, UnansweredError | MalformedAnswerError):
            result.abort()

    def _record(self, now: Instant) -> RequestRecord:
        lease, usage = self.lease, self.usage
        grant = None if lease is None else lease.grant
        return RequestRecord(
            timestamp=time(),
            level="",
            event=EVENT,
            request_id=self.request_id,
            request=None if lease is None else lease.request,
            model=self.model,
            instance=None if grant is None else grant.instance,
            method=self.request.method,
            path=self.path,
            status=self.status,
            reason=self.reason,
            outcome=None if lease is None else lease.outcome,
            cold_start=False if lease is None else lease.cold_start,
            stages=told_stages(grant) if grant is not None and grant.stages else None,
            waited_s=0.0 if lease is None else lease.waited / SECOND,
            served_s=None if lease is None or grant is None else (now - lease.arrived - grant.waited) / SECOND,
            ttfb_s=None if self.first_byte is None else (self.first_byte - self.arrived) / SECOND,
            duration_s=(now - self.arrived) / SECOND,
            bytes_in=self.body.size,
            bytes_out=self.bytes_out,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
        )
