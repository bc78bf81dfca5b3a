"""Takes one request of plain form to its engine and back, by callbacks only.

It does what ``inference.py`` does on the other path, under the same rules: one ending, one retry before the first byte,
no clean end for what broke off. No task, future or timer comes to be while the model is resident and its engine has a
connection in the pool. The gate's calls come from inside a post; what follows from them is done in the next turn of the
loop.
"""

import asyncio
from typing import Protocol

import structlog
from multidict import MultiMapping
from yarl import URL

from swapd.core.commands import Reject
from swapd.core.ids import SECOND, Bytes, Duration, Instant, ModelName
from swapd.core.reasons import Outcome, Rejection
from swapd.proxy.address import address_of, resolved
from swapd.proxy.body import buffer_full
from swapd.proxy.desk import Desk
from swapd.proxy.errors import cut_off, failure_of_reject, internal_error, not_passed_on, overdue
from swapd.proxy.failure import Failure, RefusedError
from swapd.proxy.front.answers import AnswerHead
from swapd.proxy.front.engine import Body, EngineConnection, EnginePool
from swapd.proxy.front.heads import RequestHead, without_accept_encoding
from swapd.proxy.front.outlet import Outlet, is_event_stream
from swapd.proxy.gate import Lease
from swapd.proxy.keepalive import READ_OF_AN_ERROR, comment, no_event_stream
from swapd.proxy.model_name import read_json
from swapd.proxy.naming import name_beside_body, priority_named
from swapd.proxy.record import RequestRecord
from swapd.proxy.routes import Match
from swapd.proxy.services import Endpoint
from swapd.proxy.usage import NOTHING_TOLD, UsageReader

_log = structlog.get_logger(__name__)


class Door(Protocol):
    """What outlives a request."""

    @property
    def desk(self) -> Desk:
        """Return what holds for requests that arrive now."""

    def pool(self, endpoint: Endpoint) -> EnginePool:
        """Return the connections to an engine."""

    def give_back(self, body: Body) -> None:
        """Take a body's memory for the next one; nobody reads it any more."""


class Client(Protocol):
    """The connection on which the request came."""

    def over(self) -> None:
        """Go on: the answer has been written, or never will be."""


