"""Backpressure holds in both directions, so memory does not grow with what is sent."""

import asyncio
import ctypes
import gc

import psutil
from aiohttp import web

from swapd.core.reasons import Outcome
from tests.proxy.harness import http_engine, post_bytes, raw_client, raw_engine, read_request, running, until

PATH = "/v1/chat/completions"
BODY = b'{"model":"m01","stream":true}'
MIB = 1 << 20


async def quiet(value: list[int]) -> None:
    """Wait until a counter has not moved for a while."""
    last = -1
    still = 0
    while still < 25:
        await asyncio.sleep(0.01)
        still = still + 1 if value[0] == last else 0
        last = value[0]


async def test_an_engine_is_read_no_faster_than_the_client_reads() -> None:
    sent = [0]
    block = b"x" * 65_536

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % (200 * MIB))
        while sent[0] < 200 * MIB:
            writer.write(block)
            await writer.drain()
            sent[0] += len(block)

    process = psutil.Process()
    async with raw_engine(talk) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        client.stop_reading()
        gc.collect()
        before = process.memory_info().rss
        await client.send(post_bytes(PATH, BODY))
        await until(lambda: sent[0] > 0)
        await quiet(sent)
        # what the kernel's socket buffers take, and little more
        assert sent[0] < 50 * MIB
        assert process.memory_info().rss - before < 32 * MIB
        client.go_on_reading()
        received = 0
        while piece := await client.reader.read(1 << 18):
            received += len(piece)
            if received >= 200 * MIB:
                break
        record = await node.settled(1)
        assert record.bytes_out == 200 * MIB
        assert node.core.outcomes == [Outcome.SERVED]
        assert process.memory_info().rss - before < 48 * MIB


async def test_a_large_body_is_held_about_once() -> None:
    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        async for _ in request.content.iter_any():
            pass
        return web.Response(text="ok")

    process = psutil.Process()
    size = 48 * MIB
    head = f"POST {PATH} HTTP/1.1\r\nHost: n\r\nContent-Length: {size}\r\n\r\n".encode()
    start = b'{"model":"m01","x":"'
    async with http_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        node.core.hold = True
        before = settled_rss(process)
        await client.send(head + start)
        left = size - len(start) - 2
        while left:
            piece = min(left, 65_536)
            await client.send(b"y" * piece)
            left -= piece
        await client.send(b'"}')
        await until(lambda: node.core.waiting)
        held = settled_rss(process) - before
        assert held < size * 1.5 + 16 * MIB
        node.core.grant_all()
        assert (await client.read_head()).startswith(b"HTTP/1.1 200")
        record = await node.settled(1)
        assert record.bytes_in == size
        assert settled_rss(process) - before < 24 * MIB


def settled_rss(process: psutil.Process) -> int:
    """Return the resident memory without what the allocator keeps for later, bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(process.memory_info().rss)


async def test_a_client_that_uploads_faster_than_the_engine_reads_is_no_trouble() -> None:
    go = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await go.wait()
        await reader.readexactly(8 * MIB)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()

    body = b'{"model":"m01","x":"' + b"y" * (8 * MIB - 22) + b'"}'
    async with raw_engine(talk) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(PATH, body))
        await until(lambda: node.core.open)
        go.set()
        assert (await client.read_head()).startswith(b"HTTP/1.1 200")
        await node.settled(1)


async def test_many_requests_leave_no_descriptors_tasks_or_bytes() -> None:
    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        await request.content.read()
        return web.Response(text="ok")

    process = psutil.Process()
    async with http_engine(engine) as port, running(engine_port=port) as node:

        async def ask(*, leave: bool) -> None:
            async with raw_client(node.port) as client:
                await client.send(post_bytes(PATH, BODY))
                if not leave:
                    assert (await client.read_head()).startswith(b"HTTP/1.1 200")
                client.leave()

        await asyncio.gather(*(ask(leave=number % 3 == 0) for number in range(30)))
        await until(lambda: not node.core.open)
        await until(lambda: len(asyncio.all_tasks()) < 60)
        baseline = process.num_fds()
        for _ in range(5):
            await asyncio.gather(*(ask(leave=number % 3 == 0) for number in range(100)))
        await until(lambda: not node.core.open)
        node.assert_nothing_left()
        # connections kept to the engine are few; those of clients are gone
        await until(lambda: process.num_fds() <= baseline + 110)
        assert len(node.tasks) == 0
