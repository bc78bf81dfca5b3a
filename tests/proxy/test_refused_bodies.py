"""What belongs to a body that was refused is never read as a request."""

import asyncio

from swapd.core.ids import Bytes
from swapd.proxy.settings import ProxySettings
from tests.proxy import harness
from tests.proxy.breaking import CHAT_PATH

REQUEST = b"GET /health HTTP/1.1\r\nHost: node\r\n\r\n"


async def test_more_of_a_refused_body_that_comes_before_the_turn_of_what_is_held() -> None:
    settings = ProxySettings(max_body=Bytes(1000))
    async with harness.running(settings) as node, harness.raw_client(node.port) as client:
        await harness.until(lambda: node.front._server._fast)
        [connection] = node.front._server._fast
        body = REQUEST * 100
        # as a transport may call: what came together, and more in the same turn of the loop
        connection.data_received(b"GET /nothing HTTP/1.1\r\nHost: node\r\n\r\nPOST ")  # type: ignore[attr-defined]
        connection.data_received(harness.post_bytes(CHAT_PATH, body).removeprefix(b"POST ")[: -len(body)])  # type: ignore[attr-defined]
        for _ in range(3):
            await asyncio.sleep(0)
        await client.send(body + b"GET /api/version HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        got = await client.read_all()
    assert [answer[:4] for answer in got.split(b"HTTP/1.1 ")] == [b"", b"404 ", b"413 ", b"200 "]
    assert got.endswith(b'"}')
