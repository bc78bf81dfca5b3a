"""An engine may answer before it has read the request: neither its connection nor the body's memory is used again."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import cast

import pytest
from typing_extensions import override

from swapd.proxy.front import pool
from swapd.proxy.front.engine import EngineConnection
from tests.proxy.breaking import CHAT_PATH
from tests.proxy.harness import post_bytes, raw_client, running, until

SIZE = 250_000
"""Large enough for the memory that is used again, small enough to be handed to the transport at once."""
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def body_of(letter: bytes) -> bytes:
    start = b'{"model":"m01","x":"'
    return start + letter * (SIZE - len(start) - 2) + b'"}'


class Hasty:
    """An engine that answers each head, and reads no body until it is told to."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        #: what came behind the head of each connection's first request
        self.bodies: list[bytes] = []
        self.connections = 0

    async def __call__(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.connections += 1
        got = b""
        while b"\r\n\r\n" not in got:
            got += await loop.sock_recv(connection, 64)
        await loop.sock_sendall(connection, ANSWER)
        await self.reads.wait()
        rest = bytearray(got.partition(b"\r\n\r\n")[2])
        while len(rest) < SIZE and (piece := await loop.sock_recv(connection, 1 << 16)):
            rest += piece
        self.bodies.append(bytes(rest[:SIZE]))


@asynccontextmanager
async def narrow_engine(talk: Hasty) -> AsyncIterator[int]:
    """Run ``talk`` for each connection; the kernel takes little for it."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listener.settimeout(0)

        async def serve(connection: socket.socket) -> None:
            with connection, suppress(ConnectionError):
                await talk(connection)

        async def accept() -> None:
            while True:
                connection, _ = await loop.sock_accept(listener)
                connection.settimeout(0)
                tasks.add(asyncio.ensure_future(serve(connection)))

        accepting = asyncio.ensure_future(accept())
        try:
            yield listener.getsockname()[1]
        finally:
            for task in (accepting, *tasks):
                task.cancel()
            await asyncio.wait((accepting, *tasks))


class Narrow(EngineConnection):
    """A connection of which the kernel takes little at once."""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("socket.socket", transport.get_extra_info("socket")).setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        super().connection_made(transport)


async def test_what_an_engine_has_not_read_yet_is_never_anothers_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "EngineConnection", Narrow)
    engine = Hasty()
    async with narrow_engine(engine) as port, running(engine_port=port) as node:
        for count, letter in enumerate((b"a", b"b"), 1):
            async with raw_client(node.port) as client:
                await client.send(post_bytes(CHAT_PATH, body_of(letter)))
                assert (await client.read_until(b"{}")).startswith(b"HTTP/1.1 200 ")
            await node.settled(count)
        engine.reads.set()
        await until(lambda: len(engine.bodies) == engine.connections, "the end of what was sent")
    for got in engine.bodies:
        assert any(body_of(letter).startswith(got) for letter in (b"a", b"b"))
    assert engine.connections == 2
