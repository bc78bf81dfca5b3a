"""What passes the front door, and how: bytes, headers, framing."""

import asyncio
import gzip
import socket
import struct
from contextlib import AbstractAsyncContextManager

import aiohttp
import pytest
from aiohttp import web

from swapd.core.ids import Bytes
from swapd.core.reasons import Outcome
from swapd.proxy.settings import ProxySettings
from tests.proxy.harness import header, http_engine, post_bytes, raw_client, raw_engine, read_request, running

BODY = b'{ "messages":[],   "model" : "m01" }'
CHAT_PATH = "/v1/chat/completions"


def plain_engine(
    answer: bytes, heads: list[bytes] | None = None, bodies: list[bytes] | None = None
) -> AbstractAsyncContextManager[int]:
    """Return an engine that reads requests and gives each the same raw answer."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await read_request(reader)
            if heads is not None:
                heads.append(head)
            if bodies is not None:
                bodies.append(body)
            writer.write(answer)
            await writer.drain()

    return raw_engine(talk)


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


async def test_a_request_reaches_the_engine_with_the_same_bytes_and_its_answer_comes_back() -> None:
    seen: list[tuple[str, str, bytes]] = []

    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        seen.append((request.method, request.raw_path, await request.content.read()))
        return web.json_response({"ok": True}, headers={"x-engine": "yes"})

    async with http_engine(engine) as port, running(engine_port=port) as node, aiohttp.ClientSession() as client:
        async with client.post(f"{node.url}{CHAT_PATH}?x=%20a", data=BODY) as answer:
            assert answer.status == 200
            assert await answer.json() == {"ok": True}
            assert answer.headers["x-engine"] == "yes"
            assert answer.headers["x-request-id"]
            assert "server-timing" not in answer.headers
        record = await node.settled(1)
    assert seen == [("POST", f"{CHAT_PATH}?x=%20a", BODY)]
    assert (record.model, record.status, record.outcome) == ("m01", 200, Outcome.SERVED)
    assert (record.bytes_in, record.bytes_out) == (len(BODY), len('{"ok": true}'))
    assert record.ttfb_s is not None


@pytest.mark.parametrize("target", [f"{CHAT_PATH}?a=%zz&b=[1]|^{{", f"{CHAT_PATH}?q=a+b;c=%C3%bc", f"{CHAT_PATH}?=&&a"])
async def test_path_and_query_are_passed_as_received(target: str) -> None:
    heads: list[bytes] = []
    async with plain_engine(OK, heads) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(target, BODY))
        assert (await client.read_head()).startswith(b"HTTP/1.1 200")
        await node.settled(1)
    assert heads[0].split(b" ")[1] == target.encode()


async def test_hop_by_hop_and_nominated_fields_end_at_the_front_door_in_both_directions() -> None:
    heads: list[bytes] = []
    answer = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-Inner, keep-alive\r\nX-Inner: 1\r\n"
        b"Keep-Alive: timeout=9\r\nX-Kept: 1\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Request-Id: engines\r\n\r\n{}"
    )
    async with plain_engine(answer, heads) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        fields = ("Connection: X-Secret, close", "X-Secret: 1", "TE: trailers", "Proxy-Authorization: x", "X-Kept: 1")
        await client.send(post_bytes(CHAT_PATH, BODY, *fields, "traceparent: 00-1-2-3", "X-Request-Id: mine-1"))
        got = await client.read_all()
        await node.settled(1)
    sent = heads[0].lower()
    for gone in (b"x-secret", b"te:", b"proxy-authorization", b"connection: x-secret"):
        assert gone not in sent
    assert b"x-kept: 1\r\n" in sent
    assert b"traceparent: 00-1-2-3\r\n" in sent
    assert b"x-request-id: mine-1\r\n" in sent
    head = got.partition(b"\r\n\r\n")[0]
    assert header(head, "x-inner") is None
    assert header(head, "keep-alive") is None
    assert header(head, "x-kept") == "1"
    assert head.lower().count(b"set-cookie:") == 2
    assert header(head, "x-request-id") == "mine-1"
    assert header(head, "connection") == "close"


async def test_an_engine_cannot_open_the_node_to_web_pages_of_other_origins() -> None:
    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        origin = request.headers["Origin"]
        fields = {"Access-Control-Allow-Origin": origin, "access-control-allow-credentials": "true", "x-engine": "yes"}
        return web.Response(headers=fields)

    async with http_engine(engine) as port, running(engine_port=port) as node, aiohttp.ClientSession() as client:
        async with client.post(f"{node.url}{CHAT_PATH}", data=BODY, headers={"Origin": "http://evil"}) as answer:
            assert answer.headers["x-engine"] == "yes"
            assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
        await node.settled(1)


async def test_nothing_is_added_to_what_the_engine_sees() -> None:
    heads: list[bytes] = []
    async with plain_engine(OK, heads) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        await client.read_head()
        await node.settled(1)
    names = sorted(line.partition(b":")[0].lower() for line in heads[0].split(b"\r\n")[1:] if line)
    assert names == [b"content-length", b"host", b"x-request-id"]


async def test_a_client_of_http_1_0_gets_no_chunks_and_a_close() -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    async with plain_engine(answer) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY, version="1.0"))
        head, _, body = (await client.read_all()).partition(b"\r\n\r\n")
        await node.settled(1)
    assert header(head, "transfer-encoding") is None
    assert body == b"abc"


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_has_none_and_the_connection_goes_on(status: int) -> None:
    answer = f"HTTP/1.1 {status} Fine\r\nETag: x\r\n\r\n".encode()
    async with plain_engine(answer) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        for _ in range(2):
            await client.send(post_bytes(CHAT_PATH, BODY))
            head = await client.read_head()
            assert head.startswith(f"HTTP/1.1 {status} Fine\r\n".encode())
            assert header(head, "transfer-encoding") is None
        await node.settled(2)


async def test_an_answer_to_head_keeps_its_length_and_has_no_body() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"
    async with plain_engine(answer) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        for _ in range(2):
            await client.send(b"HEAD /upstream/m01/v1/models HTTP/1.1\r\nHost: node\r\n\r\n")
            head = await client.read_head()
            assert header(head, "content-length") == "1234"
        await node.settled(2)


async def test_interim_answers_of_the_engine_are_passed_over() -> None:
    answer = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + OK
    async with plain_engine(answer) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY, "Connection: close"))
        assert (await client.read_all()).startswith(b"HTTP/1.1 200 OK\r\n")
        await node.settled(1)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nBroken\x00Header: 5\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
)
async def test_an_answer_that_is_not_sound_http_is_a_502_and_is_not_tried_again(answer: bytes) -> None:
    async with plain_engine(answer) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY, "Connection: close"))
        got = await client.read_all()
        record = await node.settled(1)
        assert got.startswith(b"HTTP/1.1 502"), got
        assert b'"code":"upstream_failed"' in got
        assert node.core.outcomes == [Outcome.UPSTREAM_FAILED]
        assert record.status == 502


async def test_compressed_answers_pass_untouched() -> None:
    packed = gzip.compress(b'{"usage":{"prompt_tokens":1}}' * 50)

    async def engine(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=packed, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"})

    async with (
        http_engine(engine) as port,
        running(engine_port=port) as node,
        aiohttp.ClientSession(auto_decompress=False) as client,
        client.post(f"{node.url}{CHAT_PATH}", data=BODY) as answer,
    ):
        assert answer.headers["content-encoding"] == "gzip"
        assert await answer.read() == packed


async def test_pipelined_requests_are_answered_one_after_the_other() -> None:
    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=await request.content.read())

    first, second = b'{"model":"m01","n":1}', b'{"model":"m02","n":2}'
    async with http_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        node.core.hold = True
        await client.send(post_bytes(CHAT_PATH, first) + post_bytes(CHAT_PATH, second, "Connection: close"))
        while len(node.records) < 2:
            await asyncio.sleep(0.002)
            assert len(node.core.open) <= 1
            node.core.grant_all()
        got = await client.read_all()
        await node.settled(2)
    assert got.index(first) < got.index(second)


async def test_a_chunked_upload_arrives_whole() -> None:
    bodies: list[bytes] = []
    async with (
        plain_engine(OK, bodies=bodies) as port,
        running(engine_port=port) as node,
        raw_client(node.port) as client,
    ):
        head = f"POST {CHAT_PATH} HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n"
        await client.send(head.encode())
        for byte in BODY:
            await client.send(b"1\r\n" + bytes([byte]) + b"\r\n")
        await client.send(b"0\r\n\r\n")
        assert (await client.read_head()).startswith(b"HTTP/1.1 200")
        await node.settled(1)
    assert bodies == [BODY]


async def test_an_offer_of_http_2_is_passed_over() -> None:
    bodies: list[bytes] = []
    async with (
        plain_engine(OK, bodies=bodies) as port,
        running(engine_port=port) as node,
        raw_client(node.port) as client,
    ):
        fields = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")
        await client.send(post_bytes(CHAT_PATH, BODY, *fields))
        assert (await client.read_head()).startswith(b"HTTP/1.1 200")
        await node.settled(1)
    assert bodies == [BODY]


async def test_header_fields_that_are_not_utf8_are_refused_from_clients_and_readable_from_engines() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Note: caf\xe9\r\n\r\n{}"
    async with plain_engine(answer) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        assert header(await client.read_head(), "x-note") == "café"
        assert await client.reader.readexactly(2) == b"{}"
        await client.send(post_bytes(CHAT_PATH, BODY).replace(b"Host: node", b"Host: node\r\nX-Note: caf\xe9"))
        assert (await client.read_head()).startswith(b"HTTP/1.1 400")
        await node.settled(2)


async def test_a_target_that_is_a_whole_url_is_understood() -> None:
    heads: list[bytes] = []
    async with plain_engine(OK, heads) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(f"http://node:80{CHAT_PATH}?x=1", BODY))
        assert (await client.read_head()).startswith(b"HTTP/1.1 200")
        await node.settled(1)
    assert heads[0].split(b" ")[1] == f"{CHAT_PATH}?x=1".encode()


async def test_a_cold_start_is_told_in_headers() -> None:
    async with plain_engine(OK) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        node.core.cold = True
        await client.send(post_bytes(CHAT_PATH, BODY))
        head = await client.read_head()
        record = await node.settled(1)
    assert header(head, "x-swapd-cold-start") == "1"
    assert header(head, "server-timing") == "queue;dur=8.0, stop;dur=2.0, load;dur=30.0, page_cache;dur=5.0"
    assert record.cold_start


async def test_a_slow_engine_does_not_delay_requests_to_another() -> None:
    release = asyncio.Event()

    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        if b"m01" in await request.content.read():
            await release.wait()
        return web.Response(text="done")

    async with http_engine(engine) as port, running(engine_port=port) as node, aiohttp.ClientSession() as client:
        slow = asyncio.ensure_future(client.post(f"{node.url}{CHAT_PATH}", data=BODY))
        for _ in range(5):
            async with client.post(f"{node.url}{CHAT_PATH}", data=b'{"model":"m02"}') as answer:
                assert answer.status == 200
        assert not slow.done()
        release.set()
        (await slow).release()
        await node.settled(6)


async def test_an_answer_whose_end_is_the_engines_close_is_passed_on_whole() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nabc")

    async with raw_engine(talk) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        assert (await client.read_until(b"0\r\n\r\n")).endswith(b"3\r\nabc\r\n0\r\n\r\n")
        await node.settled(1)
        assert node.core.outcomes == [Outcome.SERVED]


async def test_an_answer_without_a_length_that_ends_in_a_reset_is_broken() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nabc")
        await writer.drain()
        await reset.wait()
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    reset = asyncio.Event()
    async with raw_engine(talk) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        await client.read_until(b"abc\r\n")
        reset.set()
        assert await client.read_all() == b""
        await node.settled(1)
        assert node.core.outcomes == [Outcome.UPSTREAM_FAILED]


async def test_other_settings_hold_for_the_requests_that_arrive_after_them() -> None:
    async with plain_engine(OK) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        assert (await client.read_head()).startswith(b"HTTP/1.1 200")
        await client.reader.readexactly(2)
        node.reconfigure(ProxySettings(max_body=Bytes(3)))
        await client.send(post_bytes(CHAT_PATH, BODY))
        assert (await client.read_head()).startswith(b"HTTP/1.1 413")
        await node.settled(2)


async def test_answers_in_pieces_without_a_change_to_the_connection_may_be_many() -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\nX-Trailer: 1\r\n\r\n"
    async with plain_engine(answer) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        for _ in range(3):
            await client.send(post_bytes(CHAT_PATH, BODY))
            await client.read_head()
            body = await client.read_until(b"0\r\n\r\n")
            assert b"".join(body.split(b"\r\n")[1::2]) == b"abc"
        await node.settled(3)
