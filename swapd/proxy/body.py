"""Reads a request's body into memory, within limits, before anything waits for it.

A body must be complete before its request may wait for a load: only then can its model be read, and only then can it
be sent a second time. Bytes are booked as they arrive, not as they are announced, so that a client that announces much
and sends nothing takes nothing from others. An upload ends when it stalls, or when it is slower on average than a
floor after its first minute.
"""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Final

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from swapd.core.ids import SECOND
from swapd.core.reasons import Rejection
from swapd.proxy.budget import Budget
from swapd.proxy.errors import failure_of, invalid
from swapd.proxy.failure import Failure, RefusedError
from swapd.proxy.settings import ProxySettings

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(slots=True, eq=False)
class Body:
    """The bytes of one request, booked in the budget until released."""

    budget: Budget
    data: bytearray = field(default_factory=bytearray)
    #: the request had a body, perhaps an empty one
    present: bool = False
    #: bytes read, also after the release
    size: int = 0

    def add(self, chunk: bytes, max_body: int) -> None:
        """Keep another piece; raises ``RefusedError`` when it exceeds one of the limits."""
        if self.size + len(chunk) > max_body:
            raise RefusedError(too_large(max_body))
        if not self.budget.take(len(chunk)):
            raise RefusedError(buffer_full())
        self.size += len(chunk)
        self.data += chunk

    def release(self) -> None:
        """Give the bytes back; may be called again. A writer that still holds a view of them may finish."""
        self.budget.give(len(self.data))
        self.data = bytearray()


def too_large(max_body: int) -> Failure:
    """Return the failure for a body above ``http.max_body``."""
    return failure_of(Rejection.BODY_TOO_LARGE, f"The body is larger than {max_body} bytes, the limit http.max_body.")


def buffer_full() -> Failure:
    """Return the failure for a node that has no room for more waiting bodies."""
    return failure_of(Rejection.BUFFER_FULL, "Waiting requests fill the node's buffer (http.max_buffered); try again.")


def too_slow() -> Failure:
    """Return the failure for an upload that does not get on."""
    message = "The upload stalled or was too slow; the body must arrive without long pauses."
    return invalid(message, status=408, code="upload_timeout")


def broken() -> Failure:
    """Return the failure for a body whose end is not to be believed; where a next request would begin is not known."""
    return replace(
        invalid("The body breaks off, its chunks are malformed, or what follows it is no request."), close=True
    )


async def read_body(request: web.BaseRequest, body: Body, settings: ProxySettings) -> None:
    """Read the whole body into ``body``; raises ``RefusedError``, and ``ConnectionError`` if the client has gone.

    The caller releases the body, whatever happens here.
    """
    coding = request.headers.get(hdrs.TRANSFER_ENCODING)
    if coding is not None and coding.strip().lower() != "chunked":
        message = "The only transfer coding that is understood is chunked."
        raise RefusedError(invalid(message, status=501, code="transfer_encoding"))
    announced = request.content_length
    body.present = announced is not None or hdrs.TRANSFER_ENCODING in request.headers
    if announced is not None:
        if announced > settings.max_body:
            raise RefusedError(too_large(settings.max_body))
        if announced > body.budget.free:
            raise RefusedError(buffer_full())
    if request.content.at_eof():
        return
    await _invite(request)
    try:
        await _read(request, body, settings)
    except TimeoutError:
        raise RefusedError(too_slow()) from None
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise RefusedError(broken()) from error


async def _read(request: web.BaseRequest, body: Body, settings: ProxySettings) -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    content = request.content
    while not content.at_eof():
        async with asyncio.timeout_at(upload_deadline(settings, start, loop.time(), body.size)):
            body.add(await content.readany(), settings.max_body)
    error = content.exception()
    if error is not None:
        raise error


def upload_deadline(settings: ProxySettings, start: float, last: float, size: int) -> float:
    """Return the loop time by which an upload must get on that began at ``start`` and has sent ``size`` bytes."""
    slow = settings.upload_grace / SECOND + size / settings.upload_min_rate
    return min(last + settings.upload_stall / SECOND, start + slow)


async def _invite(request: web.BaseRequest) -> None:
    """Tell a client that waits for leave to send its body (``Expect: 100-continue``) to go ahead."""
    expect = request.headers.get(hdrs.EXPECT)
    if expect is None:
        return
    if expect.lower() != "100-continue":
        message = "The only expectation that can be met is 100-continue."
        raise RefusedError(invalid(message, status=417, code="expectation_failed"))
    writer = request.writer
    await writer.write(_CONTINUE)
    # an interim answer is not the answer: errors may still be told
    writer.output_size = 0
