"""A client that has only stopped sending is told what swapd knows by itself; aiohttp takes it that it has left."""

import asyncio
from collections.abc import Generator

import pytest

from swapd.aio.turns import at_once
from swapd.proxy.front import own
from tests.proxy import harness


async def test_a_client_that_has_only_stopped_sending_gets_the_list_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = asyncio.Event()

    async def held_up(steps: Generator[None, None, bytes]) -> bytes:
        await go_on.wait()
        return at_once(steps)

    monkeypatch.setattr(own, "in_turns", held_up)
    ask = b"GET /v1/models HTTP/1.1\r\nHost: node\r\n\r\n"
    async with harness.running() as node, harness.raw_client(node.port) as client:
        await client.send(ask * 2)
        client.writer.write_eof()
        await harness.until(lambda: any(connection.closing for connection in node.front._server._fast))
        go_on.set()
        got = await client.read_all()
        assert got.startswith(b"HTTP/1.1 200")
        assert got.count(b'{"object":"list"') == 1
        await harness.until(lambda: not node.front._server._fast)
