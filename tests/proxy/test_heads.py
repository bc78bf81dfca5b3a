"""A request's head must be complete within a time limit; nothing else on a connection is timed by it."""

import asyncio

from swapd.core.ids import MILLISECOND, Bytes, Duration
from swapd.proxy.settings import ProxySettings
from tests.proxy.breaking import BODY, CHAT_PATH
from tests.proxy.harness import RawClient, header, post_bytes, raw_client, running, until

IMPATIENT = ProxySettings(max_body=Bytes(64), head_timeout=Duration(200 * MILLISECOND))
HEALTH = b"GET /health HTTP/1.1\r\nHost: node\r\n\r\n"


async def late(port: int) -> None:
    """Begin a head that never ends, and wait until it is given up: heads begun before have been late too."""
    async with raw_client(port) as client:
        await client.send(HEALTH[:-2])
        assert await client.read_all() == b""


async def answered(client: RawClient, request: bytes) -> bytes:
    await client.send(request)
    head = await client.read_head()
    assert head.startswith(b"HTTP/1.1 200")
    return head


async def test_an_incomplete_head_ends_its_connection_however_it_trickles() -> None:
    async with running(IMPATIENT) as node, raw_client(node.port) as trickling, raw_client(node.port) as second:
        await answered(second, HEALTH)
        await second.read_until(b"}")
        await second.send(HEALTH[:5])
        await trickling.send(b"G")
        gone = False
        for byte in HEALTH[1:-1] * 1000:
            if trickling.reader.at_eof():
                gone = True
                break
            try:
                await trickling.send(bytes((byte,)))
            except ConnectionError:
                gone = True
                break
            await late(node.port)
        assert gone
        assert await second.read_all() == b""


async def test_idle_connections_stay() -> None:
    async with running(IMPATIENT) as node, raw_client(node.port) as fresh, raw_client(node.port) as used:
        await answered(used, HEALTH)
        await used.read_until(b"}")
        # the blank line that some clients send after a request is no head
        await used.send(b"\r\n")
        async with raw_client(node.port) as piecemeal:
            await piecemeal.send(HEALTH[:5])
            for _ in range(5):
                await asyncio.sleep(0)
            await answered(piecemeal, HEALTH[5:])
            await piecemeal.read_until(b"}")
            await late(node.port)
            await answered(piecemeal, HEALTH)
        await answered(fresh, HEALTH)
        await answered(used, HEALTH)


async def test_a_body_that_takes_longer_is_not_taken_for_a_head() -> None:
    async with running(IMPATIENT) as node, raw_client(node.port) as client:
        request = post_bytes(CHAT_PATH, b'{"model":"nobody"}')
        await client.send(request[:-10])
        await late(node.port)
        await client.send(request[-10:-5])
        await late(node.port)
        await client.send(request[-5:])
        assert (await client.read_head()).startswith(b"HTTP/1.1 404")
        await node.settled(1)


async def test_a_body_that_arrives_after_its_refusal_is_not_taken_for_a_head() -> None:
    async with running(IMPATIENT) as node, raw_client(node.port) as client:
        request = post_bytes(CHAT_PATH, b"x" * 65)
        await client.send(request[:-65])
        head = await client.read_head()
        assert head.startswith(b"HTTP/1.1 413")
        await client.reader.readexactly(int(header(head, "content-length") or 0))
        await client.send(request[-65:-5])
        await asyncio.sleep(0)
        await client.send(request[-5:])
        await late(node.port)
        await answered(client, HEALTH)
        await node.settled(1)


async def test_a_head_that_begins_during_an_answer_has_time_until_that_is_over() -> None:
    async with running(IMPATIENT) as node, raw_client(node.port) as client:
        node.core.hold = True
        await client.send(post_bytes(CHAT_PATH, BODY))
        await until(lambda: node.core.waiting)
        await client.send(HEALTH[:10])
        await late(node.port)
        assert len(node.core.open) == 1
        node.endpoints.clear()
        node.core.grant_all()
        assert (await client.read_head()).startswith(b"HTTP/1.1 502")
        await node.settled(1)
