"""Keeps connections to engines, and carries one request and its answer on each of them at a time.

The pool is a stack: the connection used last is the one most surely open. A connection goes back to it only when the
answer has been followed to its exact end, the request has been sent whole and the engine keeps it open; bytes beyond an
answer, or on a connection that nobody has asked, close it. Nothing here knows of clients, models or leases: whoever
asks is a ``Sink``, and is told everything by callbacks.
"""

import asyncio
import enum
import re
from typing import Final, Protocol, cast

from typing_extensions import override

from swapd.core.ids import SECOND, Duration
from swapd.proxy.front.answers import AnswerHead, read_answer_head
from swapd.proxy.front.chunks import ChunkError, Chunks, framed
from swapd.proxy.relay import MalformedAnswerError
from swapd.proxy.services import Endpoint

Body = bytes | bytearray | memoryview

_IDLE_S: Final = 4.0
"""Shorter than the 5 s after which common engines close idle connections, so that they are rarely met closed."""
_MOST_INTERIM: Final = 16
_JOINED: Final = 16 << 10
"""A body up to this size is sent in one piece with its head: a copy is cheaper than a second write."""
_SLICE: Final = 256 << 10
"""Written at once; small enough that other streams do not wait for it."""
_WHOLE_CHUNK: Final = re.compile(rb"([1-9a-fA-F][0-9a-fA-F]{0,7})\r\n")


class Sink(Protocol):
    """Whoever has sent a request. After ``ends``, ``unanswered``, ``malformed`` or ``breaks`` nothing more is told."""

    def begins(self, head: AnswerHead) -> None:
        """Take the head of the answer."""

    def piece(self, payload: bytes, framed: bytes) -> None:
        """Take a piece of the body; ``framed`` is the same in chunks, or itself if its length was announced."""

    def pause_point(self) -> None:
        """Take it that all has been told that has come so far."""

    def ends(self) -> None:
        """Take it that the answer is complete."""

    def unanswered(self) -> None:
        """Take it that the connection was lost before a byte of an answer."""

    def malformed(self, why: str) -> None:
        """Take it that what has come is no head of an answer."""

    def breaks(self, why: str) -> None:
        """Take it that the answer has broken off in its body."""

    def fails(self, error: Exception) -> None:
        """Take it that one of these calls, or the reading itself, has raised."""


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


