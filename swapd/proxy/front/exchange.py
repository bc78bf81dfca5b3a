"""Takes one request of plain form to its engine and back, by callbacks only: here its answer, and its end.

It does what ``inference.py`` does on the other path, under the same rules: one ending, one retry before the first byte,
no clean end for what broke off.
"""

from collections.abc import Callable, Sequence
from typing import Final

import structlog
from typing_extensions import override

from swapd.core.reasons import Outcome, Rejection
from swapd.proxy.errors import internal_error, not_passed_on
from swapd.proxy.failure import Failure
from swapd.proxy.front.answers import AnswerHead
from swapd.proxy.front.attempts import Attempts
from swapd.proxy.front.chunks import SIZES
from swapd.proxy.front.outlet import is_event_stream
from swapd.proxy.front.sink import Sink
from swapd.proxy.front.unattended import Unattended
from swapd.proxy.keepalive import READ_OF_AN_ERROR, no_event_stream
from swapd.proxy.usage import UsageReader, usage_in, usage_reader

_log = structlog.get_logger(__name__)

# on Python 3.11 a member costs ten times as much as a global
_SERVED: Final = Outcome.SERVED


class FrontExchange(Attempts):
    """One request, from its head to its end."""

    #: the client has left, and its answer is read to the end
    _unattended: Unattended | None = None
    _reader: UsageReader | None = None
    #: takes the next chunks as they are
    _write: Callable[[bytes], None] | None = None
    #: an engine's answer that cannot go into the stream that has begun: its status and its first bytes
    _error: tuple[int, bytearray] | None = None

    # ── what the client's connection says ────────────────────────────────────────────────────────────────────────

    @override
    def refuse(self, failure: Failure) -> None:
        """Answer with a failure."""
        self._fail(Outcome.SERVED, failure)

    def client_left(self) -> None:
        """Take it that the client has gone: nothing more can be written."""
        if self._over:
            return
        self.outlet.drop()
        self._write = None
        if self._engine is not None:
            self._engine.tell_each()
        asked = self._engine is not None or self._opening is not None
        if asked and self.model is not None and self._desk.services.options(self.model).finish_on_abort:
            self._finish_alone()
        else:
            self._close(Outcome.CANCELLED)

    # ── the engine's answer ──────────────────────────────────────────────────────────────────────────────────────

    @override
    def whole(self, head: AnswerHead, body: bytes) -> None:
        """Take an answer that has come in one piece."""
        outlet, lease = self.outlet, self.lease
        assert lease is not None
        if outlet.begun or outlet.gone:
            Sink.whole(self, head, body)
            return
        services = self._desk.services
        if type(self._body) is bytes:
            self._desk.budget.give(self._booked)
            self._body, self._booked = None, 0
        else:
            self._release_body()
        self._engine = None
        self.usage = usage_in(head.content_type, head.content_encoding, body)
        self.bytes_out = len(body)
        now = self.first_byte = services.now()
        outlet.whole(head, body, lease.grant)
        # as ``_close`` does for a request that has waited for nothing
        if self._comments is not None:
            self._comments.stop()
        self._over = True
        lease.on_break = lease.on_answer = None
        lease.end(_SERVED, now)
        services.finished(self.record(now))
        self._client.over()

    @override
    def begins(self, head: AnswerHead) -> None:
        """Take the head of the engine's answer; from here on nothing is tried again."""
        assert self.lease is not None
        self._release_body()
        self._reader = usage_reader(head.content_type, head.content_encoding)
        if not self.outlet.begun:
            self.outlet.begin(head, self.lease.grant)
        elif not is_event_stream(head):
            self._error = head.status, bytearray()

    @override
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

    @override
    def in_chunks(self, framed: bytes, size: int, in_lines: bool) -> Callable[[bytes], None] | None:
        """Pass on whole chunks as they are."""
        write = self._write
        if write is None:
            outlet = self.outlet
            if self._error is not None or outlet.gone:
                return Sink.in_chunks(self, framed, size, in_lines)
            if self.first_byte is None:
                self.first_byte = self._desk.services.now()
            outlet.chunks(framed)
            write = self._write = outlet.chunk_writer
        else:
            write(framed)
        self.bytes_out += size
        if self._reader is not None:
            self._reader.read_chunks(framed, in_lines=in_lines)
        return write

    @override
    def passed(self, chunks: Sequence[bytes]) -> None:
        """Count what has been written, and read what it tells of usage."""
        self.bytes_out += sum([SIZES[len(chunk)] for chunk in chunks])
        if self._reader is not None:
            self._reader.read_chunks(b"".join(chunks), in_lines=True)

    @override
    def pause_point(self) -> None:
        """Send what is held back."""
        self.outlet.flush()

    @override
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

    @override
    def unanswered(self) -> None:
        """Try again, if the core says so."""
        self._engine = None
        if self.outlet.gone:
            self._close(Outcome.CANCELLED)
        else:
            self._attempt_failed()

    @override
    def malformed(self, why: str) -> None:
        """Tell that the answer is none."""
        self.breaks(why)

    @override
    def breaks(self, why: str) -> None:
        """Make the break visible."""
        self._engine = None
        self._fail(Outcome.UPSTREAM_FAILED, not_passed_on(why))

    @override
    def fails(self, error: Exception) -> None:
        """End a request that a bug has hit."""
        if self._over:
            return
        _log.error("request_failed", request_id=self.outlet.request_id, path=self.head.path, exc_info=error)
        if self.outlet.begun:
            self.outlet.break_off(None, self.told_in, self._desk.settings.break_off_timeout)
        else:
            self.outlet.keep_alive = False
            self.outlet.error(internal_error(), self.told_in, self._desk.services.random)
        self._close(Outcome.CANCELLED)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────

    @override
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
        desk, name = self._desk, f"finish {self.outlet.request_id}"
        try:
            self._unattended = Unattended(desk.services.tasks, desk.settings.finish_timeout, self._give_up, name=name)
        except RuntimeError:
            # the daemon is closing
            self._give_up()

    def _give_up(self) -> None:
        self._close(Outcome.CANCELLED)

    @override
    def _close(self, outcome: Outcome) -> None:
        """Let go of everything and report the end; the first call counts."""
        if self._over:
            return
        self._over = True
        if self._comments is not None:
            self._comments.stop()
        if self._unattended is not None:
            self._unattended.ended()
        if self._body is not None or self._booked:
            self._release_body()
        if self._opening is not None:
            self._opening.cancel()
            # the frames of a task that was cancelled lead back here
            self._opening = None
        if self._engine is not None:
            self._engine.abort()
            self._engine = None
        services, lease = self._desk.services, self.lease
        if lease is not None:
            if lease.answer is None:
                ready = self._desk.ready_since(lease.model)
                lease.left(cold_start=ready is None or ready > lease.arrived)
            # without these two the objects of a request would be a cycle, which only the garbage collector ends
            lease.on_break = lease.on_answer = None
            lease.end(outcome)
        services.finished(self.record(services.now()))
        self._client.over()
