"""The same requests and answers through the fast path, through the library and directly come to the same.

To the engine: the same bytes, but for the fields that the front door writes anew. To the client: the same status, body
and end-to-end fields, and framing after which the next request on the connection is answered, too.
"""

import asyncio
import contextlib
import http.client
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.proxy import harness
from tests.proxy.breaking import CHAT_PATH, chunk
from tests.proxy.harness import Node, raw_client, raw_engine, read_request, running, until

HEALTH = b"GET /health HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
#: written anew or added on the way to the engine, and on the way to the client
OURS_UP = frozenset(("host", "content-length", "x-request-id", "connection", "keep-alive", "x-secret"))
OURS_DOWN = frozenset(
    (
        *("date", "server", "x-request-id", "connection", "keep-alive", "transfer-encoding", "x-inner"),
        *("content-type", "x-accel-buffering", "access-control-allow-origin"),
    )
)


class Raw(bytes):
    """Bytes of which failures show the beginning only."""

    def __repr__(self) -> str:
        return repr(bytes(self[:400]))


@dataclass
class Script:
    """What the engine answers, and what it was asked."""

    pieces: list[bytes] = field(default_factory=list)
    closes: bool = False
    asked: list[tuple[bytes, bytes]] = field(default_factory=list)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            self.asked.append(await read_request(reader))
            for piece in self.pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if self.closes:
                return


@dataclass
class Doors:
    """Two front doors before the same engine."""

    loop: asyncio.AbstractEventLoop
    script: Script
    fast: Node
    slow: Node


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def doors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Doors]:
    loop = request.param()
    stack, script = contextlib.AsyncExitStack(), Script()

    async def open_both() -> Doors:
        port = await stack.enter_async_context(raw_engine(script))
        nodes = []
        for fast in (True, False):
            monkeypatch.setattr(harness, "FAST_PATH", fast)
            nodes.append(await stack.enter_async_context(running(engine_port=port)))
        return Doors(loop, script, *nodes)

    yield loop.run_until_complete(open_both())
    loop.run_until_complete(stack.aclose())
    loop.close()


