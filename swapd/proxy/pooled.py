"""The relay of requests that are not of plain form: the fast path's connections, read by whoever waits for them.

So an answer means the same on both paths, and what is malformed is found by one reader. What has come and is not yet
taken is bounded; beyond that the engine is not read.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy
from typing_extensions import override

from swapd.core.ids import Duration
from swapd.proxy.front.answers import AnswerHead
from swapd.proxy.front.engine import EngineConnection
from swapd.proxy.front.pool import EnginePool
from swapd.proxy.front.sink import Sink
from swapd.proxy.relay import Answer, BrokenAnswerError, MalformedAnswerError, Outbound, UnansweredError
from swapd.proxy.services import Endpoint

_HELD: Final = 64 << 10
"""Bytes of an answer that may wait to be taken."""
_SWEEP_S: Final = 1.0
_LINE_ENDS: Final = frozenset("\r\n\0")


class PooledRelay:
    """A relay with a pool of connections for each engine."""

    def __init__(self, connect_timeout: Duration) -> None:
        self._connect_timeout = connect_timeout
        self._pools: dict[Endpoint, EnginePool] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    @property
    def connections(self) -> int:
        """Return the number of connections to engines, idle or not."""
        return sum(pool.open for pool in self._pools.values())

    async def open(self, endpoint: Endpoint, outbound: Outbound) -> Answer:
        """Send a request; see ``Relay``."""
        pool = self._pools.get(endpoint)
        if pool is None:
            pool = self._pools[endpoint] = EnginePool(endpoint, self._connect_timeout)
            self._sweep_later()
        engine = None if outbound.fresh else pool.take()
        if engine is None:
            try:
                engine = await pool.connect()
            except OSError as error:
                raise UnansweredError(type(error).__name__) from error
        answer = _Answer(engine)
        try:
            engine.send(answer, _head(pool, outbound), outbound.body.data, bodiless=outbound.method == "HEAD")
            await answer.begun
        except BaseException:
            answer.abort()
            raise
        if not answer.has_head:
            answer.raise_error()
        return answer

    def close(self) -> None:
        """Close the idle connections; see ``Relay``."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for pool in self._pools.values():
            pool.expire(everything=True)

    def _sweep_later(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Close what has been idle for too long; an engine without a connection is forgotten."""
        self._sweeper = None
        for endpoint, pool in list(self._pools.items()):
            pool.expire()
            if not pool.open:
                del self._pools[endpoint]
        if self._pools:
            self._sweep_later()


def _head(pool: EnginePool, outbound: Outbound) -> bytes:
    """Return the head of a request as the engine gets it."""
    for name, value in outbound.headers.items():
        if not _LINE_ENDS.isdisjoint(name) or not _LINE_ENDS.isdisjoint(value):
            raise ValueError("a header field has a line end")
    target = outbound.target.encode("utf-8", "surrogateescape")
    fields = "".join(f"\r\n{name}: {value}" for name, value in outbound.headers.items()).encode()
    return b"%b %b HTTP/1.1%b%b\r\n\r\n" % (outbound.method.encode(), target, pool.host_line, fields)


class _Answer(Sink):
    """An answer that comes; it is the ``Sink`` of its connection."""

    def __init__(self, engine: EngineConnection) -> None:
        #: done when the head is in, or never will be
        self.begun: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        #: why no more of it comes
        self.error: Exception | None = None
        #: ``None``: the answer is complete or lost
        self._engine: EngineConnection | None = engine
        self._head: AnswerHead | None = None
        self._pieces: deque[bytes] = deque()
        #: bytes in ``_pieces``
        self._held = 0
        #: of the one who waits for the next piece
        self._waiter: asyncio.Future[None] | None = None

    # ── for whoever takes the answer ─────────────────────────────────────────────────────────────────────────────

    @property
    def has_head(self) -> bool:
        """Tell whether the head is in."""
        return self._head is not None

    @property
    def status(self) -> int:
        assert self._head is not None
        return self._head.status

    @property
    def reason(self) -> str:
        assert self._head is not None
        return self._head.reason.decode("utf-8", "replace")

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        assert self._head is not None
        lines = self._head.fields.decode().split("\r\n")[1:]
        pairs = (line.partition(":")[::2] for line in lines)
        return CIMultiDictProxy(CIMultiDict((name, value.strip(" \t")) for name, value in pairs))

    async def chunks(self) -> AsyncIterator[bytes]:
        while self._pieces or self._engine is not None:
            if not self._pieces:
                self._waiter = asyncio.get_running_loop().create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
                continue
            piece = self._pieces.popleft()
            self._held -= len(piece)
            if self._engine is not None and self._held <= _HELD // 2:
                self._engine.resume_reading()
            yield piece
        self.raise_error()

    def raise_error(self) -> None:
        """Raise what has ended the answer, if it is an error, and let go of it: its frames will hold this."""
        try:
            if self.error is not None:
                raise self.error
        finally:
            self.error = None

    def abort(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.abort()

    # ── what the connection says ─────────────────────────────────────────────────────────────────────────────────

    @override
    def begins(self, head: AnswerHead) -> None:
        self._head = head
        if not self.begun.done():
            self.begun.set_result(None)

    @override
    def piece(self, payload: bytes, framed: bytes) -> None:
        self._pieces.append(payload)
        self._held += len(payload)
        if self._held > _HELD and self._engine is not None:
            self._engine.pause_reading()
        self._wake()

    @override
    def pause_point(self) -> None:
        pass

    @override
    def ends(self) -> None:
        self._engine = None
        self._wake()

    @override
    def unanswered(self) -> None:
        self.fails(UnansweredError("the connection was lost"))

    @override
    def malformed(self, why: str) -> None:
        self.fails(MalformedAnswerError(why))

    @override
    def breaks(self, why: str) -> None:
        self.fails(BrokenAnswerError(why))

    @override
    def fails(self, error: Exception) -> None:
        self._engine, self.error = None, error
        if not self.begun.done():
            self.begun.set_result(None)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
