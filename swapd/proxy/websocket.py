"""Joins a client's WebSocket with an engine's, message by message, both ways.

It counts as in flight until it ends. Messages are bounded; pings, pongs and close codes pass. An engine that vanishes
without a close is told as 1011, since 1006 cannot be sent; a cut as 1012 (service restart), a session that exceeds
the model's ``request_timeout`` as 1013 (try again later).
"""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import aiohttp
from aiohttp import WSCloseCode, WSMsgType, hdrs, web
from yarl import URL

from swapd.core.ids import SECOND
from swapd.core.reasons import Outcome, Rejection
from swapd.proxy import interim
from swapd.proxy.attempts import try_instances
from swapd.proxy.desk import Desk
from swapd.proxy.errors import failure_of, invalid, refuse
from swapd.proxy.exchange import Exchange
from swapd.proxy.failure import Failure, RefusedError
from swapd.proxy.gate import Lease
from swapd.proxy.headers import for_websocket
from swapd.proxy.relay import BrokenAnswerError, UnansweredError
from swapd.proxy.services import Endpoint

_CLOSE_WAIT_S: Final = 1.0
"""For the other side's answer to a close."""

Client = web.WebSocketResponse
Engine = aiohttp.ClientWebSocketResponse


class _Ending(NamedTuple):
    code: int
    text: bytes


def is_upgrade(request: web.BaseRequest) -> bool:
    """Tell whether the request asks for a WebSocket."""
    return request.headers.get(hdrs.UPGRADE, "").strip().lower() == "websocket"


def check_upgrade(request: web.BaseRequest) -> None:
    """Raise ``RefusedError`` unless the handshake is sound."""
    if request.method != "GET" or not web.WebSocketResponse().can_prepare(request):
        raise refuse("The WebSocket handshake is malformed.")


async def tunnel(desk: Desk, exchange: Exchange, lease: Lease) -> web.StreamResponse:
    """Serve the WebSocket until one side closes; raises ``BrokenAnswerError`` if the engine vanishes."""
    connect = aiohttp.ClientTimeout(total=None, sock_connect=desk.settings.connect_timeout / SECOND)
    # leaving this scope drops the connection to the engine at once, without a closing handshake
    async with aiohttp.ClientSession(
        connector=interim.connector(),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=connect,
        middlewares=(_without_redirects,),
    ) as session:

        async def attempt(endpoint: Endpoint, _fresh: bool) -> Engine:  # noqa: FBT001 - try_instances passes it so
            return await _connect(desk, exchange, session, endpoint)

        engine = await try_instances(desk, lease, attempt)
        exchange.body.release()
        client = web.WebSocketResponse(
            timeout=_CLOSE_WAIT_S,
            autoclose=False,
            autoping=False,
            protocols=(engine.protocol,) if engine.protocol else (),
            compress=False,
            max_msg_size=desk.settings.max_ws_message,
        )
        client.headers["x-request-id"] = exchange.request_id
        exchange.response, exchange.status = client, client.status
        await client.prepare(exchange.request)
        await _join(desk, exchange, client, engine)
        if exchange.verdict is Outcome.UPSTREAM_FAILED:
            raise BrokenAnswerError("its WebSocket is gone")
        return client


async def _connect(desk: Desk, exchange: Exchange, session: aiohttp.ClientSession, endpoint: Endpoint) -> Engine:
    received = exchange.request.headers
    offered = ",".join(received.getall(hdrs.SEC_WEBSOCKET_PROTOCOL, ()))
    try:
        return await session.ws_connect(
            URL(f"http://{endpoint.authority}{exchange.target}", encoded=True),
            headers=for_websocket(received, exchange.request_id),
            protocols=tuple(name.strip() for name in offered.split(",") if name.strip()),
            autoclose=False,
            autoping=False,
            timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_WAIT_S),
            max_msg_size=desk.settings.max_ws_message,
        )
    except aiohttp.WSServerHandshakeError as error:
        raise RefusedError(_no_websocket(error.status)) from error
    except (aiohttp.ClientError, OSError) as error:
        raise UnansweredError(type(error).__name__) from error


