"""Bodies are bounded each and together, and an upload that ends early leaves nothing."""

import asyncio

import pytest
from aiohttp import web

from swapd.core.ids import SECOND, Bytes, Duration
from swapd.core.reasons import Rejection
from swapd.proxy.budget import Budget
from swapd.proxy.settings import ProxySettings
from tests.proxy.harness import header, http_engine, post_bytes, raw_client, running, until

PATH = "/v1/chat/completions"
SMALL = ProxySettings(max_body=Bytes(1000), max_buffered=Bytes(1500))


def body_of(size: int) -> bytes:
    return b'{"model":"m01","x":"' + b"y" * (size - 22) + b'"}'


def test_the_budget_books_all_or_nothing_and_never_goes_below_zero() -> None:
    budget = Budget(10)
    assert budget.take(7)
    assert not budget.take(4)
    assert budget.used == 7
    assert budget.take(3)
    budget.give(10)
    assert budget.used == 0
    with pytest.raises(AssertionError):
        budget.give(1)


def test_a_lowered_limit_takes_nothing_away_but_admits_nothing() -> None:
    budget = Budget(10)
    assert budget.take(8)
    budget.limit = 5
    assert budget.free == 0
    assert not budget.take(1)
    budget.give(8)
    assert budget.take(5)


async def test_a_body_announced_too_large_is_refused_before_it_is_sent() -> None:
    async with running(SMALL) as node, raw_client(node.port) as client:
        await client.send(f"POST {PATH} HTTP/1.1\r\nHost: n\r\nContent-Length: 1001\r\n\r\n".encode())
        head = await client.read_head()
        record = await node.settled(1)
    assert head.startswith(b"HTTP/1.1 413")
    assert header(head, "x-swapd-reason") == "body_too_large"
    assert record.reason is Rejection.BODY_TOO_LARGE
    assert record.outcome is None


async def test_a_body_that_grows_too_large_is_refused_when_it_does() -> None:
    async with running(SMALL) as node, raw_client(node.port) as client:
        await client.send(f"POST {PATH} HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(3):
            await client.send(b"190\r\n" + b"x" * 400 + b"\r\n")
        assert (await client.read_head()).startswith(b"HTTP/1.1 413")
        await node.settled(1)


async def test_a_body_of_the_size_of_the_limit_is_accepted() -> None:
    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=await request.content.read())

    async with http_engine(engine) as port, running(SMALL, engine_port=port) as node, raw_client(node.port) as client:
        body = body_of(1000)
        await client.send(post_bytes(PATH, body, "Connection: close"))
        got = await client.read_all()
        await node.settled(1)
    assert got.endswith(b"\r\n\r\n" + body)


