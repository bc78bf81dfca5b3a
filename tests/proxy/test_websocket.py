"""WebSockets are joined message by message and count as in flight."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import NoReturn

import aiohttp
import pytest
from aiohttp import WSMsgType, web

from swapd.core.ids import Bytes
from swapd.core.reasons import Outcome
from swapd.proxy.settings import ProxySettings
from swapd.proxy.websocket import Client, Engine
from tests.proxy.harness import DEADLINE_S, Node, header, http_engine, raw_client, raw_engine, running, until

Session = Callable[[web.WebSocketResponse, web.BaseRequest], Awaitable[None]]


def engine_of(session: Session) -> AbstractAsyncContextManager[int]:
    """Return an engine that accepts every WebSocket and runs ``session`` on it."""

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("realtime", "v2"), autoping=False, max_msg_size=0)
        await socket.prepare(request)
        await session(socket, request)
        return socket

    return http_engine(handler)


async def echo(socket: web.WebSocketResponse, _request: web.BaseRequest) -> None:
    async for message in socket:
        match message.type:
            case WSMsgType.TEXT:
                await socket.send_str(message.data)
            case WSMsgType.BINARY:
                await socket.send_bytes(message.data)
            case WSMsgType.PING:
                await socket.pong(message.data)
            case _:
                pass


@pytest.mark.parametrize("path", ["/upstream/m01/ws/x?a=%20b", "/v1/realtime?model=m01"])
async def test_messages_pass_both_ways_and_the_socket_counts_as_in_flight(path: str) -> None:
    seen: list[web.BaseRequest] = []

    async def session(socket: web.WebSocketResponse, request: web.BaseRequest) -> None:
        seen.append(request)
        await echo(socket, request)

    async with engine_of(session) as port, running(engine_port=port) as node, aiohttp.ClientSession() as client:
        async with client.ws_connect(
            f"{node.url}{path}", protocols=("v2",), headers={"x-request-id": "ws-1"}
        ) as socket:
            assert socket.protocol == "v2"
            await socket.send_str("héllo")
            assert await socket.receive_str() == "héllo"
            await socket.send_bytes(b"\x00\xff" * 40_000)
            assert await socket.receive_bytes() == b"\x00\xff" * 40_000
            assert len(node.core.open) == 1
            assert node.core.outcomes == []
        record = await node.settled(1)
        assert node.core.outcomes == [Outcome.SERVED]
        assert (record.status, record.bytes_in, record.bytes_out) == (101, 80_006, 80_006)
    assert seen[0].raw_path == path.removeprefix("/upstream/m01")
    assert seen[0].headers["x-request-id"] == "ws-1"


async def test_pings_pass_to_the_engine_and_its_pongs_come_back() -> None:
    async with engine_of(echo) as port, running(engine_port=port) as node, aiohttp.ClientSession() as client:
        async with client.ws_connect(f"{node.url}/v1/realtime?model=m01", autoping=False) as socket:
            await socket.ping(b"are you there")
            message = await socket.receive()
            assert (message.type, message.data) == (WSMsgType.PONG, b"are you there")
        await node.settled(1)


async def test_the_engines_close_code_reaches_the_client() -> None:
    async def session(socket: web.WebSocketResponse, _request: web.BaseRequest) -> None:
        await socket.close(code=4001, message=b"enough")

    async with engine_of(session) as port, running(engine_port=port) as node, aiohttp.ClientSession() as client:
        async with client.ws_connect(f"{node.url}/v1/realtime?model=m01") as socket:
            message = await socket.receive()
            assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, 4001, "enough")
        await node.settled(1)
        assert node.core.outcomes == [Outcome.SERVED]


async def test_the_clients_close_code_reaches_the_engine() -> None:
    codes: list[int | None] = []

    async def session(socket: web.WebSocketResponse, request: web.BaseRequest) -> None:
        await echo(socket, request)
        codes.append(socket.close_code)

    async with engine_of(session) as port, running(engine_port=port) as node, aiohttp.ClientSession() as client:
        socket = await client.ws_connect(f"{node.url}/v1/realtime?model=m01")
        await socket.close(code=4002)
        await node.settled(1)
        await until(lambda: codes)
    assert codes == [4002]


async def test_a_client_that_vanishes_ends_the_engines_socket() -> None:
    ended = asyncio.Event()

    async def session(socket: web.WebSocketResponse, request: web.BaseRequest) -> None:
        try:
            await echo(socket, request)
        finally:
            ended.set()

    async with engine_of(session) as port, running(engine_port=port) as node:
        async with raw_client(node.port) as client:
            await client.send(HANDSHAKE)
            assert (await client.read_head()).startswith(b"HTTP/1.1 101")
            client.leave()
        await asyncio.wait_for(ended.wait(), DEADLINE_S)
        await node.settled(1)
        assert node.core.outcomes == [Outcome.CANCELLED]


async def test_an_engine_that_vanishes_is_told_as_an_error() -> None:
    async def session(_socket: web.WebSocketResponse, request: web.BaseRequest) -> None:
        assert request.transport is not None
        request.transport.abort()

    async with engine_of(session) as port, running(engine_port=port) as node, aiohttp.ClientSession() as client:
        async with client.ws_connect(f"{node.url}/v1/realtime?model=m01") as socket:
            message = await socket.receive()
            assert (message.type, message.data) == (WSMsgType.CLOSE, 1011)
        await node.settled(1)
        assert node.core.outcomes == [Outcome.UPSTREAM_FAILED]


async def test_a_cut_is_told_as_a_restart_of_the_service() -> None:
    async with engine_of(echo) as port, running(engine_port=port) as node, aiohttp.ClientSession() as client:
        async with client.ws_connect(f"{node.url}/v1/realtime?model=m01") as socket:
            await socket.send_str("x")
            await socket.receive_str()
            node.core.cut_all()
            message = await socket.receive()
            assert (message.type, message.data) == (WSMsgType.CLOSE, 1012)
        await node.settled(1)
        assert node.core.outcomes == [Outcome.CUT]


@pytest.mark.parametrize("from_engine", [False, True])
async def test_a_message_above_the_limit_closes_the_socket(*, from_engine: bool) -> None:
    async def session(socket: web.WebSocketResponse, request: web.BaseRequest) -> None:
        if from_engine:
            await socket.send_bytes(b"x" * 5000)
        await echo(socket, request)

    settings = ProxySettings(max_ws_message=Bytes(1000))
    async with (
        engine_of(session) as port,
        running(settings, engine_port=port) as node,
        aiohttp.ClientSession() as client,
    ):
        async with client.ws_connect(f"{node.url}/v1/realtime?model=m01") as socket:
            if not from_engine:
                await socket.send_bytes(b"x" * 5000)
            message = await socket.receive()
            assert (message.type, message.data) == (WSMsgType.CLOSE, 1009)
        await node.settled(1)


HANDSHAKE = (
    b"GET /v1/realtime?model=m01 HTTP/1.1\r\nHost: n\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", b""),
        (b"Version: 13", b"Version: 99"),
        (b"?model=m01", b""),
        (b"/v1/realtime?model=m01", b"/upstream/m01//x"),
    ],
)
async def test_an_unsound_handshake_is_a_400_and_reaches_nobody(old: bytes, new: bytes) -> None:
    async with running() as node, raw_client(node.port) as client:
        await client.send(HANDSHAKE.replace(old, new))
        assert (await client.read_head()).startswith(b"HTTP/1.1 400")
        await node.settled(1)
        assert node.core.events == []


async def test_an_engine_without_websockets_is_told_with_its_status() -> None:
    async def engine(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=404)

    async with http_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(HANDSHAKE)
        head = await client.read_head()
        assert head.startswith(b"HTTP/1.1 404")
        assert header(head, "x-swapd-reason") == "invalid_request"
        await node.settled(1)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_an_engine_cannot_send_the_handshake_elsewhere(status: int) -> None:
    elsewhere: list[str] = []

    async def other(request: web.BaseRequest) -> web.StreamResponse:
        elsewhere.append(request.raw_path)
        return web.Response()

    async with http_engine(other) as other_port:

        async def engine(_request: web.BaseRequest) -> web.StreamResponse:
            return web.Response(status=status, headers={"Location": f"http://127.0.0.1:{other_port}/stolen"})

        async with http_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
            await client.send(HANDSHAKE)
            assert (await client.read_head()).startswith(b"HTTP/1.1 502")
            assert str(status).encode() in await client.read_until(b"}}")
            await node.settled(1)
    assert elsewhere == []


@pytest.mark.parametrize("failing", [Client, Engine])
async def test_a_bug_in_one_direction_ends_the_other(monkeypatch: pytest.MonkeyPatch, failing: type) -> None:
    stopped: list[bool] = []

    async def pump(source: Client | Engine, _sink: Client | Engine, _count: Callable[[int], None]) -> NoReturn:
        if isinstance(source, failing):
            raise ZeroDivisionError
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)
        raise AssertionError

    monkeypatch.setattr("swapd.proxy.websocket._pump", pump)
    async with engine_of(echo) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(HANDSHAKE)
        await client.read_all()
        await node.settled(1)
        await until(lambda: len(node.tasks) == 0, "the end of both directions")
        assert stopped == [True]
        assert [type(error) for error in node.failures] == [ZeroDivisionError]
        node.failures.clear()


async def test_an_engine_that_drops_the_handshake_is_tried_again_and_then_refused() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()

    async with raw_engine(talk) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(HANDSHAKE)
        assert (await client.read_head()).startswith(b"HTTP/1.1 502")
        await node.settled(1)
        assert node.core.outcomes == [Outcome.REJECTED]


async def test_a_websocket_waits_for_its_model_like_any_request() -> None:
    async def connect(node: Node) -> str:
        async with aiohttp.ClientSession() as client, client.ws_connect(f"{node.url}/v1/realtime?model=m01") as socket:
            await socket.send_str("x")
            return await socket.receive_str()

    async with engine_of(echo) as port, running(engine_port=port) as node:
        node.core.hold = True
        connecting = asyncio.ensure_future(connect(node))
        await until(lambda: node.core.waiting)
        node.core.grant_all()
        assert await connecting == "x"
        await node.settled(1)