_NAME = st.sampled_from(["X-A", "x-b", "Accept", "User-Agent", "Authorization", "traceparent", "Cookie"])
_VALUE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20).map(str.strip)
_FIELDS = st.lists(st.tuples(_NAME, _VALUE), max_size=6, unique_by=lambda pair: pair[0].lower())
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda sub: st.lists(sub) | st.dictionaries(st.text(max_size=4), sub),
    max_leaves=6,
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Raw, list[int]]:
    """Draw a request and where it is cut into pieces."""
    body = {**draw(st.dictionaries(st.text(max_size=5), _JSON, max_size=3)), "model": "m01"}
    data = json.dumps(body, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        data = b'{"model":"m01","x":"' + b"y" * draw(st.integers(60_000, 200_000)) + b'"}'
    target = CHAT_PATH + draw(st.sampled_from(["", "?a=b", "?q=%20+;&&", "?x=[1]|^"]))
    extra = draw(st.sampled_from([(), ("Connection: keep-alive",), ("Connection: X-Secret", "X-Secret: 1")]))
    lines = [f"POST {target} HTTP/1.1", "Host: node", *(f"{n}: {v}" for n, v in draw(_FIELDS)), *extra]
    lines.insert(draw(st.integers(1, len(lines))), f"Content-Length: {len(data)}")
    whole = "\r\n".join([*lines, "", ""]).encode() + data
    cuts = sorted(draw(st.lists(st.integers(0, min(len(whole), 600)), max_size=4)))
    return Raw(whole), cuts


@st.composite
def answers(draw: st.DrawFn) -> tuple[Raw, bool]:
    """Draw an engine's answer, and whether closing the connection is its end."""
    status = draw(st.sampled_from([200, 200, 200, 201, 204, 304, 400, 404, 500]))
    payload = draw(st.binary(max_size=300) | st.just(b"data: {}\n\n" * 40) | st.just(b"z" * 100_000))
    framing = draw(st.sampled_from(["length", "chunked", "chunked", "close"]))
    lines = [f"HTTP/1.1 {status} Fine", *(f"{n}: {v}" for n, v in draw(_FIELDS))]
    lines += draw(
        st.sampled_from(
            [(), ("Connection: X-Inner", "X-Inner: 1"), ("Keep-Alive: timeout=5",), ("Access-Control-Allow-Origin: *",)]
        )
    )
    body = b""
    if status in {204, 304}:
        framing = "length"
    elif framing == "length":
        lines.append(f"Content-Length: {len(payload)}")
        body = payload
    elif framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
        size = draw(st.integers(1, max(1, len(payload))))
        ends = draw(st.sampled_from(["", ";a=b", ';quoted="x"']))
        for at in range(0, len(payload), max(size, len(payload) // 50 + 1)):
            part = payload[at : at + max(size, len(payload) // 50 + 1)]
            framed = chunk(part)
            body += framed.replace(b"\r\n", ends.encode() + b"\r\n", 1)
        body += b"0\r\n" + draw(st.sampled_from([b"", b"X-Trailer: 1\r\n"])) + b"\r\n"
    else:
        body = payload
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * draw(st.integers(0, 2))
    return Raw(interim + "\r\n".join([*lines, "", ""]).encode() + body), framing == "close"


def parsed(data: bytes) -> tuple[int, dict[str, list[str]], bytes, bytes]:
    """Return status, fields, body of the first final answer in ``data``, and what follows it."""

    class Socket:
        def makefile(self, *_: object) -> io.BytesIO:
            return stream

    class Kept(io.BytesIO):
        def close(self) -> None:
            """Stay open: the library closes what it has read to the end of an answer."""

    stream = Kept(data)
    while True:
        answer = http.client.HTTPResponse(Socket(), method="POST")  # type: ignore[arg-type]
        answer.begin()
        if answer.status >= 200:
            break
    fields: dict[str, list[str]] = {}
    for name, value in answer.getheaders():
        fields.setdefault(name.lower(), []).append(value.strip())
    return answer.status, fields, answer.read(), stream.read()


def end_to_end(fields: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: values for name, values in fields.items() if name not in OURS_DOWN | {"content-length"}}


def asked_for(request: tuple[bytes, bytes]) -> tuple[bytes, list[tuple[str, str]], bytes]:
    """Return line, passed-on fields in their order, and body of a request as it reached the engine."""
    head, body = request
    line, *rest = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    pairs = [(name, value.strip()) for name, _, value in (text.partition(":") for text in rest)]
    return line.encode("latin-1"), [pair for pair in pairs if pair[0].lower() not in OURS_UP], body


async def through(node: Node, script: Script, sent: bytes, cuts: list[int]) -> tuple[bytes, tuple[bytes, bytes]]:
    """Send a request in pieces, and another behind it; return what comes back and what the engine was asked."""
    script.asked.clear()
    async with raw_client(node.port, limit=1 << 20) as client:
        for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            await client.send(sent[start:end])
            await asyncio.sleep(0)
        await client.send(HEALTH)
        got = await client.read_all()
    await until(lambda: not node.core.open)
    [asked] = script.asked
    return got, asked


def test_both_paths_do_to_engine_and_client_what_no_path_would(doors: Doors) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(request=requests(), answer=answers(), steps=st.lists(st.integers(1, 40), min_size=1, max_size=5))
    def check(request: tuple[bytes, list[int]], answer: tuple[bytes, bool], steps: list[int]) -> None:
        sent, cuts = request
        raw, closes = answer
        at, pieces = 0, []
        while at < len(raw):
            step = steps[len(pieces) % len(steps)] if len(pieces) < 60 else len(raw)
            pieces.append(raw[at : at + step])
            at += step
        doors.script.pieces, doors.script.closes = pieces, closes
        status, fields, body, _ = parsed(raw)
        own, own_body = sent.partition(b"\r\n\r\n")[::2]
        expected = asked_for((own + b"\r\n\r\n", own_body))
        for node in (doors.fast, doors.slow):
            got, asked = doors.loop.run_until_complete(through(node, doors.script, sent, cuts))
            assert asked_for(asked) == expected
            got_status, got_fields, got_body, rest = parsed(got)
            assert (got_status, got_body) == (status, body)
            assert end_to_end(got_fields) == end_to_end(fields)
            if status not in {204, 304}:
                assert got_fields.get("content-length") == fields.get("content-length")
            assert parsed(rest)[0] == 200
            assert parsed(rest)[2] == b'{"status":"ok"}'

    check()
