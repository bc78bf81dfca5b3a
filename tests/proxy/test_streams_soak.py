"""Many streams at once, clients that leave and engines that die at random: afterwards nothing of them is left."""

import asyncio
import random

import psutil
import pytest

from tests.proxy.breaking import BODY, CHAT_PATH, SSE_HEAD, chunk
from tests.proxy.harness import Node, post_bytes, raw_client, raw_engine, read_request, running, until
from tests.soak.books import LONG_S

STREAMS = 256
EVENTS = 10
MIB = 1 << 20


class Mortal:
    """An engine whose connections die at random, at any moment of an answer."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            dies_at = self.dice.randrange(EVENTS * 4)
            for number, piece in enumerate([SSE_HEAD, *[chunk(b"data: 1\n\n")] * EVENTS, b"0\r\n\r\n"]):
                if number == dies_at:
                    writer.transport.abort()
                    return
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)


async def stream(node: Node, dice: random.Random) -> None:
    """Read a stream to its end, or leave it somewhere."""
    async with raw_client(node.port) as client:
        try:
            await client.send(post_bytes(CHAT_PATH, BODY))
            if not (await client.read_head()).startswith(b"HTTP/1.1 200"):
                return  # the engine died twice before it answered: a whole 502, after which nothing more comes
            for _ in range(dice.choice([0, 1, 5, EVENTS])):
                await client.read_until(b"\n\n")
            if dice.random() < 0.5:
                await client.read_until(b"0\r\n\r\n")
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the engine has died
        client.leave()


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(0, id="short"),
        pytest.param(LONG_S, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(LONG_S + 300)]),
    ],
)
async def test_memory_descriptors_connections_and_counters_return_to_where_they_were(seconds: int) -> None:
    dice, process, loop = random.Random(1), psutil.Process(), asyncio.get_running_loop()
    async with raw_engine(Mortal(dice)) as port, running(engine_port=port) as node:

        async def round_of_streams() -> None:
            await asyncio.gather(*(stream(node, dice) for _ in range(STREAMS)))
            await until(lambda: not node.core.open, "the end of every request")
            node.core.events.clear()
            node.records.clear()

        descriptors = process.num_fds()
        await round_of_streams()
        memory = process.memory_info().rss
        end = loop.time() + seconds
        await round_of_streams()
        while loop.time() < end:
            await round_of_streams()
        node.assert_nothing_left()
        assert len(node.tasks) == 0
        assert process.memory_info().rss - memory < 16 * MIB
        await node.front.aclose()
        await until(lambda: node.front.engine_connections == 0, "the end of the connections to the engine")
        await until(lambda: process.num_fds() <= descriptors, "closed descriptors")
