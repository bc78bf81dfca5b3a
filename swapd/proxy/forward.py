"""Passes an engine's answer on to the client, and makes every break visible.

Pieces leave as they come; the engine is read no faster than the client reads. An answer that breaks off never ends
as if it were complete: a stream gets an error event in the client's dialect, then the connection closes without the
last chunk or before the announced length; an answer without either framing is reset.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from aiohttp import HttpVersion11, hdrs, web

from swapd.core.commands import Grant
from swapd.core.ids import MILLISECOND, SECOND, Duration, Instant
from swapd.core.reasons import Stage
from swapd.proxy.dialects import stream_error
from swapd.proxy.errors import error_response
from swapd.proxy.exchange import Exchange
from swapd.proxy.failure import Failure
from swapd.proxy.headers import for_client
from swapd.proxy.relay import Answer
from swapd.proxy.services import Services
from swapd.proxy.usage import UsageReader

EVENT_STREAM: Final = "text/event-stream"
STREAMS: Final = frozenset((EVENT_STREAM, "application/x-ndjson", "application/ndjson"))
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


def media_type(answer: Answer) -> str:
    """Return the answer's media type without parameters."""
    return answer.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()


async def begin(exchange: Exchange, answer: Answer) -> web.StreamResponse:
    """Send the head of the engine's answer."""
    headers = for_client(answer.headers, exchange.request_id)
    headers.setdefault(hdrs.SERVER, "swapd")
    if media_type(answer) in STREAMS:
        headers["x-accel-buffering"] = "no"
    if exchange.lease is not None and exchange.lease.grant is not None:
        headers.update(start_headers(exchange.lease.grant))
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)
    exchange.response = response
    exchange.status = answer.status
    await response.prepare(exchange.request)
    return response


def start_headers(grant: Grant) -> dict[str, str]:
    """Return the headers that tell how the request came to its engine; none if it did not wait."""
    if not grant.waited and not grant.cold_start:
        return {}
    stages = {stage.value: duration for stage, duration in grant.stages.items() if stage is not Stage.QUEUED}
    parts = [("queue", grant.stages.get(Stage.QUEUED, grant.waited)), *stages.items()]
    timing = ", ".join(f"{name};dur={duration / MILLISECOND:.1f}" for name, duration in parts)
    cold = {"x-swapd-cold-start": "1"} if grant.cold_start else {}
    return {"server-timing": timing, **cold}


async def pass_on(exchange: Exchange, answer: Answer, now: Callable[[], Instant]) -> web.StreamResponse:
    """Send the whole answer; raises ``BrokenAnswerError``, and ``ConnectionError`` when the client has gone."""
    response = exchange.response or await begin(exchange, answer)
    reader = exchange.reader = UsageReader.of(answer.headers)
    async for chunk in answer.chunks():
        await response.write(chunk)
        exchange.wrote(len(chunk), now())
        reader.feed(chunk)
    await response.write_eof()
    exchange.wrote(0, now())
    exchange.usage = reader.finish()
    return response


async def commit_stream(exchange: Exchange) -> web.StreamResponse:
    """Send the head of an event stream before there is an answer, so that comments can keep the connection alive."""
    if exchange.response is None:
        headers = {
            hdrs.CONTENT_TYPE: EVENT_STREAM,
            hdrs.CACHE_CONTROL: "no-cache",
            hdrs.SERVER: "swapd",
            "x-accel-buffering": "no",
            "x-request-id": exchange.request_id,
        }
        exchange.response = web.StreamResponse(status=200, headers=headers)
        exchange.status = 200
        await exchange.response.prepare(exchange.request)
    return exchange.response


async def fail(exchange: Exchange, failure: Failure, services: Services, patience: Duration) -> web.StreamResponse:
    """Tell the client of a failure, by an error if nothing was sent yet, else by a visible break."""
    exchange.reason = failure.reason
    if exchange.response is None:
        exchange.status = failure.status
        return error_response(failure, exchange.dialect, exchange.request_id, services.random)
    await _break_off(exchange, exchange.response, failure, patience)
    return exchange.response


async def _break_off(exchange: Exchange, response: web.StreamResponse, failure: Failure, patience: Duration) -> None:
    transport = exchange.request.transport
    response.force_close()
    if transport is None or transport.is_closing():
        return
    is_stream = response.headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower() in STREAMS
    framed = exchange.request.version >= HttpVersion11 or hdrs.CONTENT_LENGTH in response.headers
    if is_stream and hdrs.CONTENT_ENCODING not in response.headers:
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(patience / SECOND):
                await response.write(stream_error(exchange.dialect, failure, exchange.request_id))
    elif not framed:
        # only a reset tells the client that this is not the end of the answer
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()
        return
    # what was written is still sent, but no last chunk follows; a client that does not read is dropped later
    transport.close()
    asyncio.get_running_loop().call_later(patience / SECOND, transport.abort)
