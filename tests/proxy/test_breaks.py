"""What happens when the engine breaks or the core cuts: always visible, always ended once."""

import asyncio

import pytest

from swapd.core.events import UpstreamFailed
from swapd.core.ids import SECOND, Duration
from swapd.core.reasons import Outcome, Rejection
from swapd.proxy.services import Endpoint
from swapd.proxy.settings import ProxySettings
from swapd.proxy.usage import UsageReader
from tests.proxy.breaking import BODY, CHAT_PATH, SSE_HEAD, Watched, chunk, dies_after
from tests.proxy.harness import (
    INSTANCE,
    header,
    post_bytes,
    raw_client,
    raw_engine,
    read_request,
    running,
    until,
)

THREE = SSE_HEAD + b"".join(chunk(f"data: {n}\n\n".encode()) for n in range(3))


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (CHAT_PATH, b'\n\ndata: {"error":{"message":"'),
        ("/v1/messages", b'\n\nevent: error\ndata: {"type":"error","error":{"type":"api_error","message":"'),
        ("/generate", b'\n\ndata: {"error":"'),
        ("/upstream/m01/v1/messages", b"\n\nevent: error\ndata: "),
    ],
)
async def test_a_stream_whose_engine_dies_ends_with_an_error_event_and_without_a_proper_end(
    path: str, error: bytes
) -> None:
    async with (
        raw_engine(dies_after(THREE)) as port,
        running(engine_port=port) as node,
        raw_client(node.port) as client,
    ):
        await client.send(post_bytes(path, BODY))
        got = await client.read_all()
        record = await node.settled(1)
        assert b"data: 2\n\n" in got
        assert error in got
        assert b"[DONE]" not in got
        assert not got.endswith(b"0\r\n\r\n")
        assert node.core.outcomes == [Outcome.UPSTREAM_FAILED]
        assert len(node.core.arrivals) == 1
        assert not any(isinstance(event, UpstreamFailed) for event in node.core.events)
        assert (record.status, record.reason) == (200, Rejection.UPSTREAM_FAILED)
        assert record.completion_tokens is None


async def test_a_broken_ndjson_stream_ends_with_an_error_line() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    engine = dies_after(head + chunk(b'{"response":"a"}\n'))
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes("/api/generate", b'{"model":"m01"}'))
        got = await client.read_all()
        await node.settled(1)
    assert b'\n{"error":"The engine' in got
    assert not got.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
)
async def test_a_plain_answer_that_breaks_off_does_not_look_complete(answer: bytes) -> None:
    async with (
        raw_engine(dies_after(answer)) as port,
        running(engine_port=port) as node,
        raw_client(node.port) as client,
    ):
        await client.send(post_bytes(CHAT_PATH, BODY))
        head, _, body = (await client.read_all()).partition(b"\r\n\r\n")
        await node.settled(1)
        assert body.strip() in {b"{", b"1\r\n{"}
        assert header(head, "content-length") in {None, "100"}
        assert node.core.outcomes == [Outcome.UPSTREAM_FAILED]


async def test_a_broken_answer_to_a_client_of_http_1_0_is_a_reset() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
    engine = dies_after(answer)
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY, version="1.0"))
        with pytest.raises(ConnectionResetError):
            await client.read_all()
        await node.settled(1)


async def test_an_engine_that_closes_before_a_byte_is_tried_once_more_on_a_new_connection() -> None:
    attempts: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.append((await read_request(reader))[1])
        if len(attempts) == 1:
            writer.transport.abort()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async with raw_engine(talk) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        assert (await client.read_head()).startswith(b"HTTP/1.1 200")
        await node.settled(1)
        assert node.core.outcomes == [Outcome.SERVED]
        assert [type(event).__name__ for event in node.core.events] == [
            "RequestArrived",
            "UpstreamFailed",
            "RequestEnded",
        ]
    assert attempts == [BODY, BODY]


async def test_a_kept_connection_that_the_engine_has_closed_does_not_fail_a_request() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()

    async with raw_engine(talk) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        for _ in range(20):
            await client.send(post_bytes(CHAT_PATH, BODY))
            assert (await client.read_head()).startswith(b"HTTP/1.1 200")
            assert await client.reader.readexactly(2) == b"{}"
        await node.settled(20)


