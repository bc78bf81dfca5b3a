"""Takes one request of plain form to its engine and back, by callbacks only.

It does what ``inference.py`` does on the other path, under the same rules: one ending, one retry before the first byte,
no clean end for what broke off. No task, future or timer comes to be while the model is resident and its engine has a
connection in the pool. The gate's calls come from inside a post; what follows from them is done in the next turn of the
loop.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from swapd.core.commands import Grant, Reject
from swapd.core.ids import SECOND, Duration, InstanceId
from swapd.core.reasons import Outcome, Rejection
from swapd.proxy.errors import cut_off, failure_of_reject, internal_error, not_passed_on, overdue
from swapd.proxy.failure import Failure, RefusedError
from swapd.proxy.front.account import Account
from swapd.proxy.front.answers import AnswerHead
from swapd.proxy.front.chunks import unframed
from swapd.proxy.front.comments import Comments
from swapd.proxy.front.engine import Body, EngineConnection
from swapd.proxy.front.heads import RequestHead
from swapd.proxy.front.outlet import Outlet, is_event_stream
from swapd.proxy.front.pool import EnginePool
from swapd.proxy.front.sink import Sink
from swapd.proxy.front.surroundings import Client, Door
from swapd.proxy.front.understand import understand
from swapd.proxy.keepalive import READ_OF_AN_ERROR, no_event_stream
from swapd.proxy.usage import UsageReader, usage_in, usage_reader

_log = structlog.get_logger(__name__)

# on Python 3.11 a member costs ten times as much as a global
_SERVED: Final = Outcome.SERVED


class FrontExchange(Account):
    """One request, from its head to its end. It is the ``Sink`` of its connection to the engine."""

    #: booked in the budget
    _booked = 0
    #: ``None``: it is not complete, or has been let go
    _body: Body | None = None
    _engine: EngineConnection | None = None
    #: not to be sent on a pooled connection: that may be why the first attempt failed
    _fresh = False
    _opening: asyncio.Task[None] | None = None
    #: while the request waits
    _comments: Comments | None = None
    #: the client takes no more for now
    _paused = False
    _over = False
    #: done when the exchange is over; only for an abandoned one
    _ended: asyncio.Future[None] | None = None
    _reader: UsageReader | None = None
    #: takes the next chunks as they are
    _write: Callable[[bytes], None] | None = None
    #: an engine's answer that cannot go into the stream that has begun: its status and its first bytes
    _error: tuple[int, bytearray] | None = None

    #: path and query for the engine; ``None``: as received
    _target: bytes | None = None

    def __init__(self, door: Door, client: Client, head: RequestHead, digits: bytes, *, outlet: Outlet) -> None:
        """``digits``: the length of the body, as received."""
        self._door = door
        self._client = client
        self.head = head
        self._digits = digits
        self._desk = desk = door.desk
        self.outlet = outlet
        self.arrived = desk.services.now()

    # ── what the client's connection says ────────────────────────────────────────────────────────────────────────

    def book(self, count: int) -> bool:
        """Note that bytes of the body have come; ``False``: there is no room for them."""
        if not self._desk.budget.take(count):
            return False
        self.size += count
        self._booked += count
        return True

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
        self._write = None
        asked = self._engine is not None or self._opening is not None
        if asked and self.model is not None and self._desk.services.options(self.model).finish_on_abort:
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
        desk, services, match = self._desk, self._desk.services, self.head.match
        assert match is not None
        wish = understand(services, self.head, match, body)
        model, self._target, self.dialect = wish.model, wish.target, wish.dialect
        self.model = model
        limit = services.options(model).request_timeout
        lease = desk.gate.open(model, priority=wish.priority, body_bytes=self.size, limit=limit)
        self.lease = lease
        lease.on_break = self._broken_off_soon
        answer = lease.answer
        if type(answer) is Grant:
            self._attempt(answer.instance)
            return
        lease.on_answer = self._go_on_soon
        if answer is not None:
            self._go_on()
        elif wish.streams and match.route.sse and desk.settings.sse_keepalive is not None:
            self._comments = Comments(self.outlet, desk, lease, desk.settings.sse_keepalive)

    def _go_on_soon(self) -> None:
        _ = asyncio.get_running_loop().call_soon(self._go_on)

    def _broken_off_soon(self) -> None:
        _ = asyncio.get_running_loop().call_soon(self._broken_off)

    def _go_on(self) -> None:
        """Act on the core's answer."""
        lease = self.lease
        if self._over or lease is None or lease.answer is None:
            return
        if self._comments is not None:
            self._comments.stop()
        if isinstance(lease.answer, Reject):
            self._fail(Outcome.REJECTED, failure_of_reject(lease.answer))
        elif lease.is_cut or lease.is_overdue:
            self._broken_off()
        else:
            self._attempt(lease.answer.instance)

    def _broken_off(self) -> None:
        """End a request that the core has cut, or that has been at its engine for too long."""
        lease = self.lease
        if self._over or lease is None:
            return
        failure = cut_off() if lease.is_cut else overdue(lease.limit or Duration(0))
        outcome = Outcome.CUT if lease.is_cut else Outcome.UPSTREAM_FAILED
        self._fail(outcome, failure)

    # ── the engine ───────────────────────────────────────────────────────────────────────────────────────────────

    def _attempt(self, instance: InstanceId) -> None:
        pool = self._door.pool(instance)
        if pool is None:
            self._attempt_failed()
            return
        engine = None if self._fresh else pool.take()
        if engine is not None:
            self._send(engine, pool)
            return
        try:
            self._opening = self._desk.services.tasks.start(self._open(pool), name=f"connect {self.outlet.request_id}")
        except RuntimeError:
            # the daemon is closing
            self._attempt_failed()

    def _attempt_failed(self) -> None:
        """Report that not one byte of an answer came; the core's next answer says how it goes on."""
        self._fresh = True
        assert self.lease is not None
        self.lease.on_answer = self._go_on_soon
        self.lease.upstream_failed()

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
        head, body = self.head, self._body
        assert body is not None
        self._engine = engine
        if self._target is None and not self.outlet.begun:
            before, after = head.for_engine(pool.host_line)
        else:
            before, after = head.rewritten(pool.host_line, self._target or head.target, readable=self.outlet.begun)
        request_id = self.outlet.request_id.encode("ascii")
        engine.send(self, b"%b%b%b%b\r\n\r\n" % (before, self._digits, after, request_id), body, bodiless=head.bodiless)
        if self._paused:
            engine.pause_reading()

    def whole(self, head: AnswerHead, body: bytes) -> None:
        """Take an answer that has come in one piece."""
        outlet, lease = self.outlet, self.lease
        assert lease is not None
        if outlet.begun or outlet.gone:
            Sink.whole(self, head, body)
            return
        # before the connection is forgotten: it knows whether the memory is still to be read
        self._release_body()
        self._engine = None
        self.usage = usage_in(head.content_type, head.content_encoding, body)
        self.bytes_out = len(body)
        self.first_byte = self._desk.services.now()
        outlet.whole(head, body, lease.grant)
        self._close(_SERVED)

    def begins(self, head: AnswerHead) -> None:
        """Take the head of the engine's answer; from here on nothing is tried again."""
        assert self.lease is not None
        self._release_body()
        self._reader = usage_reader(head.content_type, head.content_encoding)
        if not self.outlet.begun:
            self.outlet.begin(head, self.lease.grant)
        elif not is_event_stream(head):
            self._error = head.status, bytearray()

    def piece(self, payload: bytes, framed: bytes) -> None:
        """Pass on a piece of the body, and read what it tells of usage."""
        if self._error is not None:
            text = self._error[1]
            text += payload[: READ_OF_AN_ERROR - len(text)]
            return
        outlet = self.outlet
        if not outlet.gone:
            self.bytes_out += len(payload)
            if self.first_byte is None:
                self.first_byte = self._desk.services.now()
            outlet.piece(payload, framed)
        if self._reader is not None:
            self._reader.feed(payload)

    def in_chunks(self, framed: bytes, size: int, *, in_lines: bool) -> None:
        """Pass on whole chunks as they are."""
        write = self._write
        if write is None:
            Sink.in_chunks(self, framed, size, in_lines=in_lines)
            self._write = self.outlet.chunk_writer if self._error is None else None
            return
        self.bytes_out += size
        write(framed)
        reader = self._reader
        if reader is not None and not (in_lines and reader.passes_over(framed)):
            reader.feed(unframed(framed))

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
            self.usage = self._reader.finish()
        if self.outlet.gone:
            self._close(Outcome.CANCELLED)
        else:
            if self.first_byte is None:
                self.first_byte = self._desk.services.now()
            self.outlet.end()
            self._close(_SERVED)

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
        _log.error("request_failed", request_id=self.outlet.request_id, path=self.head.path, exc_info=error)
        if self.outlet.begun:
            self.outlet.break_off(None, self.told_in, self._desk.settings.break_off_timeout)
        else:
            self.outlet.keep_alive = False
            self.outlet.error(internal_error(), self.told_in, self._desk.services.random)
        self._close(Outcome.CANCELLED)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _fail(self, outcome: Outcome, failure: Failure) -> None:
        """Tell the client of a failure, by an error if nothing was sent yet, else by a visible break."""
        if self.outlet.gone:
            timed_out = failure.reason is Rejection.UPSTREAM_TIMEOUT
            self.reason = failure.reason if timed_out else None
            self._close(Outcome.CUT if outcome is Outcome.CUT else Outcome.CANCELLED)
            return
        self.reason = failure.reason
        if self.outlet.begun:
            self.outlet.break_off(failure, self.told_in, self._desk.settings.break_off_timeout)
        else:
            self.outlet.error(failure, self.told_in, self._desk.services.random)
        self._close(outcome)

    def _finish_alone(self) -> None:
        """Read the answer to its end without the client: some engines suffer when one request of a batch breaks off."""
        self.resume()
        self._ended = asyncio.get_running_loop().create_future()
        try:
            _ = self._desk.services.tasks.start(
                self._give_up_late(self._ended), name=f"finish {self.outlet.request_id}"
            )
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
        if self._booked:
            self._desk.budget.give(self._booked)
            self._booked = 0
        body, self._body = self._body, None
        if type(body) is memoryview and (self._engine is None or self._engine.sent):
            self._door.give_back(body)

    def _close(self, outcome: Outcome) -> None:
        """Let go of everything and report the end; the first call counts."""
        if self._over:
            return
        self._over = True
        if self._comments is not None:
            self._comments.stop()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        if self._body is not None or self._booked:
            self._release_body()
        if self._opening is not None:
            self._opening.cancel()
        if self._engine is not None:
            self._engine.abort()
            self._engine = None
        lease = self.lease
        if lease is not None:
            if lease.answer is None:
                ready = self._desk.ready.since(lease.model)
                lease.left(cold_start=ready is None or ready > lease.arrived)
            # without these two the objects of a request would be a cycle, which only the garbage collector ends
            lease.on_break = lease.on_answer = None
            lease.end(outcome)
        self._desk.services.finished(self.record(self._desk.services.now()))
        self._client.over()
