"""Requests that two parsers could read in two ways are refused, and nothing of them reaches an engine."""

import asyncio

import pytest

from swapd.proxy.front.arena import LARGE
from tests.proxy.breaking import CHAT_PATH
from tests.proxy.harness import Talk, post_bytes, raw_client, raw_engine, read_request, running, until

BODY = b'{"model":"m01"}'
HOST, LENGTH = "Host: node", f"Content-Length: {len(BODY)}"
CHUNKS = b"f\r\n" + BODY + b"\r\n0\r\n\r\n"


def request(*fields: str, line: str = f"POST {CHAT_PATH} HTTP/1.1", body: bytes = BODY, end: str = "\r\n") -> bytes:
    return end.join([line, *fields, "", ""]).encode("latin-1") + body


def listening(asked: list[bytes]) -> Talk:
    """Return an engine that keeps what reaches it."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head, body = await read_request(reader)
            asked.append(head + body)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            await writer.drain()

    return talk


AMBIGUOUS = {
    "length and chunks": request(HOST, LENGTH, "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "chunks and length": request(HOST, "Transfer-Encoding: chunked", LENGTH, body=b"0\r\n\r\n"),
    "the length twice": request(HOST, LENGTH, LENGTH),
    "two lengths": request(HOST, LENGTH, "Content-Length: 3"),
    "a list of lengths": request(HOST, "Content-Length: 15, 15"),
    "a length with a sign": request(HOST, "Content-Length: +15"),
    "a negative length": request(HOST, "Content-Length: -15"),
    "a hexadecimal length": request(HOST, "Content-Length: 0xf"),
    "a length with an underscore": request(HOST, "Content-Length: 1_5"),
    "an empty length": request(HOST, "Content-Length: "),
    "a length with a gap": request(HOST, "Content-Length: 1 5"),
    "a length beyond all bounds": request(HOST, "Content-Length: 99999999999999999999999"),
    "chunked twice in a list": request(HOST, "Transfer-Encoding: chunked, chunked", body=CHUNKS),
    "chunked, but not last": request(HOST, "Transfer-Encoding: chunked, gzip", body=CHUNKS),
    "another coding": request(HOST, "Transfer-Encoding: xchunked", body=CHUNKS),
    "identity": request(HOST, "Transfer-Encoding: identity"),
    "identity and a length": request(HOST, LENGTH, "Transfer-Encoding: identity"),
    "two codings": request(HOST, "Transfer-Encoding: chunked", "Transfer-Encoding: identity", body=CHUNKS),
    "a vertical tab before the coding": request(HOST, "Transfer-Encoding: \x0bchunked", body=CHUNKS),
    "a quoted coding": request(HOST, 'Transfer-Encoding: "chunked"', body=CHUNKS),
    "a coding with a space before the colon": request(HOST, LENGTH, "Transfer-Encoding : chunked"),
    "chunks in HTTP/1.0": request(
        HOST, "Transfer-Encoding: chunked", line=f"POST {CHAT_PATH} HTTP/1.0", body=b"0\r\n\r\n"
    ),
    "a folded line": request(HOST, LENGTH, "X-A: a\r\n b"),
    "a coding in a folded line": request(HOST, LENGTH, "X-A: a\r\n Transfer-Encoding: chunked"),
    "a bare line feed in a field": request(HOST, LENGTH, "X-A: a\nX-B: b"),
    "bare line feeds only": request(HOST, LENGTH, end="\n"),
    "a bare carriage return": request(HOST, LENGTH, "X-A: a\rX-B: b"),
    "two carriage returns": request(HOST, LENGTH, "X-A: a\r"),
    "a NUL in a value": request(HOST, LENGTH, "X-A: a\0b"),
    "a NUL in a name": request(HOST, LENGTH, "X\0A: a"),
    "a space before the colon": request(HOST, LENGTH, "X-A : a"),
    "no colon": request(HOST, LENGTH, "X-A"),
    "no name": request(HOST, LENGTH, ": a"),
    "a space before the first field": request(" X-A: a", HOST, LENGTH),
    "no host": request(LENGTH),
    "two hosts": request(HOST, LENGTH, "Host: other"),
    "an absolute target and no host": request(LENGTH, line=f"POST http://node{CHAT_PATH} HTTP/1.1"),
    "a version that does not exist": request(HOST, LENGTH, line=f"POST {CHAT_PATH} HTTP/1.2"),
    "a tab in the request line": request(HOST, LENGTH, line=f"POST\t{CHAT_PATH} HTTP/1.1"),
    "a method of two words": request(HOST, LENGTH, line=f"PO ST {CHAT_PATH} HTTP/1.1"),
    "a bare line feed in a chunk's extension": request(
        HOST, "Transfer-Encoding: chunked", body=b"f;a\nb\r\n" + BODY + b"\r\n0\r\n\r\n"
    ),
    "a chunk size with a prefix": request(HOST, "Transfer-Encoding: chunked", body=b"0x" + CHUNKS),
    "chunks with bare line feeds": request(HOST, "Transfer-Encoding: chunked", body=CHUNKS.replace(b"\r\n", b"\n")),
    "a chunk longer than its size": request(HOST, "Transfer-Encoding: chunked", body=b"f\r\n" + BODY + b"XX0\r\n\r\n"),
}


@pytest.mark.parametrize("sent", AMBIGUOUS.values(), ids=AMBIGUOUS)
async def test_it_is_a_400_and_the_end_of_the_connection_and_no_engine_sees_it(sent: bytes) -> None:
    asked: list[bytes] = []
    async with raw_engine(listening(asked)) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(sent)
        got = await client.read_all()
        assert got.split(b" ")[1] == b"400"
        assert asked == []
        node.assert_nothing_left()


@pytest.mark.parametrize("sent", AMBIGUOUS.values(), ids=AMBIGUOUS)
async def test_it_is_refused_also_byte_by_byte_and_behind_another_request(sent: bytes) -> None:
    asked: list[bytes] = []
    async with raw_engine(listening(asked)) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        assert (await client.read_until(b"{}")).startswith(b"HTTP/1.1 200 ")
        try:
            for at in range(len(sent)):
                await client.send(sent[at : at + 1])
        except ConnectionError:
            pass  # refused before the last byte
        try:
            got = await client.read_all()
        except ConnectionError:
            got = b""
        assert got == b"" or got.split(b" ")[1] == b"400"
        assert len(asked) == 1
        await node.settled(1) if not node.records[1:] else node.assert_nothing_left()


async def test_another_version_is_a_505() -> None:
    async with running() as node, raw_client(node.port) as client:
        await client.send(request(HOST, LENGTH, line=f"POST {CHAT_PATH} HTTP/2.0"))
        assert b" 505 " in (await client.read_all()).partition(b"\r\n")[0]


NO_REQUEST = {
    "words": b"garbage\r\n\r\n",
    "half a word": b"garb",
    "half a line": b"{} HTTP",
    "a second body": BODY,
    "a NUL": b"\0",
    "an unknown version": b"GET / HTTP/7.7\r\n\r\n",
    "a method of another case": b"post / HTTP/1.1\r\n",
    "an ambiguous request": request(HOST, LENGTH, "Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
    "a bare line feed": request(HOST, LENGTH, end="\n"),
    "words behind an empty line": b"\r\ngarbage",
}


@pytest.mark.parametrize("beyond", NO_REQUEST.values(), ids=NO_REQUEST)
@pytest.mark.parametrize("together", [True, False], ids=["with the head", "with the end of the body"])
async def test_a_body_with_something_behind_it_that_is_no_request_is_not_believed(
    beyond: bytes, *, together: bool
) -> None:
    asked: list[bytes] = []
    async with raw_engine(listening(asked)) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        sent = request(HOST, LENGTH) + beyond
        cut = 0 if together else sent.index(BODY) + 3
        if cut:
            await client.send(sent[:cut])
            await until(lambda: node.front.buffered_bytes == 3)
        await client.send(sent[cut:])
        got = await client.read_all()
        assert got.split(b" ")[1] == b"400"
        assert got.count(b"HTTP/1.") == 1
        assert asked == []
        await until(lambda: node.front.buffered_bytes == 0)
        assert node.core.arrivals == []


LARGE_BODY = BODY[:-1] + b',"pad":"' + bytes(LARGE).replace(b"\0", b"x") + b'"}'
OF_LARGE = request(HOST, f"Content-Length: {len(LARGE_BODY)}", body=LARGE_BODY)


@pytest.mark.parametrize("beyond", NO_REQUEST.values(), ids=NO_REQUEST)
async def test_nor_is_a_large_body_with_that_behind_it(beyond: bytes) -> None:
    asked: list[bytes] = []
    async with raw_engine(listening(asked)) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(OF_LARGE[:-3])
        await until(lambda: node.front.buffered_bytes == len(LARGE_BODY) - 3)
        await client.send(OF_LARGE[-3:] + beyond)
        got = await client.read_all()
        assert got.split(b" ")[1] == b"400"
        assert got.count(b"HTTP/1.") == 1
        assert asked == []
        await until(lambda: node.front.buffered_bytes == 0)
        assert node.core.arrivals == []


async def test_garbage_that_comes_later_is_a_400_of_its_own() -> None:
    asked: list[bytes] = []
    async with raw_engine(listening(asked)) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(request(HOST, LENGTH))
        await client.read_until(b"{}")
        await client.send(b"garbage\r\n\r\n")
        assert b" 400 Bad Request\r\n" in await client.read_all()
        assert len(asked) == 1
        await node.settled(1)


FOLLOWING = {
    "plain": request(HOST, LENGTH),
    "behind an empty line": b"\r\n" + request(HOST, LENGTH),
    "in chunks": request(HOST, "Transfer-Encoding: chunked", body=CHUNKS),
    "with an expectation": request(HOST, LENGTH, "Expect: 100-continue"),
}


@pytest.mark.parametrize("following", FOLLOWING.values(), ids=FOLLOWING)
@pytest.mark.parametrize("together", [True, False], ids=["with the head", "with the end of the body"])
async def test_a_request_behind_a_body_is_held_wherever_it_is_cut(following: bytes, *, together: bool) -> None:
    asked: list[bytes] = []
    async with raw_engine(listening(asked)) as port, running(engine_port=port) as node:
        for cut in range(len(following) + 1):
            async with raw_client(node.port) as client:
                sent = request(HOST, LENGTH)
                if not together:
                    await client.send(sent[:-2])
                    await until(lambda: node.front.buffered_bytes == len(BODY) - 2)
                    sent = sent[-2:]
                await client.send(sent + following[:cut])
                await client.read_until(b"{}")
                await client.send(following[cut:])
                await client.read_until(b"{}")
        assert len(asked) == 2 * (len(following) + 1)
        assert all(sent.endswith(BODY) for sent in asked)
        await until(lambda: not node.core.open)


@pytest.mark.parametrize("following", FOLLOWING.values(), ids=FOLLOWING)
async def test_a_request_behind_a_large_body_is_held_wherever_it_is_cut(following: bytes) -> None:
    asked: list[bytes] = []
    async with raw_engine(listening(asked)) as port, running(engine_port=port) as node:
        for cut in range(len(following) + 1):
            async with raw_client(node.port) as client:
                await client.send(OF_LARGE[:-3])
                await until(lambda: node.front.buffered_bytes == len(LARGE_BODY) - 3)
                await client.send(OF_LARGE[-3:] + following[:cut])
                await client.read_until(b"{}")
                await client.send(following[cut:])
                await client.read_until(b"{}")
        assert len(asked) == 2 * (len(following) + 1)
        assert {len(sent.partition(b"\r\n\r\n")[2]) for sent in asked} == {len(BODY), len(LARGE_BODY)}
        await until(lambda: not node.core.open)
