"""A request that its engine holds for longer than the model's limit is ended, visibly and once."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from swapd.core.ids import MILLISECOND, SECOND, Duration, Instant, ModelName, RequestId
from swapd.core.reasons import Outcome, Rejection
from swapd.proxy.attempts import CutError, until_broken_off
from swapd.proxy.gate import Gate
from swapd.proxy.services import RouteOptions
from tests.proxy.breaking import BODY, CHAT_PATH, Watched
from tests.proxy.harness import (
    DEADLINE_S,
    Node,
    header,
    http_engine,
    post_bytes,
    raw_client,
    raw_engine,
    read_request,
    running,
    until,
)

SHORT = Duration(50 * MILLISECOND)
LONG = Duration(3600 * SECOND)


class Silent:
    """An engine that reads requests and answers none."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.closed = 0

    async def __call__(self, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        self.asked.set()
        assert await reader.read() == b""
        self.closed += 1


def limited(node: Node, *, finish: bool = False, limit: Duration = LONG) -> None:
    node.options["m01"] = RouteOptions(finish_on_abort=finish, request_timeout=limit)


def run_over(node: Node) -> None:
    """Let the time of the only open request pass."""
    [lease] = node.front.gate.leases.values()
    lease.run_over()


@pytest.mark.parametrize("finish", [False, True])
@pytest.mark.parametrize(
    ("path", "error"),
    [(CHAT_PATH, b'"code":"upstream_timeout"'), ("/v1/messages", b'"type":"timeout_error"')],
)
async def test_before_the_first_byte_it_is_a_504_in_the_dialect_of_the_route(
    path: str, error: bytes, *, finish: bool
) -> None:
    engine = Silent()
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        limited(node, finish=finish)
        await client.send(post_bytes(path, BODY, "Connection: close"))
        await asyncio.wait_for(engine.asked.wait(), DEADLINE_S)
        run_over(node)
        got = await client.read_all()
        assert got.startswith(b"HTTP/1.1 504")
        assert header(got, "x-swapd-reason") == "upstream_timeout"
        assert error in got
        await until(lambda: engine.closed == 1, "the end of the engine's connection")
        record = await node.settled(1)
        assert (record.status, record.reason, record.ttfb_s) == (504, Rejection.UPSTREAM_TIMEOUT, None)
        assert node.core.outcomes == [Outcome.UPSTREAM_FAILED]
        # nothing is tried again: the engine may still be working on it
        assert len(node.core.arrivals) == 1


async def test_the_time_runs_out_by_itself() -> None:
    async with raw_engine(Silent()) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        limited(node, limit=SHORT)
        await client.send(post_bytes(CHAT_PATH, BODY))
        assert (await client.read_head()).startswith(b"HTTP/1.1 504")
        await node.settled(1)
        assert node.core.outcomes == [Outcome.UPSTREAM_FAILED]


async def test_after_the_first_byte_the_answer_ends_with_an_error_and_without_a_proper_end() -> None:
    engine = Watched()
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        limited(node)
        await client.send(post_bytes(CHAT_PATH, BODY))
        await client.read_until(b"data: 1\n\n")
        run_over(node)
        got = await client.read_all()
        assert b'"code":"upstream_timeout"' in got
        assert not got.endswith(b"0\r\n\r\n")
        await until(lambda: engine.closed == 1, "the end of the engine's connection")
        record = await node.settled(1)
        assert (record.status, record.reason) == (200, Rejection.UPSTREAM_TIMEOUT)
        assert node.core.outcomes == [Outcome.UPSTREAM_FAILED]


async def test_with_finish_an_abandoned_answer_is_not_read_for_longer() -> None:
    engine = Watched()
    async with raw_engine(engine) as port, running(engine_port=port) as node:
        limited(node, finish=True)
        async with raw_client(node.port) as client:
            await client.send(post_bytes(CHAT_PATH, BODY))
            await client.read_until(b"data: 1\n\n")
            client.leave()
        await until(lambda: node.unattended == 1, "the reader without a client")
        run_over(node)
        await until(lambda: engine.closed == 1, "the end of the engine's connection")
        record = await node.settled(1)
        assert record.reason is Rejection.UPSTREAM_TIMEOUT
        assert node.core.outcomes == [Outcome.CANCELLED]


async def test_with_finish_a_cut_before_the_first_byte_closes_the_engines_connection() -> None:
    engine = Silent()
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        limited(node, finish=True)
        await client.send(post_bytes(CHAT_PATH, BODY))
        await asyncio.wait_for(engine.asked.wait(), DEADLINE_S)
        node.core.cut_all()
        assert (await client.read_head()).startswith(b"HTTP/1.1 503")
        await until(lambda: engine.closed == 1, "the end of the engine's connection")
        await node.settled(1)


async def test_a_websocket_is_closed_with_a_code_that_says_so() -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        return socket

    async with http_engine(handler) as port, running(engine_port=port) as node, aiohttp.ClientSession() as client:
        limited(node)
        async with client.ws_connect(f"{node.url}/v1/realtime?model=m01") as socket:
            await until(lambda: len(node.tasks) == 2, "both directions")
            run_over(node)
            message = await socket.receive(DEADLINE_S)
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.TRY_AGAIN_LATER)
        record = await node.settled(1)
        assert record.reason is Rejection.UPSTREAM_TIMEOUT
        assert node.core.outcomes == [Outcome.UPSTREAM_FAILED]


async def test_a_request_that_becomes_overdue_while_a_cut_interrupts_it_is_interrupted_once() -> None:
    gate = Gate(
        post=lambda _event: None,
        admit=lambda _event: None,
        now=lambda: Instant(1),
        next_request_id=lambda: RequestId(1),
    )
    lease = gate.open(ModelName("m01"))
    with pytest.raises(CutError):
        async with until_broken_off(lease):
            lease.cut()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                lease.run_over()
    lease.end(Outcome.CUT)
