"""What a relay gets wrong first: framing, kept connections, breaks in the middle, clients that do two things."""

import asyncio

import pytest

from swapd.core.ids import Bytes
from swapd.core.reasons import Outcome
from swapd.proxy.front.debts import HEAD, NOTHING
from swapd.proxy.services import Endpoint
from swapd.proxy.settings import ProxySettings
from tests.proxy.breaking import BODY, CHAT_PATH, SSE_HEAD, chunk, dies_after
from tests.proxy.harness import INSTANCE, header, post_bytes, raw_client, raw_engine, read_request, running, until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: node\r\n\r\n"


class Counted:
    """An engine that counts its connections and answers each request with the next of its answers."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.bodies: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            self.bodies.append((await read_request(reader))[1])
            writer.write(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])
            await writer.drain()


@pytest.mark.parametrize("value", ["close", "Close"])
async def test_a_client_that_wants_the_connection_closed_gets_it_closed(value: str) -> None:
    async with raw_engine(Counted(OK)) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY, f"Connection: {value}"))
        got = await client.read_all()
        assert header(got.partition(b"\r\n\r\n")[0], "connection") == "close"
        assert got.endswith(b"{}")


async def test_connections_to_the_engine_are_used_again() -> None:
    engine = Counted(OK)
    async with raw_engine(engine) as port, running(engine_port=port) as node:
        for _ in range(3):
            async with raw_client(node.port) as client:
                for _ in range(3):
                    await client.send(post_bytes(CHAT_PATH, BODY))
                    await client.read_until(b"{}")
        await node.settled(9)
    assert engine.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nothers",
        CHUNKED + chunk(b"{}") + b"0\r\n\r\nothers",
        b"HTTP/1.1 204 No Content\r\n\r\nothers",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    ],
    ids=["beyond a length", "beyond the last chunk", "beyond no body", "to be closed", "HTTP/1.0"],
)
async def test_a_connection_whose_answer_has_no_sure_end_is_not_used_again(answer: bytes) -> None:
    engine = Counted(answer, OK)
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        await client.read_head()
        await node.settled(1)
        await client.send(post_bytes(CHAT_PATH, BODY, "Connection: close"))
        assert b"others" not in await client.read_all()
        await node.settled(2)
    assert engine.connections == 2


async def test_extensions_and_trailers_of_chunks_end_here_wherever_the_engine_breaks_its_pieces() -> None:
    raw = CHUNKED + b'3;a="b"\r\nabc\r\n' + chunk(b"defg") + b"0;last\r\nX-Trailer: 1\r\nX-More: 2\r\n\r\n"

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for step in range(1, 9):
            await read_request(reader)
            for at in range(0, len(raw), step):
                writer.write(raw[at : at + step])
                await writer.drain()
                await asyncio.sleep(0)

    async with raw_engine(talk) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        for _ in range(1, 9):
            await client.send(post_bytes(CHAT_PATH, BODY))
            await client.read_head()
            sizes_and_text = (await client.read_until(b"\r\n0\r\n\r\n")).split(b"\r\n")
            assert b"".join(sizes_and_text[1:-2:2]) == b"abcdefg"
        await node.settled(8)


@pytest.mark.parametrize(
    "broken",
    [
        b"3\r\nabcX\r\n",
        b"-3\r\nabc\r\n",
        b"0x3\r\nabc\r\n",
        b"3 \nabc\r\n",
        b"\r\n\r\n",
        b"g\r\n",
        b"0\r\nbroken\r\n\r\n",
    ],
)
async def test_chunks_whose_framing_is_broken_do_not_look_complete(broken: bytes) -> None:
    engine = dies_after(CHUNKED + chunk(b"one") + broken)
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        got = await client.read_all()
        await node.settled(1)
        assert not got.endswith(b"0\r\n\r\n")
        assert node.core.outcomes == [Outcome.UPSTREAM_FAILED]


async def test_an_error_is_told_as_an_event_of_its_own_when_the_engine_dies_in_the_middle_of_a_chunk() -> None:
    engine = dies_after(SSE_HEAD + b"40\r\ndata: half")
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        await client.read_head()
        parts = (await client.read_all()).split(b"\r\n")
        await node.settled(1)
        payload = b"".join(parts[1::2])
        assert payload.startswith(b'data: half\n\ndata: {"error":')
        assert all(len(text) == int(size, 16) for size, text in zip(parts[::2], parts[1::2], strict=False))


async def test_an_answer_before_the_whole_request_was_read_is_passed_on_and_the_connection_not_used_again() -> None:
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        await gone.wait()

    gone = asyncio.Event()
    large = b'{"model":"m01","x":"' + b"y" * (30 << 20) + b'"}'
    async with raw_engine(talk) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        for _ in range(2):
            await client.send(post_bytes(CHAT_PATH, large))
            assert (await client.read_head()).startswith(b"HTTP/1.1 413")
            assert await client.reader.readexactly(2) == b"no"
        gone.set()
        await node.settled(2)
    assert connections == 2


async def test_a_connection_may_change_to_chunked_uploads_and_back() -> None:
    engine = Counted(OK)
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        head = f"POST {CHAT_PATH} HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        for sent in (post_bytes(CHAT_PATH, BODY), head + chunk(BODY) + b"0\r\n\r\n", post_bytes(CHAT_PATH, BODY)):
            await client.send(sent)
            await client.read_until(b"{}")
        await client.send(HEALTH)
        await client.read_until(b"}")
        await node.settled(3)
    assert engine.bodies == [BODY] * 3


async def test_what_a_client_sends_ahead_is_bounded_and_answered_in_order() -> None:
    engine = Counted(OK)
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        node.core.hold = True
        await client.send(post_bytes(CHAT_PATH, BODY))
        await until(lambda: node.core.waiting)
        ahead = asyncio.ensure_future(client.send(HEALTH * 100_000))
        await until(lambda: node.core.open)
        node.core.grant_all()
        assert (await client.read_until(b"{}")).startswith(b"HTTP/1.1 200")
        for _ in range(20):
            assert b'"ok"' in await client.read_until(b"}")
        client.leave()
        ahead.cancel()
        await asyncio.wait((ahead,))
        await node.settled(1)


async def test_a_body_of_any_size_split_anywhere_arrives_whole() -> None:
    engine = Counted(OK)
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        sizes = (30, 65_535, 65_536, 65_537, 262_144, 300_000, 1 << 20)
        for size in sizes:
            body = b'{"model":"m01","x":"' + b"y" * (size - 22) + b'"}'
            sent = post_bytes(CHAT_PATH, body)
            for start, end in ((0, 10), (10, 150), (150, 60_000), (60_000, len(sent))):
                await client.send(sent[start:end])
                await asyncio.sleep(0)
            await client.read_until(b"{}")
        await node.settled(len(sizes))
    assert [len(body) for body in engine.bodies] == list(sizes)


async def test_a_large_body_beyond_the_nodes_buffer_is_refused_while_it_comes_and_the_connection_goes_on() -> None:
    settings = ProxySettings(max_body=Bytes(1 << 20), max_buffered=Bytes(200_000))
    async with running(settings) as node, raw_client(node.port) as first, raw_client(node.port) as second:
        head = f"POST {CHAT_PATH} HTTP/1.1\r\nHost: n\r\nContent-Length: 110000\r\n\r\n".encode()
        for size, expected in ((1_000, 1_000), (1_000, 2_000), (98_000, 100_000), (98_000, 198_000)):
            client = first if expected in {1_000, 100_000} else second
            await client.send((head if size == 1_000 else b"") + b"x" * size)
            await until(lambda expected=expected: node.front.buffered_bytes == expected)
        await second.send(b"x" * 11_000)
        assert (await second.read_head()).startswith(b"HTTP/1.1 429")
        await second.read_until(b"}}")
        await second.send(HEALTH)
        assert b'"ok"' in await second.read_until(b"}")
        first.leave()
        await node.settled(2)


async def test_idle_connections_to_an_engine_do_not_outlive_it() -> None:
    async with running() as node:
        async with raw_engine(Counted(OK)) as port, raw_client(node.port) as client:
            node.endpoints[INSTANCE] = Endpoint("127.0.0.1", port)
            await client.send(post_bytes(CHAT_PATH, BODY))
            await client.read_until(b"{}")
        await until(lambda: node.front.engine_connections == 0, "the end of the connection")


@pytest.mark.parametrize("plain", [True, False])
async def test_the_switch_decides_which_path_new_connections_take(fast_path: bool, *, plain: bool) -> None:
    async with running() as node, raw_client(node.port) as client:
        await client.send(HEALTH if plain else HEALTH.replace(b"Host", b"Expect: 100-continue\r\nHost"))
        await client.read_until(b"}")
        assert len(node.front._server._fast) == (fast_path and plain)
        assert len(node.front._server.connections) == (not fast_path or not plain)


async def test_an_empty_line_between_requests_is_no_head_that_is_owed(fast_path: bool) -> None:
    async with running() as node, raw_client(node.port) as client:
        await client.send(HEALTH)
        await client.read_until(b"}")
        connections = node.front._server._fast
        await client.send(b"\r")
        await until(lambda: all(connection._owes is HEAD for connection in connections))
        await client.send(b"\n")
        await until(lambda: all(connection._owes is NOTHING for connection in connections))
        await client.send(HEALTH)
        assert b'"ok"' in await client.read_until(b"}")
        assert len(connections) == fast_path
