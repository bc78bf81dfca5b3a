"""The memory of a large body that is refused or broken off goes to another one only once nobody reads it."""

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from swapd.core.reasons import Outcome
from swapd.proxy import naming
from swapd.proxy.front import attempts, pool
from swapd.proxy.front.arena import Arena
from tests.proxy.breaking import CHAT_PATH
from tests.proxy.harness import header, post_bytes, raw_client, running
from tests.proxy.test_early_answers import Narrow, narrow_engine

LARGE = 200_000


def body_of(start: bytes, size: int = LARGE) -> bytes:
    return start + b',"x":"' + b"y" * size + b'"}'


@pytest.mark.parametrize(
    "body",
    [
        body_of(b'{"model":1'),
        body_of(b'{"model":""'),
        body_of(b'{"model":[1]'),
        body_of(b'{"model":"a\\n"'),
        body_of(b'{"model":"' + b"a" * 300 + b'"'),
        body_of(b'\xef\xbb\xbf{"model":1'),
        body_of(b'\xff{"model":1'),
        body_of(b'{"model":"nobody"'),
        body_of(b'{"model":"m01"')[:-1],
        b"[" * LARGE,
    ],
)
async def test_a_large_body_that_is_refused_leaves_its_connection_and_its_memory_to_the_next(body: bytes) -> None:
    async with running() as node, raw_client(node.port) as client:
        for count in range(1, 4):
            await client.send(post_bytes(CHAT_PATH, body))
            head = await client.read_head()
            assert head.startswith(b"HTTP/1.1 4"), head
            await client.reader.readexactly(int(header(head, "Content-Length") or ""))
            await node.settled(count)


async def test_a_bug_that_still_looks_at_a_large_body_is_told_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(body: Any, *_: Any, **_named: Any) -> None:
        text = body if isinstance(body, (bytes, memoryview)) else memoryview(body)
        raise RuntimeError(str(len(msgspec.json.decode(text, type=dict[str, msgspec.Raw]).popitem())))

    monkeypatch.setattr(attempts, "understand", lambda _services, _head, body, _gist: failing(body))
    monkeypatch.setattr(naming, "read_json", failing)
    async with running() as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, body_of(b'{"model":"m01"')))
        assert (await client.read_head()).startswith(b"HTTP/1.1 500")
        assert (await node.settled(1)).status == 500


class Mumbling:
    """An engine that answers with what is no answer, and reads no body."""

    async def __call__(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        got = b""
        while b"\r\n\r\n" not in got:
            got += await loop.sock_recv(connection, 64)
        await loop.sock_sendall(connection, b"mumble\r\n\r\n")
        await asyncio.Event().wait()


async def test_memory_that_a_transport_may_still_write_is_not_given_to_another_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[bool] = []
    give = Arena.give

    def given(arena: Arena, memory: bytearray) -> None:
        give(arena, memory)
        for idle in arena._idle:
            try:
                idle.extend(b"longer")
            except BufferError:
                looked_at.append(True)

    monkeypatch.setattr(Arena, "give", given)
    monkeypatch.setattr(pool, "EngineConnection", Narrow)
    async with narrow_engine(Mumbling()) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        for count in range(1, 4):
            await client.send(post_bytes(CHAT_PATH, body_of(b'{"model":"m01"')))
            head = await client.read_head()
            assert head.startswith(b"HTTP/1.1 502")
            await client.reader.readexactly(int(header(head, "Content-Length") or ""))
            assert (await node.settled(count)).outcome is Outcome.UPSTREAM_FAILED
    assert looked_at == []