async def _without_redirects(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Refuse to be sent elsewhere: the library would take the client's headers to whatever host the engine names."""
    response = await send(request)
    if 300 <= response.status < 400:
        response.close()
        raise aiohttp.WSServerHandshakeError(response.request_info, response.history, status=response.status)
    return response


def _no_websocket(status: int) -> Failure:
    """Return the failure for an engine that answered the handshake with a plain status."""
    message = f"The engine did not open a WebSocket but answered with status {status}."
    if 400 <= status < 500:
        return invalid(message, status=status, code="no_websocket")
    return failure_of(Rejection.UPSTREAM_FAILED, message)


async def _join(desk: Desk, exchange: Exchange, client: web.WebSocketResponse, engine: Engine) -> None:
    """Pass messages until one side ends; then close the other in the same way, then the first."""

    def downwards(count: int) -> None:
        exchange.wrote(count, desk.services.now())

    def upwards(count: int) -> None:
        exchange.body.size += count

    start = desk.services.tasks.start
    up = start(_pump(client, engine, upwards), name=f"websocket up {exchange.request_id}")
    down = start(_pump(engine, client, downwards), name=f"websocket down {exchange.request_id}")
    try:
        await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
        by_engine = down.done()
        ending = down.result() if by_engine else up.result()
        await _stop(down, up)
        # closing the client's side may cancel this handler: what the end was must be known before
        vanished = by_engine and ending.code == WSCloseCode.ABNORMAL_CLOSURE
        exchange.verdict = Outcome.UPSTREAM_FAILED if vanished else Outcome.SERVED
        code = WSCloseCode.INTERNAL_ERROR if vanished else ending.code
        for socket in (client, engine) if by_engine else (engine, client):
            await socket.close(code=code, message=ending.text)
    except asyncio.CancelledError:
        await _stop(down, up)
        lease = exchange.lease
        if lease is not None and lease.is_cut:
            exchange.verdict = Outcome.CUT
            await client.close(code=WSCloseCode.SERVICE_RESTART, message=b"the model is leaving its GPUs")
        elif lease is not None and lease.is_overdue:
            exchange.verdict, exchange.reason = Outcome.UPSTREAM_FAILED, Rejection.UPSTREAM_TIMEOUT
            await client.close(code=WSCloseCode.TRY_AGAIN_LATER, message=b"longer than the model's request_timeout")
        raise
    finally:
        # whatever one of them raised, the other does not outlive it
        await _stop(down, up)


async def _stop(*pumps: asyncio.Task[_Ending]) -> None:
    """Cancel those that run and wait: a socket can be closed only when nobody reads from it."""
    for pump in pumps:
        pump.cancel()
    await asyncio.wait(pumps)


async def _pump(source: Client | Engine, sink: Client | Engine, count: Callable[[int], None]) -> _Ending:
    """Pass on what comes from ``source`` until it ends, and return how it did."""
    while True:
        message = await source.receive()
        try:
            match message.type:
                case WSMsgType.TEXT:
                    count(len(message.data.encode()))
                    await sink.send_str(message.data)
                case WSMsgType.BINARY:
                    count(len(message.data))
                    await sink.send_bytes(message.data)
                case WSMsgType.PING:
                    await sink.ping(message.data)
                case WSMsgType.PONG:
                    await sink.pong(message.data)
                case WSMsgType.CLOSE:
                    return _Ending(message.data or WSCloseCode.OK, (message.extra or "").encode())
                case _:
                    return _Ending(source.close_code or WSCloseCode.ABNORMAL_CLOSURE, b"")
        except ConnectionError:
            # the sink is gone; its own pump says how
            return _Ending(sink.close_code or WSCloseCode.ABNORMAL_CLOSURE, b"")