class FrontExchange:
    """One request, from its head to its end. It is the ``Sink`` of its connection to the engine."""

    __slots__ = (
        "_arrived",
        "_body",
        "_booked",
        "_bytes_out",
        "_client",
        "_desk",
        "_dialect",
        "_door",
        "_ended",
        "_engine",
        "_error",
        "_first_byte",
        "_fresh",
        "_head",
        "_lease",
        "_loop",
        "_match",
        "_model",
        "_opening",
        "_over",
        "_path",
        "_paused",
        "_reader",
        "_reason",
        "_request_id",
        "_status",
        "_target",
        "_timer",
        "_usage",
        "outlet",
        "size",
    )

    def __init__(
        self, door: Door, client: Client, head: RequestHead, match: Match, *, request_id: str, outlet: Outlet
    ) -> None:
        self._door = door
        self._client = client
        self._desk = desk = door.desk
        self._head = head
        self._match = match
        self._request_id = request_id
        self._loop = asyncio.get_running_loop()
        self._arrived = desk.services.now()
        self._target = head.target.decode("ascii")
        self._path = self._target.partition("?")[0]
        self._dialect = match.route.dialect
        self.outlet = outlet
        #: bytes of the body that have come, and those of them that are booked in the budget
        self.size = 0
        self._booked = 0
        #: ``None``: it is not complete, or has been let go
        self._body: Body | None = None
        self._model: ModelName | None = None
        self._lease: Lease | None = None
        self._engine: EngineConnection | None = None
        #: not to be sent on a pooled connection: that may be why the first attempt failed
        self._fresh = False
        self._opening: asyncio.Task[None] | None = None
        #: of the next comment while the request waits
        self._timer: asyncio.TimerHandle | None = None
        #: the client takes no more for now
        self._paused = False
        self._over = False
        #: done when the exchange is over; only for an abandoned one
        self._ended: asyncio.Future[None] | None = None
        self._reader: UsageReader | None = None
        #: an engine's answer that cannot go into the stream that has begun: its status and its first bytes
        self._error: tuple[int, bytearray] | None = None
        self._status = 0
        self._reason: Rejection | None = None
        self._usage = NOTHING_TOLD
        self._first_byte: Instant | None = None
        self._bytes_out = 0

    # ── what the client's connection says ────────────────────────────────────────────────────────────────────────

    def book(self, count: int) -> None:
        """Note that bytes of the body have come; raises ``RefusedError`` when there is no room for them."""
        if not self._desk.budget.take(count):
            raise RefusedError(buffer_full())
        self.size += count
        self._booked += count

    def begin(self, body: Body) -> None:
        """Serve the request, which is complete now."""
        self._body = body
        try:
            self._ask(body)
        except RefusedError as error:
            self.refuse(error.failure)

    def refuse(self, failure: Failure) -> None:
        """Answer with a failure."""
        self._fail(Outcome.SERVED, failure)

    def client_left(self) -> None:
        """Take it that the client has gone: nothing more can be written."""
        if self._over:
            return
        self.outlet.drop()
        asked = self._engine is not None or self._opening is not None
        if asked and self._model is not None and self._desk.services.options(self._model).finish_on_abort:
            self._finish_alone()
        else:
            self._close(Outcome.CANCELLED)

    def pause(self) -> None:
        """Read no more from the engine for now: the client does not keep up."""
        self._paused = True
        if self._engine is not None:
            self._engine.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self._engine is not None:
            self._engine.resume_reading()

    # ── the core ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _ask(self, body: Body) -> None:
        """Find out the model and ask the core for a place; raises ``RefusedError``."""
        desk, head, route = self._desk, self._head, self._match.route
        services = desk.services
        priority = priority_named(head.priority)
        streams = False
        if self._match.path_name is not None:
            method = head.method.decode("ascii")
            model, self._target, self._dialect = address_of(services, self._match, method, self._target)
        else:
            name = None
            if self.size:
                found = read_json(body)
                name, streams = found.model, found.stream
            model = resolved(services, name_beside_body(self._query(), head.model) if name is None else name)
        self._model = model
        limit = services.options(model).request_timeout
        lease = desk.gate.open(model, priority=priority, body_bytes=Bytes(self.size), limit=limit)
        self._lease = lease
        lease.on_break = self._broken_off_soon
        lease.on_answer = self._go_on_soon
        if lease.answer is not None:
            self._go_on()
        elif streams and route.sse and desk.settings.sse_keepalive is not None:
            self._comment_later(desk.settings.sse_keepalive)

    def _query(self) -> MultiMapping[str]:
        query = self._target.partition("?")[2]
        return URL.build(path="/", query_string=query, encoded=True).query

    def _go_on_soon(self) -> None:
        _ = self._loop.call_soon(self._go_on)

    def _broken_off_soon(self) -> None:
        _ = self._loop.call_soon(self._broken_off)

    def _go_on(self) -> None:
        """Act on the core's answer."""
        lease = self._lease
        if self._over or lease is None or lease.answer is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isinstance(lease.answer, Reject):
            self._fail(Outcome.REJECTED, failure_of_reject(lease.answer))
        elif lease.is_cut or lease.is_overdue:
            self._broken_off()
        else:
            self._attempt(self._desk.services.endpoint(lease.answer.instance))

    def _broken_off(self) -> None:
        """End a request that the core has cut, or that has been at its engine for too long."""
        lease = self._lease
        if self._over or lease is None:
            return
        failure = cut_off() if lease.is_cut else overdue(lease.limit or Duration(0))
        outcome = Outcome.CUT if lease.is_cut else Outcome.UPSTREAM_FAILED
        self._fail(outcome, failure)

    def _comment_later(self, interval: Duration) -> None:
        self._timer = self._loop.call_later(interval / SECOND, self._comment, interval)

    def _comment(self, interval: Duration) -> None:
        assert self._lease is not None
        if not self.outlet.begun:
            self._status = 200
            self.outlet.begin_stream()
        self.outlet.comment(comment(self._lease))
        self._comment_later(interval)

    # ── the engine ───────────────────────────────────────────────────────────────────────────────────────────────

    def _attempt(self, endpoint: Endpoint | None) -> None:
        if endpoint is None:
            self._attempt_failed()
            return
        pool = self._door.pool(endpoint)
        engine = None if self._fresh else pool.take()
        if engine is not None:
            self._send(engine, pool)
            return
        try:
            self._opening = self._desk.services.tasks.start(self._open(pool), name=f"connect {self._request_id}")
        except RuntimeError:
            # the daemon is closing
            self._attempt_failed()

    def _attempt_failed(self) -> None:
        """Report that not one byte of an answer came; the core's next answer says how it goes on."""
        self._fresh = True
        assert self._lease is not None
        self._lease.upstream_failed()

    async def _open(self, pool: EnginePool) -> None:
        try:
            engine = await pool.connect()
        except OSError:
            engine = None
        self._opening = None
        if engine is not None:
            self._send(engine, pool)
        elif self.outlet.gone:
            self._close(Outcome.CANCELLED)
        else:
            self._attempt_failed()

    def _send(self, engine: EngineConnection, pool: EnginePool) -> None:
        head, body = self._head, self._body
        assert body is not None
        self._engine = engine
        fields = without_accept_encoding(head.fields) if self.outlet.begun else head.fields
        length = b"\r\nContent-Length: %d" % self.size if head.has_body else b""
        message = b"%b %b HTTP/1.1%b%b%b\r\nx-request-id: %b\r\n\r\n" % (
            head.method,
            self._target.encode("ascii"),
            pool.host_line,
            fields,
            length,
            self._request_id.encode("ascii"),
        )
        engine.send(self, message, body, bodiless=head.method == b"HEAD")
        if self._paused:
            engine.pause_reading()

    def begins(self, head: AnswerHead) -> None:
        """Take the head of the engine's answer; from here on nothing is tried again."""
        assert self._lease is not None
        self._release_body()
        self._reader = UsageReader(head.content_type.decode("latin-1"), head.content_encoding.decode("latin-1"))
        if not self.outlet.begun:
            self._status = head.status
            self.outlet.begin(head, self._lease.grant)
        elif not is_event_stream(head):
            self._error = head.status, bytearray()

    def piece(self, payload: bytes, framed: bytes) -> None:
        """Pass on a piece of the body, and read what it tells of usage."""
        if self._error is not None:
            text = self._error[1]
            text += payload[: READ_OF_AN_ERROR - len(text)]
            return
        if not self.outlet.gone:
            self._count(len(payload))
            self.outlet.piece(payload, framed)
        if self._reader is not None:
            self._reader.feed(payload)

    def pause_point(self) -> None:
        """Send what is held back."""
        self.outlet.flush()

    def ends(self) -> None:
        """Bring the request to its proper end."""
        self._engine = None
        if self._error is not None:
            status, text = self._error
            self.refuse(no_event_stream(status, text))
            return
        if self._reader is not None:
            self._usage = self._reader.finish()
        if self.outlet.gone:
            self._close(Outcome.CANCELLED)
        else:
            self._count(0)
            self.outlet.end()
            self._close(Outcome.SERVED)

    def unanswered(self) -> None:
        """Try again, if the core says so."""
        self._engine = None
        if self.outlet.gone:
            self._close(Outcome.CANCELLED)
        else:
            self._attempt_failed()

    def malformed(self, why: str) -> None:
        """Tell that the answer is none."""
        self.breaks(why)

    def breaks(self, why: str) -> None:
        """Make the break visible."""
        self._engine = None
        self._fail(Outcome.UPSTREAM_FAILED, not_passed_on(why))

    def fails(self, error: Exception) -> None:
        """End a request that a bug has hit."""
        if self._over:
            return
        self._engine = None
        _log.error("request_failed", request_id=self._request_id, path=self._path, exc_info=error)
        if self.outlet.begun:
            self.outlet.break_off(None, self._dialect, self._desk.settings.break_off_timeout)
        else:
            self._status = 500
            self.outlet.keep_alive = False
            self.outlet.error(internal_error(), self._dialect, self._desk.services.random)
        self._close(Outcome.CANCELLED)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _count(self, size: int) -> None:
        if self._first_byte is None:
            self._first_byte = self._desk.services.now()
        self._bytes_out += size

    def _fail(self, outcome: Outcome, failure: Failure) -> None:
        """Tell the client of a failure, by an error if nothing was sent yet, else by a visible break."""
        if self.outlet.gone:
            timed_out = failure.reason is Rejection.UPSTREAM_TIMEOUT
            self._reason = failure.reason if timed_out else None
            self._close(Outcome.CUT if outcome is Outcome.CUT else Outcome.CANCELLED)
            return
        self._reason = failure.reason
        if self.outlet.begun:
            self.outlet.break_off(failure, self._dialect, self._desk.settings.break_off_timeout)
        else:
            self._status = failure.status
            self.outlet.error(failure, self._dialect, self._desk.services.random)
        self._close(outcome)

    def _finish_alone(self) -> None:
        """Read the answer to its end without the client: some engines suffer when one request of a batch breaks off."""
        self.resume()
        self._ended = self._loop.create_future()
        try:
            _ = self._desk.services.tasks.start(self._give_up_late(self._ended), name=f"finish {self._request_id}")
        except RuntimeError:
            # the daemon is closing
            self._close(Outcome.CANCELLED)

    async def _give_up_late(self, ended: asyncio.Future[None]) -> None:
        try:
            await asyncio.wait((ended,), timeout=self._desk.settings.finish_timeout / SECOND)
        finally:
            self._close(Outcome.CANCELLED)

    def _release_body(self) -> None:
        """Let go of the body; its memory serves the next one if nothing of it waits to be written."""
        body, self._body = self._body, None
        self._desk.budget.give(self._booked)
        self._booked = 0
        if body is not None and (self._engine is None or self._engine.sent):
            self._door.give_back(body)

    def _close(self, outcome: Outcome) -> None:
        """Let go of everything and report the end; the first call counts."""
        if self._over:
            return
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        self._release_body()
        if self._opening is not None:
            self._opening.cancel()
        if self._engine is not None:
            self._engine.abort()
            self._engine = None
        lease = self._lease
        if lease is not None:
            if lease.waits:
                ready = self._desk.ready.since(lease.model)
                lease.left(cold_start=ready is None or ready > lease.arrived)
            lease.end(outcome)
        self._desk.services.finished(self._record(lease))
        self._client.over()

    def _record(self, lease: Lease | None) -> RequestRecord:
        grant = lease.grant if lease is not None else None
        now = self._desk.services.now()
        return RequestRecord(
            request_id=self._request_id,
            request=lease.request if lease is not None else None,
            model=self._model,
            method=self._head.method.decode("ascii"),
            path=self._path,
            status=self._status,
            reason=self._reason,
            outcome=lease.outcome if lease is not None else None,
            cold_start=lease.cold_start if lease is not None else False,
            waited=lease.waited if lease is not None else Duration(0),
            stages=grant.stages if grant is not None else {},
            instance=grant.instance if grant is not None else None,
            ttfb=None if self._first_byte is None else Duration(self._first_byte - self._arrived),
            duration=Duration(now - self._arrived),
            bytes_in=self.size,
            bytes_out=self._bytes_out,
            prompt_tokens=self._usage.prompt_tokens,
            completion_tokens=self._usage.completion_tokens,
        )
