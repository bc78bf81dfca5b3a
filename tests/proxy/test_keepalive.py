"""A stream that waits for its model may be kept alive by comments; then errors become events."""

import asyncio
from typing import Any

import pytest

from swapd.core.ids import SECOND, Bytes, Duration, Instant, seconds
from swapd.core.reasons import Outcome, Rejection, State, WaitingFor
from swapd.core.view import FetchView
from swapd.proxy.settings import ProxySettings
from tests.fakes.node_views import instance_view
from tests.proxy.harness import Talk, header, post_bytes, raw_client, raw_engine, read_request, running, until

PATH = "/v1/chat/completions"
BODY = b'{"model":"m01","stream":true}'
QUICK = ProxySettings(sse_keepalive=Duration(SECOND // 100))


def answers(raw: bytes, heads: list[bytes] | None = None) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, _ = await read_request(reader)
        if heads is not None:
            heads.append(head)
        writer.write(raw)
        await writer.drain()

    return talk


STREAM = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"9\r\ndata: 1\n\n\r\n0\r\n\r\n"
)


async def test_comments_are_sent_until_the_stream_begins() -> None:
    heads: list[bytes] = []
    engine = answers(STREAM, heads)
    async with raw_engine(engine) as port, running(QUICK, engine_port=port) as node, raw_client(node.port) as client:
        node.core.hold = True
        await client.send(post_bytes(PATH, BODY, "Accept-Encoding: gzip"))
        head = await client.read_head()
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert header(head, "content-type") == "text/event-stream"
        assert header(head, "x-accel-buffering") == "no"
        assert header(head, "x-request-id")
        for _ in range(3):
            assert (await client.read_until(b"\n\n")).endswith(b": waiting for load, about 1 s\n\n")
        node.core.grant_all()
        rest = await client.read_until(b"0\r\n\r\n")
        assert b"data: 1\n\n" in rest
        record = await node.settled(1)
        assert node.core.outcomes == [Outcome.SERVED]
        assert record.bytes_out == len(b"data: 1\n\n")
    assert header(heads[0], "accept-encoding") is None


def fetch(**changes: Any) -> FetchView:
    fields: dict[str, Any] = {"since": Instant(0), "running": True, "rate": 2.0, "waits": ""}
    known = {"done": Bytes(439), "total": Bytes(1000), "remaining": seconds(34.2)}
    return FetchView(**{**fields, **known, **changes})


WEIGHTS = {WaitingFor.WEIGHTS: 1}
STARTED = instance_view("m01", state=State.LOADING, since=Instant(0))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"queued": WEIGHTS, "fetch": fetch()}, "weights, 43 %, about 35 s"),
        ({"queued": WEIGHTS, "fetch": fetch(total=Bytes(0))}, "weights, about 35 s"),
        ({"queued": WEIGHTS, "fetch": fetch(total=Bytes(0), rate=0.0)}, "weights"),
        ({"queued": WEIGHTS, "fetch": fetch(running=False, rate=0.0)}, "weights, after other fetches"),
        ({"queued": WEIGHTS, "fetch": fetch(waits="it is full")}, "weights, which wait for room on the disk"),
        ({"queued": WEIGHTS}, "weights"),
        ({"queued": {WaitingFor.VICTIMS: 2}, "fetch": fetch()}, "victims"),
        ({"queued": {WaitingFor.ROOM: 1}}, "room"),
        ({"queued": {WaitingFor.ENGINE_SLOT: 1}}, "engine slot"),
        ({"queued": {WaitingFor.LOAD: 1}, "instance": STARTED, "load_estimate": seconds(40)}, "load, about 39 s"),
        ({"queued": {WaitingFor.LOAD: 1}, "instance": STARTED, "load_estimate": seconds(0.5)}, "load"),
        ({"queued": {}}, "m01"),
    ],
)
async def test_a_comment_says_what_is_waited_for_and_how_far_that_has_come(row: dict[str, Any], told: str) -> None:
    async with running(QUICK) as node, raw_client(node.port) as client:
        node.core.hold = True
        node.rows["m01"] = row
        await client.send(post_bytes(PATH, BODY))
        await client.read_head()
        assert (await client.read_until(b"\n\n")).endswith(f"\n: waiting for {told}\n\n".encode())
        node.core.reject_all(Rejection.WAIT_TIMEOUT)
        await client.read_all()
        await node.settled(1)


@pytest.mark.parametrize(
    ("path", "event"), [(PATH, b'data: {"error":{"message":"'), ("/v1/messages", b"event: error\ndata: ")]
)
async def test_a_refusal_after_comments_is_an_error_event_and_an_unclean_end(path: str, event: bytes) -> None:
    async with running(QUICK) as node, raw_client(node.port) as client:
        node.core.hold = True
        await client.send(post_bytes(path, BODY))
        await client.read_until(b"waiting for load")
        node.core.reject_all(Rejection.LOAD_FAILED)
        got = await client.read_all()
        record = await node.settled(1)
        assert event in got
        assert b"refused because of load_failed" in got
        assert not got.endswith(b"0\r\n\r\n")
        assert node.core.outcomes == [Outcome.REJECTED]
        assert (record.status, record.reason) == (200, Rejection.LOAD_FAILED)


async def test_an_engines_error_after_comments_is_told_in_an_event() -> None:
    engine = answers(b'HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{"error":"no"}')
    async with raw_engine(engine) as port, running(QUICK, engine_port=port) as node, raw_client(node.port) as client:
        node.core.hold = True
        await client.send(post_bytes(PATH, BODY))
        await client.read_until(b"waiting for load")
        node.core.grant_all()
        got = await client.read_all()
        await node.settled(1)
        assert b"status 400" in got
        assert not got.endswith(b"0\r\n\r\n")
        assert node.core.outcomes == [Outcome.SERVED]


async def test_a_client_that_leaves_between_comments_is_noticed() -> None:
    async with running(QUICK) as node:
        node.core.hold = True
        async with raw_client(node.port) as client:
            await client.send(post_bytes(PATH, BODY))
            await client.read_until(b"waiting for load")
            client.leave()
        await node.settled(1)
        assert node.core.outcomes == [Outcome.CANCELLED]


@pytest.mark.parametrize(
    ("path", "body"),
    [(PATH, b'{"model":"m01"}'), ("/api/chat", BODY), ("/v1/embeddings", BODY), ("/upstream/m01/x", BODY)],
)
async def test_answers_that_are_no_event_streams_wait_in_silence(path: str, body: bytes) -> None:
    async with running(QUICK) as node, raw_client(node.port) as client, raw_client(node.port) as other:
        node.core.hold = True
        await client.send(post_bytes(path, body))
        await until(lambda: node.core.waiting)
        await other.send(post_bytes(PATH, BODY))
        for _ in range(3):
            await other.read_until(b"waiting for load")
        node.core.reject_all(Rejection.WAIT_TIMEOUT)
        assert (await client.read_head()).startswith(b"HTTP/1.1 503")
        await node.settled(2)


async def test_a_wait_shorter_than_the_interval_keeps_its_status() -> None:
    settings = ProxySettings(sse_keepalive=Duration(60 * SECOND))
    async with running(settings) as node, raw_client(node.port) as client:
        node.core.hold = True
        await client.send(post_bytes(PATH, BODY))
        await until(lambda: node.core.waiting)
        node.core.reject_all(Rejection.WAIT_TIMEOUT)
        assert (await client.read_head()).startswith(b"HTTP/1.1 503")
        await node.settled(1)
