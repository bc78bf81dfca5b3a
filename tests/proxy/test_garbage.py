"""A request ends with its answer and a connection with its client: no cycle keeps them for the garbage collector."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from aiohttp import web

from swapd.proxy.exchange import Exchange
from swapd.proxy.front.engine import EngineConnection
from swapd.proxy.front.exchange import FrontExchange
from swapd.proxy.pooled import _Answer
from swapd.proxy.services import Endpoint
from tests.fakes.garbage import alive, no_collector
from tests.proxy.breaking import BODY, CHAT_PATH, SSE_HEAD, Watched, chunk, dies_after
from tests.proxy.harness import INSTANCE, Talk, post_bytes, raw_client, raw_engine, running, until

OURS = (web.RequestHandler, Exchange, FrontExchange, EngineConnection, _Answer)
PIECE = SSE_HEAD + chunk(b"data: 1\n\n")
ENGINES: dict[str, Talk] = {
    "answers": dies_after(PIECE + b"0\r\n\r\n"),
    "breaks off": dies_after(PIECE),
    "is reset": dies_after(PIECE, reset=True),
    "does not answer": dies_after(b""),
    "is no server": dies_after(b"what?\r\n\r\n"),
    "goes on": Watched(),
}


@pytest.fixture
def full() -> Iterator[Endpoint]:
    """Return where somebody listens who takes no connection: each one waits."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as stack:
        port = listener.getsockname()[1]
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)  # noqa: FBT003
            waiting.connect_ex(("127.0.0.1", port))
        yield Endpoint("127.0.0.1", port)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
async def test_nothing_of_a_request_waits_for_the_collector(engine: Talk) -> None:
    async with raw_engine(engine) as port, running(engine_port=port) as node:
        with no_collector():
            async with raw_client(node.port) as client:
                await client.send(post_bytes(CHAT_PATH, BODY))
                head = await client.read_head()
                assert head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 502"))
                client.leave()
            await node.settled(1)
            node.records.clear()
            await until(lambda: not alive(*OURS), "the end of what served the request")


async def test_nor_does_anything_of_one_whose_client_left_while_its_engine_was_being_reached(full: Endpoint) -> None:
    async with running() as node:
        node.endpoints[INSTANCE] = full
        with no_collector():
            async with raw_client(node.port) as client:
                await client.send(post_bytes(CHAT_PATH, BODY))
                await until(lambda: node.core.open, "the request")
                client.leave()
                await node.settled(1)
                node.records.clear()
            await until(lambda: not alive(*OURS), "the end of what served the request")


async def test_nor_does_anything_of_one_that_came_in_pieces() -> None:
    async with raw_engine(ENGINES["answers"]) as port, running(engine_port=port) as node:
        with no_collector():
            async with raw_client(node.port) as client:
                head = f"POST {CHAT_PATH} HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n"
                await client.send(head.encode())
                await client.send(chunk(BODY) + b"0\r\n\r\n")
                assert (await client.read_head()).startswith(b"HTTP/1.1 200")
            await until(lambda: not alive(*OURS), "the end of what served the request")
