"""Keeps the data port's connections: aiohttp's low-level server with two rules of our own.

Malformed HTTP is answered in our form, and a request's head must be complete within a time limit, so that clients that
send heads by the byte cannot hold connections for ever. One timer serves all connections. A connection that is
idle between requests, or has sent nothing yet, is not touched; neither is one that is being answered.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import StreamReader, web
from aiohttp.web_protocol import _ErrInfo
from typing_extensions import override

from swapd.core.ids import SECOND, Duration

_SWEEPS_PER_TIMEOUT: Final = 6
"""A late head is noticed within the timeout and a sixth of it."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Malformed = Callable[[str], web.Response]


class HttpServer(web.Server):
    """Makes a protocol for each connection, and closes those whose heads are late."""

    def __init__(self, handler: Handler, malformed: Malformed, *, head_timeout: Duration, **options: Any) -> None:
        """``malformed`` makes the answer to what is not HTTP; ``options`` are aiohttp's."""
        super().__init__(handler, **options)
        self._malformed = malformed
        self._head_timeout_s = head_timeout / SECOND
        self._sweeper: asyncio.TimerHandle | None = None

    @override
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, self._malformed, loop=self._loop, **self._kwargs)

    @override
    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        if self._sweeper is None:
            self._sweep_later()

    @override
    async def shutdown(self, timeout: float | None = None) -> None:
        await super().shutdown(timeout)
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def _sweep_later(self) -> None:
        self._sweeper = self._loop.call_later(self._head_timeout_s / _SWEEPS_PER_TIMEOUT, self._sweep)

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in self.connections:
            if isinstance(connection, _Connection):
                connection.give_time(now)
                if connection.head_is_late(now, self._head_timeout_s):
                    connection.force_close()
        self._sweeper = None
        if self.connections:
            self._sweep_later()


class _Connection(web.RequestHandler):
    """One client's connection."""

    __slots__ = ("_body", "_head_since", "_malformed")

    def __init__(self, manager: HttpServer, malformed: Malformed, **options: Any) -> None:
        super().__init__(manager, **options)
        self._malformed = malformed
        #: of the last request whose head is complete
        self._body: StreamReader | None = None
        #: loop time at which an incomplete head began
        self._head_since: float | None = None

    @override
    def data_received(self, data: bytes) -> None:
        # whatever is neither a body's nor completes a head belongs to a head; blank lines before it do not count
        body = self._body
        in_body = body is not None and not body.is_eof()
        heads = self._request_count
        super().data_received(data)
        if self._request_count > heads:
            self._head_since = None
            self._body = self._messages[-1][1] if self._messages else None
            if body is not None and in_body and self._messages and isinstance(self._messages[-1][0], _ErrInfo):
                # garbage that came with the end of a body: that end is not to be believed
                body.set_exception(self._messages[-1][0].exc)
        elif self._head_since is None and not in_body and data.strip(b"\r\n"):
            self._head_since = self._loop.time()

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        # it holds this; without the garbage collector neither would end
        self._body = None

    def give_time(self, now: float) -> None:
        """Count an incomplete head from now on if a request is served meanwhile."""
        if self._head_since is not None and (self._current_request is not None or self._messages):
            self._head_since = now

    def head_is_late(self, now: float, limit_s: float) -> bool:
        """Tell whether a head has been incomplete for too long."""
        return self._head_since is not None and now - self._head_since > limit_s

    @override
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if message is None:
            # out of a handler, which answers every error it can: the client has gone or must notice a break
            raise ConnectionError("the connection ends here") from exc
        return self._malformed(message)
