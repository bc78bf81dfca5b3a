"""What comes with every request and every piece of a stream takes few calls: on a busy node they are what it costs."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import cast

from typing_extensions import override

from swapd import proxy
from swapd.core.ids import SECOND, Duration
from swapd.proxy.front.engine import EngineConnection
from swapd.proxy.front.pool import EnginePool
from swapd.proxy.services import Endpoint
from tests.proxy import harness
from tests.proxy.breaking import CHAT_PATH
from tests.proxy.harness import INSTANCE, post_bytes

BODY = b'{"model":"m01"}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b"d\r\ndata: {}    \n\r\n"
_ROOM = str(Path(proxy.__file__).parent)


class Wire(asyncio.Transport):
    """Takes everything and sends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    @override
    def is_closing(self) -> bool:
        return False

    @override
    def get_write_buffer_size(self) -> int:
        return 0


def calls(work: Callable[[], None]) -> int:
    """Return how many functions of the front door are called."""
    count = 0

    def called(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(_ROOM)

    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


async def test_requests_and_pieces_of_streams_pass_in_few_calls() -> None:
    async with harness.running() as node:
        server = node.front._server
        pool = server.pools[INSTANCE] = EnginePool(Endpoint("127.0.0.1", 1), Duration(SECOND))
        engine, client = EngineConnection(pool), server()
        towards_engine, towards_client = Wire(), Wire()
        engine.connection_made(towards_engine)
        pool.put(engine)
        client.connection_made(towards_client)
        front = cast("asyncio.Protocol", client)
        request = post_bytes(CHAT_PATH, BODY)

        def plain() -> None:
            front.data_received(request)
            engine.data_received(ANSWER)

        # the first one is read in full
        assert calls(plain) > calls(plain)
        assert calls(plain) <= 32
        front.data_received(request)
        engine.data_received(STREAM + EVENT)
        engine.data_received(EVENT)
        assert calls(lambda: engine.data_received(EVENT)) == 1
        assert towards_client.written[-1] == EVENT
        engine.data_received(b"0\r\n\r\n")
        front.connection_lost(None)
        pool.idle.clear()
        assert len(node.records) == 4
