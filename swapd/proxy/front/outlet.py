"""Writes one answer to one client: head, pieces, end, or what makes a break visible.

Small parts leave in one piece with the head. What the client has received is always a whole number of chunks, so that
an error event can be written at any moment. An outlet whose client has gone takes everything and writes nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from swapd.core.commands import Grant
from swapd.core.ids import SECOND, Duration
from swapd.proxy.dialects import Dialect, error_body, stream_error
from swapd.proxy.errors import error_headers
from swapd.proxy.failure import Failure
from swapd.proxy.forward import EVENT_STREAM
from swapd.proxy.front import replies
from swapd.proxy.front.answers import AnswerHead, media_type
from swapd.proxy.front.chunks import LAST, framed

_JOINED: Final = 16 << 10
"""Up to this size a piece is joined with the head: a copy is cheaper than a second write."""


class Outlet:
    """The client's side of one answer. What the class says holds until the answer says otherwise."""

    #: a head has been written, or is about to be
    begun = False
    #: of that head; 0: none
    status = 0
    #: the client has left
    gone = False
    _unsent = b""
    _chunked = False
    #: errors can be told in the body
    _failable = False
    #: of a body of announced length, still to be written
    _left = 0

    def __init__(
        self,
        transport: asyncio.Transport,
        date: replies.Date,
        request_id: str,
        bodiless: bool,  # noqa: FBT001 - by position: there is one for every request
        keep_alive: bool,  # noqa: FBT001
    ) -> None:
        """``bodiless``: the request was HEAD."""
        self._transport: asyncio.Transport | None = transport
        self._date = date
        self.request_id = request_id
        self._bodiless = bodiless
        #: the connection goes on after the answer
        self.keep_alive = keep_alive

    def drop(self) -> None:
        """Note that the client has left."""
        self._transport = None
        self.gone = True

    def begin(self, head: AnswerHead, grant: Grant | None) -> None:
        """Take the head of an engine's answer; it is written with the first piece, or by ``flush``."""
        self.begun = True
        self.status = head.status
        self._unsent = replies.engine_head(
            head,
            self.request_id.encode(),
            date=self._date,
            grant=grant,
            bodiless=self._bodiless,
            keep_alive=self.keep_alive,
        )
        self._chunked = head.length is None and not self._bodiless and head.has_body
        self._left = head.length or 0
        self._failable = replies.is_stream(head.content_type) and not head.content_encoding

    def whole(self, head: AnswerHead, body: bytes, grant: Grant | None) -> None:
        """Write an engine's answer that is complete, and has a length."""
        self.begun = True
        self.status = head.status
        transport = self._transport
        assert transport is not None
        if grant is None or grant.waited or grant.cold_start or not self.keep_alive or len(body) > _JOINED:
            start = replies.engine_head(
                head,
                self.request_id.encode(),
                date=self._date,
                grant=grant,
                bodiless=False,
                keep_alive=self.keep_alive,
            )
            transport.write(start)
            transport.write(body)
            return
        # the common case
        before, after = head.plain or replies.plain(head)
        date = b"" if head.has_date else self._date.line()
        transport.write(b"".join((before, self.request_id.encode(), after, date, b"\r\n\r\n", body)))

    def begin_stream(self) -> None:
        """Write the head of an event stream before there is an answer."""
        self.begun = self._chunked = self._failable = True
        self.status = 200
        self._write(replies.stream_head(self.request_id.encode(), date=self._date, keep_alive=self.keep_alive))

    def comment(self, text: bytes) -> None:
        """Write into a stream that has begun."""
        self._write(framed(text))

    def piece(self, payload: bytes, in_chunk: bytes) -> None:
        """Write a piece of the body; ``in_chunk`` is the same as the engine's framing has it."""
        if not self._chunked:
            self._left -= len(payload)
            data = payload
        elif in_chunk is payload:
            # a body of announced length in a stream that has begun without one
            data = framed(payload)
        else:
            data = in_chunk
        self.chunks(data)

    def chunks(self, data: bytes) -> None:
        """Write what is framed already, behind what is held back."""
        if self._unsent:
            if len(data) <= _JOINED:
                data = self._unsent + data
            else:
                self._write(self._unsent)
            self._unsent = b""
        if self._transport is not None:
            self._transport.write(data)

    @property
    def chunk_writer(self) -> Callable[[bytes], None] | None:
        """Return what takes whole chunks as they are, until the client leaves; ``None``: they go through ``piece``."""
        return self._transport.write if self._chunked and not self._unsent and self._transport is not None else None

    def flush(self) -> None:
        """Write the head if it has not left yet."""
        if self._unsent:
            self._write(self._unsent)
            self._unsent = b""

    def end(self) -> None:
        """Write the end."""
        last = self._unsent + LAST if self._chunked else self._unsent
        self._unsent = b""
        if last:
            self._write(last)

    def own(self, status: int, body: bytes) -> None:
        """Write a whole answer of swapd's own."""
        headers = {"x-request-id": self.request_id, "Server": "swapd"}
        self._own(status, headers, body)

    def error(self, failure: Failure, dialect: Dialect, random: Callable[[], float]) -> None:
        """Write the whole answer for a failure."""
        if failure.close:
            self.keep_alive = False
        self._own(
            failure.status,
            error_headers(failure, self.request_id, random),
            error_body(dialect, failure, self.request_id),
        )

    def break_off(self, failure: Failure | None, dialect: Dialect, patience: Duration) -> None:
        """End an answer that has begun without its proper end; ``None``: there is nothing to tell."""
        self.keep_alive = False
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self.flush()
        if failure is not None and self._failable:
            event = stream_error(dialect, failure, self.request_id)
            if self._chunked:
                transport.write(framed(event))
            elif len(event) < self._left:
                transport.write(event)
        # what was written is still sent, but no last chunk follows; a client that does not read is dropped later
        transport.close()
        _ = asyncio.get_running_loop().call_later(patience / SECOND, transport.abort)

    def _own(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.begun = True
        self.status = status
        self._write(
            replies.own(status, headers, body, date=self._date, bodiless=self._bodiless, keep_alive=self.keep_alive)
        )

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def is_event_stream(head: AnswerHead) -> bool:
    """Tell whether an answer can be passed on into an event stream that has begun."""
    return head.status == 200 and media_type(head.content_type) == EVENT_STREAM and not head.content_encoding