@pytest.mark.parametrize("announced", [True, False])
async def test_bodies_of_waiting_requests_together_are_bounded(*, announced: bool) -> None:
    async with (
        running(SMALL) as node,
        raw_client(node.port) as first,
        raw_client(node.port) as second,
        raw_client(node.port) as third,
    ):
        node.core.hold = True
        await first.send(post_bytes(PATH, body_of(900)))
        await until(lambda: node.core.waiting)
        assert node.front.buffered_bytes == 900
        if announced:
            await second.send(f"POST {PATH} HTTP/1.1\r\nHost: n\r\nContent-Length: 601\r\n\r\n".encode())
        else:
            await second.send(f"POST {PATH} HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            await second.send(b"259\r\n" + b"x" * 601 + b"\r\n")
        head = await second.read_head()
        assert head.startswith(b"HTTP/1.1 429")
        assert header(head, "x-swapd-reason") == "buffer_full"
        assert header(head, "retry-after") is not None
        await third.send(post_bytes(PATH, body_of(600)))
        await until(lambda: len(node.core.waiting) == 2)
        assert node.front.buffered_bytes == 1500
        node.core.reject_all(Rejection.WAIT_TIMEOUT)
        await node.settled(3)


async def test_many_waiting_requests_stay_within_the_bound_and_the_excess_is_refused() -> None:
    settings = ProxySettings(max_body=Bytes(1 << 16), max_buffered=Bytes(1 << 20))
    async with running(settings) as node:
        node.core.hold = True

        async def wait_in_line() -> bytes:
            async with raw_client(node.port) as client:
                await client.send(post_bytes(PATH, body_of(1 << 16)))
                head = await client.read_head()
                assert node.front.buffered_bytes <= 1 << 20
                return head[:12]

        clients = [asyncio.ensure_future(wait_in_line()) for _ in range(60)]
        await until(lambda: len(node.core.waiting) + len(node.records) == 60)
        assert len(node.core.waiting) <= 16
        node.core.reject_all(Rejection.WAIT_TIMEOUT)
        statuses = await asyncio.gather(*clients)
        await node.settled(60)
    assert set(statuses) == {b"HTTP/1.1 503", b"HTTP/1.1 429"}


async def test_a_client_that_asks_for_leave_to_send_is_told_to_go_on() -> None:
    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        assert "expect" not in request.headers
        return web.Response(body=await request.content.read())

    async with http_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        head, _, body = post_bytes(PATH, body_of(100), "Expect: 100-continue").partition(b"\r\n\r\n")
        await client.send(head + b"\r\n\r\n")
        assert (await client.read_head()) == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(body)
        assert (await client.read_head()).startswith(b"HTTP/1.1 200")
        await node.settled(1)


async def test_leave_to_send_is_not_given_for_a_body_that_is_too_large() -> None:
    async with running(SMALL) as node, raw_client(node.port) as client:
        await client.send(
            f"POST {PATH} HTTP/1.1\r\nHost: n\r\nContent-Length: 2000\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        assert (await client.read_head()).startswith(b"HTTP/1.1 413")
        await node.settled(1)


async def test_another_expectation_is_refused() -> None:
    async with running() as node, raw_client(node.port) as client:
        await client.send(post_bytes(PATH, body_of(50), "Expect: miracles"))
        assert (await client.read_head()).startswith(b"HTTP/1.1 417")
        await node.settled(1)


async def test_another_transfer_coding_than_chunked_is_refused() -> None:
    async with running() as node, raw_client(node.port) as client:
        head = f"POST {PATH} HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
        await client.send(head.encode() + b"2\r\n{}\r\n0\r\n\r\n")
        assert (await client.read_head()).startswith(b"HTTP/1.1 501")
        await node.settled(1)


async def test_a_stalled_upload_is_ended() -> None:
    settings = ProxySettings(upload_stall=Duration(SECOND // 20))
    async with running(settings) as node, raw_client(node.port) as client:
        await client.send(f"POST {PATH} HTTP/1.1\r\nHost: n\r\nContent-Length: 100\r\n\r\n".encode() + b"x" * 50)
        head = await client.read_head()
        assert head.startswith(b"HTTP/1.1 408")
        await node.settled(1)


async def test_an_upload_that_trickles_is_ended() -> None:
    settings = ProxySettings(upload_grace=Duration(SECOND // 10), upload_min_rate=1_000_000)
    async with running(settings) as node, raw_client(node.port) as client:
        await client.send(f"POST {PATH} HTTP/1.1\r\nHost: n\r\nContent-Length: 100000\r\n\r\n".encode())

        async def trickle() -> None:
            while not client.writer.is_closing():
                client.writer.write(b"x")
                await asyncio.sleep(0.01)

        trickling = asyncio.ensure_future(trickle())
        head = await client.read_head()
        trickling.cancel()
        assert head.startswith(b"HTTP/1.1 408")
        await node.settled(1)


async def test_a_client_that_leaves_while_it_uploads_leaves_nothing() -> None:
    async with running() as node:
        async with raw_client(node.port) as client:
            await client.send(f"POST {PATH} HTTP/1.1\r\nHost: n\r\nContent-Length: 100\r\n\r\n".encode() + b"x" * 50)
            await until(lambda: node.front.buffered_bytes == 50)
            client.leave()
        record = await node.settled(1)
        assert node.core.events == []
        assert record.status == 0


async def test_a_malformed_chunk_is_a_400_and_leaves_nothing() -> None:
    async with running() as node, raw_client(node.port) as client:
        await client.send(f"POST {PATH} HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n".encode())
        await until(lambda: node.front.gate.open_requests == 0)
        await client.send(b"abcdeXXzz\r\n")
        assert (await client.read_head()).split(b" ")[1] == b"400"
        await until(lambda: node.front.buffered_bytes == 0)


async def test_a_compressed_body_is_refused_where_the_model_stands_in_it_and_passes_where_it_does_not() -> None:
    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        assert request.headers["content-encoding"] == "gzip"
        return web.Response(body=await request.content.read())

    async with http_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(PATH, b"\x1f\x8b.....", "Content-Encoding: gzip"))
        head = await client.read_head()
        assert head.startswith(b"HTTP/1.1 415")
        await client.reader.readexactly(int(header(head, "content-length") or 0))
        await client.send(post_bytes("/upstream/m01/v1/x", b"\x1f\x8b.....", "Content-Encoding: gzip"))
        assert (await client.read_head()).startswith(b"HTTP/1.1 200")
        assert await client.reader.readexactly(7) == b"\x1f\x8b....."
        await node.settled(2)


async def test_a_large_body_reaches_the_engine_whole() -> None:
    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        size = 0
        async for piece in request.content.iter_any():
            size += len(piece)
        return web.Response(text=str(size))

    body = body_of(20 << 20)
    async with http_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(PATH, body, "Connection: close"))
        assert (await client.read_all()).endswith(str(len(body)).encode())
        await node.settled(1)