async def test_an_engine_that_never_answers_is_a_502_with_a_body() -> None:
    engine = dies_after(b"", reset=True)
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes("/v1/messages", BODY, "Connection: close"))
        got = await client.read_all()
        record = await node.settled(1)
        assert got.startswith(b"HTTP/1.1 502")
        assert b'"type":"api_error"' in got
        assert header(got, "x-swapd-reason") == "upstream_failed"
        assert header(got, "retry-after") is not None
        assert node.core.outcomes == [Outcome.REJECTED]
        assert record.reason is Rejection.UPSTREAM_FAILED


@pytest.mark.parametrize("endpoint", [None, Endpoint("127.0.0.1", 1)])
async def test_an_instance_that_is_gone_or_refuses_counts_as_a_failed_attempt(endpoint: Endpoint | None) -> None:
    async with running() as node, raw_client(node.port) as client:
        if endpoint is not None:
            node.endpoints[INSTANCE] = endpoint
        await client.send(post_bytes(CHAT_PATH, BODY))
        assert (await client.read_head()).startswith(b"HTTP/1.1 502")
        await node.settled(1)
        assert sum(isinstance(event, UpstreamFailed) for event in node.core.events) == 2


async def test_a_cut_stream_ends_with_an_error_event_and_closes_the_engines_connection() -> None:
    engine = Watched()
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        await client.read_until(b"data: 1\n\n")
        node.core.cut_all()
        got = await client.read_all()
        await node.settled(1)
        assert b'"code":"shutting_down"' in got
        assert not got.endswith(b"0\r\n\r\n")
        assert node.core.outcomes == [Outcome.CUT]
        await until(lambda: engine.closed == 1)


async def test_a_cut_before_the_answer_is_a_503() -> None:
    async def talk(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await reader.read()

    async with raw_engine(talk) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        await until(lambda: node.core.open)
        node.core.cut_all()
        got = await client.read_all()
        await node.settled(1)
        assert got.startswith(b"HTTP/1.1 503")
        assert header(got, "connection") == "close"
        assert node.core.outcomes == [Outcome.CUT]


async def test_a_cut_ends_also_a_stream_whose_client_does_not_read() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD)
        while True:
            writer.write(chunk(b"data: " + b"x" * 65536 + b"\n\n"))
            await writer.drain()

    settings = ProxySettings(break_off_timeout=Duration(SECOND // 20))
    async with raw_engine(talk) as port, running(settings, engine_port=port) as node, raw_client(node.port) as client:
        client.stop_reading()
        await client.send(post_bytes(CHAT_PATH, BODY))
        await until(lambda: node.core.open)
        node.core.cut_all()
        await node.settled(1)
        assert node.core.outcomes == [Outcome.CUT]


async def test_chunks_leave_as_they_come() -> None:
    step = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD)
        for number in range(20):
            await step.wait()
            step.clear()
            writer.write(chunk(f"data: {number}\n\n".encode()))
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with raw_engine(talk) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        head = await client.read_head()
        assert header(head, "x-accel-buffering") == "no"
        for number in range(20):
            # the next chunk is sent only when this one has arrived
            step.set()
            assert (await client.read_until(b"\n\n")).endswith(f"data: {number}\n\n".encode())
        assert (await client.read_until(b"0\r\n\r\n")) == b"\r\n0\r\n\r\n"
        record = await node.settled(1)
        assert record.bytes_out == sum(len(f"data: {number}\n\n") for number in range(20))


async def test_a_bug_in_the_middle_of_an_answer_ends_it_without_a_proper_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_self: UsageReader, _chunk: bytes, **_more: bool) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(UsageReader, "feed", read)
    monkeypatch.setattr(UsageReader, "read_chunks", read)
    async with raw_engine(Watched()) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        got = await client.read_all()
        await node.settled(1)
        assert got.endswith(b"data: 1\n\n\r\n")


async def test_a_request_cut_at_the_moment_of_its_grant_is_not_sent() -> None:
    engine = Watched()
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        node.core.hold = True
        await client.send(post_bytes(CHAT_PATH, BODY))
        await until(lambda: node.core.waiting)
        node.core.grant_all()
        node.core.cut_all()
        assert (await client.read_head()).startswith(b"HTTP/1.1 503")
        await node.settled(1)
        assert node.core.outcomes == [Outcome.CUT]
        assert engine.requests == 0