class EngineConnection(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_bodiless",
        "_chunks",
        "_full",
        "_head",
        "_interim",
        "_left",
        "_paused",
        "_pool",
        "_reusable",
        "_sink",
        "_state",
        "_transport",
        "_unsent",
        "idle_since",
    )

    def __init__(self, pool: "EnginePool") -> None:
        self._pool = pool
        self._transport: asyncio.Transport
        self._state = _IDLE
        self._sink: Sink | None = None
        self._head = b""
        self._interim = 0
        self._left = 0
        self._chunks: Chunks | None = None
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
    def usable(self) -> bool:
        """Tell whether a request may be sent."""
        return self._state is _IDLE and not self._transport.is_closing()

    @property
    def sent(self) -> bool:
        """Tell whether nothing of the request waits in memory any more."""
        return self._unsent is None and self._transport.get_write_buffer_size() == 0

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
        self._reusable = True
        if len(body) <= _JOINED:
            self._transport.write(head + body if body else head)
            return
        self._transport.write(head)
        self._unsent = memoryview(body)
        self._write_on()

    def abort(self) -> None:
        """Drop the request and the connection; nothing is told any more."""
        self._sink = None
        self._close()

    def close(self) -> None:
        """Close a connection that is idle."""
        self._state = _CLOSED
        self._transport.close()

    def pause_reading(self) -> None:
        """Read no more of the answer for now."""
        if not self._paused and self._state is not _CLOSED:
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        if self._paused and self._state is not _CLOSED:
            self._transport.resume_reading()
        self._paused = False

    # ── called by the transport ──────────────────────────────────────────────────────────────────────────────────

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._pool.open += 1

    @override
    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            # nobody has asked
            self._close()
            return
        try:
            if self._state is _CHUNKED:
                self._chunked(sink, data)
            elif self._state is _HEAD:
                self._read_head(sink, self._head + data if self._head else data)
            elif self._state is _LENGTH:
                self._counted(sink, data)
            elif self._state is _UNTIL_CLOSE:
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
        self._state, self._sink, self._unsent = _CLOSED, None, None
        self._pool.lost(self)
        if sink is None:
            return
        if state is _HEAD:
            if self._head or self._interim:
                sink.malformed("it broke off in its head")
            else:
                sink.unanswered()
        elif state is _UNTIL_CLOSE and exc is None:
            sink.ends()
        else:
            sink.breaks("its connection was reset" if exc is not None else "its connection was closed")

    @override
    def pause_writing(self) -> None:
        self._full = True

    @override
    def resume_writing(self) -> None:
        self._full = False
        self._write_on()

    # ── the request ──────────────────────────────────────────────────────────────────────────────────────────────

    def _write_on(self) -> None:
        """Write slice after slice until the transport has enough; it says when it wants more."""
        while self._unsent is not None and not self._full:
            piece, rest = self._unsent[:_SLICE], self._unsent[_SLICE:]
            self._unsent = rest if len(rest) else None
            self._transport.write(piece)

    # ── the answer ───────────────────────────────────────────────────────────────────────────────────────────────

    def _read_head(self, sink: Sink, data: bytes) -> None:
        self._head = data
        head = read_answer_head(data)
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
        rest = data[head.size :] if len(data) > head.size else b""
        sink.begins(head)
        if self._bodiless or head.status in {204, 304}:
            self._end(sink, rest)
        elif head.chunked:
            self._state, self._chunks = _CHUNKED, Chunks()
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
        chunks = self._chunks
        assert chunks is not None
        if chunks.between:
            # the common case: one whole chunk, passed on as it is
            found = _WHOLE_CHUNK.match(data)
            if found is not None:
                start = found.end()
                end = start + int(found[1], 16)
                if end + 2 == len(data) and data.endswith(b"\r\n"):
                    sink.piece(data[start:end], data)
                    return
        pieces = chunks.feed(data)
        if pieces:
            payload = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            sink.piece(payload, framed(payload))
        if chunks.ended:
            self._end(sink, chunks.rest)

    def _end(self, sink: Sink, rest: bytes) -> None:
        if self._sink is not sink:
            # aborted by the sink meanwhile
            return
        self._sink, self._chunks = None, None
        if self._reusable and not rest and self._unsent is None:
            self._state = _IDLE
            if self._paused:
                self.resume_reading()
            self._pool.put(self)
        else:
            self._close()
        sink.ends()

    def _end_badly(self) -> None:
        self._sink = None
        self._close()

    def _close(self) -> None:
        self._state, self._unsent, self._chunks = _CLOSED, None, None
        self._transport.abort()


class EnginePool:
    """The idle connections to one engine."""

    def __init__(self, endpoint: Endpoint, connect_timeout: Duration) -> None:
        self._endpoint = endpoint
        self._connect_timeout_s = connect_timeout / SECOND
        self._idle: list[EngineConnection] = []
        self._loop = asyncio.get_running_loop()
        #: number of connections, idle or not
        self.open = 0
        #: the line that names the engine's host, with the line end before it
        self.host_line: Final = b"\r\nHost: " + endpoint.authority.encode()

    @property
    def idle(self) -> int:
        """Return the number of connections that wait for a request."""
        return len(self._idle)

    def take(self) -> EngineConnection | None:
        """Return the connection that was used last, if it is fresh enough to be open still."""
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.usable and self._loop.time() - connection.idle_since < _IDLE_S:
                return connection
            connection.close()
        return None

    async def connect(self) -> EngineConnection:
        """Open another connection; raises ``OSError``, ``TimeoutError`` among them."""
        async with asyncio.timeout(self._connect_timeout_s):
            _, connection = await self._loop.create_connection(
                lambda: EngineConnection(self), self._endpoint.host, self._endpoint.port
            )
        return connection

    def put(self, connection: EngineConnection) -> None:
        """Take a connection whose answer is complete (called by the connection)."""
        connection.idle_since = self._loop.time()
        self._idle.append(connection)

    def lost(self, connection: EngineConnection) -> None:
        """Forget a connection that was closed (called by the connection)."""
        self.open -= 1
        if connection in self._idle:
            self._idle.remove(connection)

    def expire(self, *, everything: bool = False) -> None:
        """Close the connections that have been idle for too long, or all."""
        now = self._loop.time()
        while self._idle and (everything or now - self._idle[0].idle_since >= _IDLE_S):
            self._idle.pop(0).close()
