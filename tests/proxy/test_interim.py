"""An engine's interim answers are passed over, but not for ever, and nothing else waits meanwhile."""

import asyncio

import pytest

from swapd.core.reasons import Outcome
from tests.proxy.breaking import BODY, CHAT_PATH
from tests.proxy.harness import DEADLINE_S, Talk, post_bytes, raw_client, raw_engine, read_request, running

INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def says(*pieces: bytes) -> Talk:
    """Return an engine that answers every request with ``pieces``, one after the other."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            for piece in pieces:
                writer.write(piece)
                await writer.drain()

    return talk


@pytest.mark.parametrize(
    "pieces",
    [(ANSWER,), (INTERIM * 16 + ANSWER,), (INTERIM, ANSWER), (INTERIM + b"HTTP/1.1 103 Early Hints\r\n\r\n", ANSWER)],
)
async def test_a_few_interim_answers_come_before_every_answer_of_a_connection(pieces: tuple[bytes, ...]) -> None:
    async with raw_engine(says(*pieces)) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        for _ in range(3):
            await client.send(post_bytes(CHAT_PATH, BODY))
            assert (await client.read_head()).startswith(b"HTTP/1.1 200")
            assert await client.reader.readexactly(2) == b"ok"
        await node.settled(3)


@pytest.mark.parametrize("flood", [INTERIM * 17 + ANSWER, INTERIM * 20_000])
async def test_more_than_a_few_are_no_answer(flood: bytes) -> None:
    async with raw_engine(says(flood)) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY, "Connection: close"))
        got = await client.read_all()
        assert got.startswith(b"HTTP/1.1 502")
        assert b"interim" in got
        await node.settled(1)
        assert node.core.outcomes == [Outcome.UPSTREAM_FAILED]


async def test_an_engine_that_floods_for_ever_is_given_up_and_its_connection_closed() -> None:
    closed = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        try:
            while True:
                writer.write(INTERIM * 1000)
                await writer.drain()
        finally:
            closed.set()

    async with raw_engine(talk) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        assert (await client.read_head()).startswith(b"HTTP/1.1 502")
        await asyncio.wait_for(closed.wait(), DEADLINE_S)
        await node.settled(1)


async def test_a_large_answer_that_arrives_with_its_head_is_complete() -> None:
    body = bytes(range(256)) * 4096
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    async with raw_engine(says(answer)) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        await client.read_head()
        assert await client.reader.readexactly(len(body)) == body
        await node.settled(1)


async def test_answers_that_nobody_asked_for_are_not_collected() -> None:
    flood = ANSWER * 1000
    received = asyncio.Event()
    ended = asyncio.Event()
    sent = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(ANSWER)
        await received.wait()
        try:
            while sent < 1000 and not writer.transport.is_closing():
                writer.write(flood)
                sent += 1
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            ended.set()

    async with raw_engine(talk) as port, running(engine_port=port) as node:
        async with raw_client(node.port) as client:
            await client.send(post_bytes(CHAT_PATH, BODY))
            assert (await client.read_head()).startswith(b"HTTP/1.1 200")
            assert await client.reader.readexactly(2) == b"ok"
        await node.settled(1)
        received.set()
        await asyncio.wait_for(ended.wait(), DEADLINE_S)
    assert sent < 50
