"""Carries one request to an engine and its answer back, as bytes; this is the boundary behind which HTTP may change.

Promises to its user: an answer's body comes in the pieces in which it arrived; reading slowly slows the engine down
(the buffer in between is bounded); ``abort`` closes the connection at once; a connection whose answer was not read to
its end is never used again. Nothing here knows of models, leases or clients.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Protocol

import aiohttp
from aiohttp import hdrs
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from swapd.core.ids import SECOND, Duration
from swapd.proxy import interim
from swapd.proxy.body import Body
from swapd.proxy.services import Endpoint

_WRITE_SLICE: Final = 256 << 10
_READ_BUFFER: Final = 64 << 10
_HEAD_LIMIT: Final = 64 << 10
_IDLE_CONNECTION_S: Final = 4.0
"""Shorter than the 5 s after which common engines close idle connections, so that they are rarely met closed."""
_NOT_OURS: Final = frozenset((hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE))


class UnansweredError(Exception):
    """Not one byte of an answer came: the connection was refused, reset or closed. Trying again is safe to offer."""


class MalformedAnswerError(Exception):
    """The answer's head is not HTTP, or says two different things about its length."""


class BrokenAnswerError(Exception):
    """The answer broke off in its body."""


@dataclass(frozen=True, slots=True)
class Outbound:
    """One request as the engine is to see it."""

    method: str
    #: path and query, as received
    target: str
    headers: CIMultiDict[str]
    body: Body
    #: do not use a pooled connection: it may be the reason why the first attempt failed
    fresh: bool = False


class Answer(Protocol):
    """An engine's answer, of which the head is in."""

    @property
    def status(self) -> int:
        """Return the status code."""

    @property
    def reason(self) -> str:
        """Return the reason phrase."""

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        """Return the header fields as received."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body's pieces as they come; raises ``BrokenAnswerError``."""

    def abort(self) -> None:
        """Close the connection unless the answer has been read to its end; may be called again."""


class Relay(Protocol):
    """A way to speak HTTP with engines."""

    async def open(self, endpoint: Endpoint, outbound: Outbound) -> Answer:
        """Send a request and return when the head of the answer is in.

        Raises ``UnansweredError`` or ``MalformedAnswerError``; when cancelled, the connection is closed.
        """

    async def aclose(self) -> None:
        """Close every connection."""


class AiohttpRelay:
    """A relay on aiohttp's client."""

    def __init__(self, connect_timeout: Duration) -> None:
        self._pooled = _session(connect_timeout, reuse=True)
        self._fresh = _session(connect_timeout, reuse=False)

    async def open(self, endpoint: Endpoint, outbound: Outbound) -> Answer:
        """Send a request; see ``Relay``."""
        session = self._fresh if outbound.fresh else self._pooled
        url = URL(f"http://{endpoint.authority}{outbound.target}", encoded=True)
        body = outbound.body
        try:
            response = await session.request(
                outbound.method,
                url,
                headers=outbound.headers,
                data=_slices(body.data) if body.present else None,
                skip_auto_headers=_NOT_OURS,
                allow_redirects=False,
            )
        except (aiohttp.ClientResponseError, aiohttp.http_exceptions.HttpProcessingError) as error:
            raise MalformedAnswerError(f"it is not sound HTTP ({_first_line(error)})") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UnansweredError(type(error).__name__) from error
        if hdrs.CONTENT_LENGTH in response.headers and hdrs.TRANSFER_ENCODING in response.headers:
            response.close()
            raise MalformedAnswerError("it has both Content-Length and Transfer-Encoding")
        if response.status < 200:
            response.close()
            raise MalformedAnswerError(f"it has the interim status {response.status}")
        return _AiohttpAnswer(response)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pooled.close()
        await self._fresh.close()


class _AiohttpAnswer:
    """An answer on aiohttp's client."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._lost = _lost(response)

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def reason(self) -> str:
        return self._response.reason or ""

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        return self._response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, aiohttp.http_exceptions.HttpProcessingError, OSError) as error:
            raise BrokenAnswerError(f"it broke off ({type(error).__name__})") from error
        if self._lost is not None and self._lost.done() and self._lost.exception() is not None:
            raise BrokenAnswerError("its connection was reset")

    def abort(self) -> None:
        self._response.close()


def _lost(response: aiohttp.ClientResponse) -> asyncio.Future[None] | None:
    """Return what will hold the error of the connection, for an answer that ends only where its connection does.

    aiohttp takes a reset for the proper end of such an answer.
    """
    headers = response.headers
    connection = response.connection
    if hdrs.CONTENT_LENGTH in headers or hdrs.TRANSFER_ENCODING in headers or connection is None:
        return None
    lost = None if connection.protocol is None else connection.protocol.closed
    if lost is not None:
        # marks the error as seen, also where nobody reads the answer to its end
        lost.add_done_callback(lambda done: done.cancelled() or done.exception())
    return lost


def _session(connect_timeout: Duration, *, reuse: bool) -> aiohttp.ClientSession:
    connector = (
        interim.connector(limit=0, keepalive_timeout=_IDLE_CONNECTION_S)
        if reuse
        else interim.connector(limit=0, force_close=True)
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout / SECOND),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        read_bufsize=_READ_BUFFER,
        max_line_size=_HEAD_LIMIT,
        max_field_size=_HEAD_LIMIT,
    )


async def _slices(data: bytearray) -> AsyncIterator[memoryview]:
    """Yield the body in pieces small enough that writing one does not hold up other streams."""
    view = memoryview(data)
    for start in range(0, len(view), _WRITE_SLICE):
        yield view[start : start + _WRITE_SLICE]


def _first_line(error: aiohttp.ClientResponseError | aiohttp.http_exceptions.HttpProcessingError) -> str:
    """Return what is wrong, without the picture of the bytes that aiohttp adds."""
    return error.message.partition("\n")[0].rstrip(" :.") or type(error).__name__
