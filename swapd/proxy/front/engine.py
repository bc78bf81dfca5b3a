"""Carries one request and its answer at a time on a connection to an engine.

A connection goes back to its pool only when the answer has been followed to its exact end, the request has been sent
whole and the engine keeps it open; bytes beyond an answer, or on a connection that nobody has asked, close it. Nothing
here knows of clients, models or leases: whoever asks is a ``Sink``, and is told everything by callbacks.
"""

import asyncio
import enum
from collections.abc import Callable
from typing import Final, Protocol, cast

from typing_extensions import override

from swapd.proxy.front.answers import REPEATED, read_answer_head, read_short
from swapd.proxy.front.chunks import LAST, SHORT, STARTS, ChunkError, Chunks, framed, whole_chunks
from swapd.proxy.front.sink import Sink
from swapd.proxy.relay import MalformedAnswerError

Body = bytes | bytearray | memoryview

_MOST_INTERIM: Final = 16
_JOINED: Final = 16 << 10
"""A body up to this size is sent in one piece with its head: a copy is cheaper than a second write."""
_MOST_PASSED: Final = 8
"""So many chunks are told at once: to look at several costs as much as to look at one."""
_SLICE: Final = 256 << 10
"""Written at once."""
_MOST_SLICES: Final = 4
"""In one turn of the loop, that other streams do not wait for it."""


class _State(enum.Enum):
    IDLE = enum.auto()
    HEAD = enum.auto()
    LENGTH = enum.auto()
    CHUNKED = enum.auto()
    UNTIL_CLOSE = enum.auto()
    CLOSED = enum.auto()


# on Python 3.11 a member costs ten times as much as a global
_IDLE: Final = _State.IDLE
_HEAD: Final = _State.HEAD
_LENGTH: Final = _State.LENGTH
_CHUNKED: Final = _State.CHUNKED
_UNTIL_CLOSE: Final = _State.UNTIL_CLOSE
_CLOSED: Final = _State.CLOSED


class Owner(Protocol):
    """Whoever keeps the connections to one engine."""

    #: number of connections, idle or not
    open: int

    def put(self, connection: "EngineConnection") -> None:
        """Take a connection whose answer is complete."""

    def lost(self, connection: "EngineConnection") -> None:
        """Forget a connection that was closed."""


