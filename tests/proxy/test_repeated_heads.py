"""A head that comes again with another length is known by its bytes, and means what it would have meant alone."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.proxy.front.heads import RequestHead, read_head
from tests.proxy.breaking import BODY, CHAT_PATH
from tests.proxy.harness import raw_client, raw_engine, read_request, running
from tests.proxy.test_smuggling import listening

START = f"POST {CHAT_PATH} HTTP/1.1\r\nHost: node\r\nContent-Length: ".encode()
END = b"\r\nAccept-Encoding: br\r\n\r\n"


def whole_head(data: bytes) -> tuple[RequestHead, bytes]:
    found = read_head(data)
    assert found is not None
    return found


def meaning(head: RequestHead, digits: bytes) -> list[object]:
    engine = head.for_engine(b"\r\nHost: engine")
    return [head.method, head.target, head.path, head.match, head.keep_alive, head.size, engine, digits]


def test_only_the_length_may_differ() -> None:
    head, digits = whole_head(START + b"12" + END + b"x" * 12)
    assert digits == b"12"
    assert head.length_in(START + b"12345" + END + b"x") == b"12345"
    assert head.length_in(START + b"7" + END) == b"7"
    assert head.length_in(START.replace(b"node", b"nod3") + b"12" + END) is None
    assert head.length_in(START + b"12" + END[:-1] + b"X-A: b\r\n\r\n") is None
    for part in range(len(START + b"12" + END)):
        assert head.length_in((START + b"12" + END)[:part]) is None


@pytest.mark.parametrize(
    "length", [b"", b" 12", b"12 ", b"1 2", b"+12", b"0xf", b"1_5", b"12, 12", b"1" * 16, b"\xb2", b"1\r"]
)
def test_a_length_that_is_not_plain_is_none(length: bytes) -> None:
    head, _ = whole_head(START + b"12" + END)
    assert head.length_in(START + length + END) is None


def test_a_head_without_a_length_is_not_repeated() -> None:
    data = b"GET /v1/models HTTP/1.1\r\nHost: node\r\n\r\n"
    head, digits = whole_head(data)
    assert digits == b""
    assert head.length_in(data) is None


@given(
    fields=st.lists(
        st.sampled_from(
            ["Accept: a", "X-A: 1", "x-content-length: 3", "Connection: close", "Keep-Alive: 5", "X-Request-Id: c"]
        ),
        max_size=4,
    ),
    host=st.sampled_from(["Host: node", "hOST:node"]),
    name=st.sampled_from(["Content-Length: ", "content-length:", "CONTENT-LENGTH:\t "]),
    place=st.integers(0, 4),
    lengths=st.tuples(st.integers(0, 10**15 - 1), st.integers(0, 10**15 - 1)),
)
def test_a_repeated_head_means_what_it_means_alone(
    fields: list[str], host: str, name: str, place: int, lengths: tuple[int, int]
) -> None:
    def written(length: int) -> bytes:
        lines = [*fields[:place], f"{name}{length}", *fields[place:], host]
        return "\r\n".join([f"POST {CHAT_PATH}?a=b HTTP/1.1", *lines, "", ""]).encode()

    found = read_head(written(lengths[0]))
    again = read_head(written(lengths[1]))
    assert (found is None) == (again is None)
    if found is not None and again is not None:
        assert found[0].length_in(written(lengths[1])) == again[1]
        assert meaning(found[0], again[1]) == meaning(*again)


@pytest.mark.parametrize("length", ["29, 29", "+29", "0x1d", "2_9", "", "29999999999999999999"])
async def test_a_length_that_is_not_plain_is_refused_behind_the_same_head(length: str) -> None:
    asked: list[bytes] = []
    async with raw_engine(listening(asked)) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        for _ in range(2):
            await client.send(START + b"%d" % len(BODY) + END + BODY)
            assert (await client.read_until(b"{}")).startswith(b"HTTP/1.1 200 ")
        await client.send(START + length.encode() + END + BODY)
        assert (await client.read_all()).split(b" ")[1] == b"400"
        assert len(asked) == 2


async def test_requests_with_the_same_head_and_other_bodies_reach_the_engine_as_they_are() -> None:
    asked: list[bytes] = []
    bodies = [b'{"model":"m01","n":"%b"}' % (b"x" * count) for count in (3, 3000, 0, 90_000, 12)]
    async with raw_engine(listening(asked)) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        for body in bodies:
            await client.send(START + b"%d" % len(body) + END + body)
            assert (await client.read_until(b"{}")).startswith(b"HTTP/1.1 200 ")
    for sent, body in zip(asked, bodies, strict=True):
        assert sent.lower().count(b"content-length: %d\r\n" % len(body)) == 1
        assert sent.endswith(b"\r\n\r\n" + body)


async def test_a_large_answer_that_comes_at_once_leaves_its_connection_fit_for_the_next() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000
    connections: list[int] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        while True:
            await read_request(reader)
            writer.write(answer)

    async with raw_engine(talk) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        for _ in range(3):
            await client.send(START + b"%d" % len(BODY) + END + BODY)
            await client.read_head()
            assert len(await client.reader.readexactly(200_000)) == 200_000
        await node.settled(3)
        assert len(connections) == 1