class EngineConnection(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_between_chunks",
        "_bodiless",
        "_chunks",
        "_full",
        "_head",
        "_interim",
        "_known",
        "_left",
        "_passed",
        "_paused",
        "_pool",
        "_reusable",
        "_sink",
        "_state",
        "_unsent",
        "_write",
        "idle_since",
        "transport",
    )

    def __init__(self, pool: Owner) -> None:
        self._pool = pool
        self.transport: asyncio.Transport
        self._state = _IDLE
        #: the pool counts it
        self._known = True
        self._sink: Sink | None = None
        self._head = b""
        self._interim = 0
        self._left = 0
        self._chunks: Chunks | None = None
        #: the next byte begins a chunk
        self._between_chunks = False
        #: what the sink has said that writes the next chunks; only set between chunks
        self._write: Callable[[bytes], None] | None = None
        #: what it has written, and the sink has not been told of
        self._passed: list[bytes] = []
        self._reusable = True
        self._bodiless = False
        self._paused = False
        #: the transport takes no more for now
        self._full = False
        #: what of the request's body has still to be written
        self._unsent: memoryview | None = None
        #: loop time
        self.idle_since = 0.0

    @property
    def left(self) -> int | None:
        """Return how many bytes of a body of announced length are still to come."""
        return self._left if self._state is _LENGTH else None

    def send(self, sink: Sink, head: bytes, body: Body, *, bodiless: bool) -> None:
        """Send a request; ``bodiless``: its answer has no body, whatever its head says."""
        self._sink = sink
        self._state = _HEAD
        self._bodiless = bodiless
        self._interim = 0
        if len(body) <= _JOINED:
            self.transport.write(head + body if body else head)
            return
        self.transport.write(head)
        self._unsent = memoryview(body)
        # in a turn of its own: to read such a body has taken a while already
        _ = asyncio.get_running_loop().call_soon(self._write_on)

    def abort(self) -> None:
        """Drop the request and the connection; nothing is told any more but what has passed."""
        if self._sink is not None:
            self.tell_each()
        self._sink = None
        self._close()

    def tell_each(self) -> None:
        """Pass nothing by the sink from now on: its client has left."""
        self._write = None
        if self._sink is not None and self._passed:
            self._tell_of_passed(self._sink)

    def give_up(self) -> None:
        """Forget a connection that could not be made, or was no longer wanted: uvloop closes that, but tells nobody."""
        self._state = _CLOSED
        self._uncount()
        if hasattr(self, "transport"):
            # it never forgets whom it serves, not even once it has closed
            del self.transport

    def close(self) -> None:
        """Close a connection that is idle."""
        self._state = _CLOSED
        self.transport.close()

    def pause_reading(self) -> None:
        """Read no more of the answer for now."""
        if not self._paused and self._state is not _CLOSED:
            self._paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self._paused and self._state is not _CLOSED:
            self.transport.resume_reading()
        self._paused = False

    # ── called by the transport ──────────────────────────────────────────────────────────────────────────────────

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        if self._state is _CLOSED:
            # given up in the meantime
            wire.abort()
        else:
            self.transport = wire

    @override
    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            # nobody has asked
            if self._state is not _CLOSED:
                self._close()
            return
        try:
            write = self._write
            if write is not None:
                length = len(data)
                if length < SHORT and data.startswith(STARTS[length]) and data.endswith(b"\n\r\n"):
                    # the common case: one whole chunk, of whole lines
                    write(data)
                    passed = self._passed
                    passed.append(data)
                    if len(passed) == _MOST_PASSED:
                        self._tell_of_passed(sink)
                    return
            state = self._state
            if state is _CHUNKED:
                self._chunked(sink, data)
            elif state is _HEAD:
                self._read_head(sink, self._head + data if self._head else data)
            elif state is _LENGTH:
                self._counted(sink, data)
            elif state is _UNTIL_CLOSE:
                sink.piece(data, framed(data))
        except MalformedAnswerError as error:
            self._end_badly()
            sink.malformed(str(error))
        except ChunkError as error:
            self._end_badly()
            sink.breaks(f"it broke off: {error}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this one request
            self._end_badly()
            sink.fails(error)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        state, sink = self._state, self._sink
        self._state, self._sink, self._unsent, self._write = _CLOSED, None, None, None
        self._uncount()
        if sink is None:
            return
        try:
            self._tell_of_loss(sink, state, exc)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this one request
            sink.fails(error)

    @override
    def pause_writing(self) -> None:
        self._full = True

    @override
    def resume_writing(self) -> None:
        self._full = False
        self._write_on()

    # ── the request ──────────────────────────────────────────────────────────────────────────────────────────────

    def _write_on(self) -> None:
        """Write slices until the transport has enough, which says when it wants more, or others want the loop."""
        for _ in range(_MOST_SLICES):
            if self._unsent is None or self._full:
                return
            piece, rest = self._unsent[:_SLICE], self._unsent[_SLICE:]
            self._unsent = rest if len(rest) else None
            self.transport.write(piece)
        _ = asyncio.get_running_loop().call_soon(self._write_on)

    # ── the answer ───────────────────────────────────────────────────────────────────────────────────────────────

    def _read_head(self, sink: Sink, data: bytes) -> None:
        start, end, rest = data.partition(b"\r\n\r\n")
        head = read_short(start) if end and len(start) < REPEATED else read_answer_head(data)
        if head is not None and head.length == len(rest) and head.is_plain and not self._bodiless:
            # the common case: all of it has come at once
            self._head, self._reusable = b"", head.reusable
            sink.whole(head, rest)
            self._end(sink, b"", told=True)
            return
        self._head = data
        while head is not None and head.status < 200:
            if head.status == 101:
                raise MalformedAnswerError("it has the interim status 101")
            if self._interim == _MOST_INTERIM:
                raise MalformedAnswerError(f"it has more than {_MOST_INTERIM} interim answers")
            self._interim += 1
            data = self._head = data[head.size :]
            head = read_answer_head(data) if data else None
        if head is None:
            return
        self._head = b""
        self._reusable = head.reusable
        rest = data[head.size :]
        sink.begins(head)
        if self._bodiless or not head.has_body:
            self._end(sink, rest)
        elif head.chunked:
            self._state, self._chunks, self._between_chunks = _CHUNKED, Chunks(), True
            if rest:
                self._chunked(sink, rest)
        elif head.length is not None:
            self._state, self._left = _LENGTH, head.length
            if rest or not head.length:
                self._counted(sink, rest)
        else:
            self._state = _UNTIL_CLOSE
            if rest:
                sink.piece(rest, framed(rest))
        if self._sink is sink:
            sink.pause_point()

    def _counted(self, sink: Sink, data: bytes) -> None:
        beyond = len(data) - self._left
        if beyond < 0:
            self._left = -beyond
            sink.piece(data, data)
            return
        rest = b""
        if beyond:
            data, rest = data[: self._left], data[self._left :]
        self._left = 0
        if data:
            sink.piece(data, data)
        self._end(sink, rest)

    def _chunked(self, sink: Sink, data: bytes) -> None:
        if self._passed:
            self._tell_of_passed(sink)
        if self._between_chunks:
            end, size, in_lines = whole_chunks(data)
            if end:
                write = sink.in_chunks(data[:end], size, in_lines)
                if self._sink is not sink:
                    return
                self._write = write
            if end == len(data):
                return
            data = data[end:]
            self._write = None
            if data == LAST:
                # the common end
                self._end(sink, b"")
                return
        chunks = self._chunks
        assert chunks is not None
        pieces = chunks.feed(data)
        self._between_chunks = chunks.between
        if pieces:
            payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            sink.piece(payload, framed(payload))
        if chunks.ended:
            self._end(sink, chunks.rest)

    def _tell_of_passed(self, sink: Sink) -> None:
        passed, self._passed = self._passed, []
        sink.passed(passed)

    def _end(self, sink: Sink, rest: bytes, *, told: bool = False) -> None:
        if self._sink is not sink:
            # aborted by the sink meanwhile
            return
        self._sink, self._chunks = None, None
        if self._reusable and not rest and self._unsent is None and not self.transport.get_write_buffer_size():
            self._state = _IDLE
            if self._paused:
                self.resume_reading()
            self._pool.put(self)
        else:
            self._close()
        if not told:
            sink.ends()

    def _tell_of_loss(self, sink: Sink, state: _State, exc: Exception | None) -> None:
        if self._passed:
            self._tell_of_passed(sink)
        if state is _HEAD:
            if self._head or self._interim:
                sink.malformed("it broke off in its head")
            else:
                sink.unanswered()
        elif state is _UNTIL_CLOSE and exc is None:
            sink.ends()
        else:
            sink.breaks("its connection was reset" if exc is not None else "its connection was closed")

    def _uncount(self) -> None:
        if self._known:
            self._known = False
            self._pool.lost(self)

    def _end_badly(self) -> None:
        self._sink = None
        self._close()

    def _close(self) -> None:
        self._state, self._unsent, self._chunks, self._write = _CLOSED, None, None, None
        self.transport.abort()
