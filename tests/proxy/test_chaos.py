"""Clients and an engine do everything at random on kept connections: no answer strays, and nobody waits for ever.

Each request carries a word of its own, and each answer says the word of the request it answers.
"""

import asyncio
import itertools
import random
import re
from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.proxy.breaking import CHAT_PATH, chunk
from tests.proxy.harness import RawClient, raw_client, raw_engine, read_request, running, until

CLIENTS = 24
REQUESTS = 12
WORD = re.compile(rb"<w\d+>")
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Engine:
    """Answers with the word it was asked with, in any form that HTTP has, and in some that it has not."""

    dice: random.Random
    did: Counter[str] = field(default_factory=Counter)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            _, body = await read_request(reader)
            [word] = WORD.findall(body)
            kind = self.dice.choices(
                (
                    "length",
                    "chunks",
                    "interim",
                    "bytewise",
                    "large",
                    "until close",
                    "beyond",
                    "dies",
                    "resets",
                    "silent",
                ),
                (8, 8, 3, 2, 3, 1, 1, 1, 1, 1),
            )[0]
            self.did[kind] += 1
            answer = self.answer(kind, word * self.dice.choice((1, 3, 40)))
            # bytes beyond an answer come with it: those that meet the next request cannot be told from its answer
            split = kind != "beyond" and (kind == "bytewise" or self.dice.random() < 0.3)
            step = self.dice.choice((7, 50, 1000)) if split else len(answer)
            if kind in ("dies", "resets"):
                answer = answer[: self.dice.randrange(len(answer))]
            if kind == "silent":
                return
            for at in range(0, len(answer), step):
                writer.write(answer[at : at + step])
                if len(answer) // step < 500:
                    await asyncio.sleep(0)
            await writer.drain()
            if kind == "resets":
                writer.transport.abort()
            if kind in ("until close", "dies", "resets"):
                return

    def answer(self, kind: str, text: bytes) -> bytes:
        if kind == "large":
            text = text * (200_000 // len(text))
        if kind == "interim":
            return b"HTTP/1.1 103 Early\r\nA: b\r\n\r\n" + self.answer("chunks", text)
        if kind == "until close":
            return b"HTTP/1.0 200 OK\r\nX: y\r\n\r\n" + text
        if kind == "beyond":
            return self.answer("length", text) + b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n<w99999>"
        if kind == "length" or (kind != "chunks" and self.dice.random() < 0.5):
            return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text
        media = self.dice.choice((b"text/event-stream", b"text/plain"))
        framed, at = b"", 0
        while at < len(text):
            size = self.dice.choice((1, 9, 100, 5000, 70_000))
            part = chunk(text[at : at + size])
            if self.dice.random() < 0.1:
                part = part.replace(b"\r\n", b";a=b\r\n", 1)
            framed += part
            at += size
        trailer = self.dice.choice((b"", b"T: <w88888>\r\n"))
        return CHUNKED % media + framed + b"0\r\n" + trailer + b"\r\n"


@dataclass
class Clients:
    """Ask, and look at what comes."""

    port: int
    dice: random.Random
    words: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    saw: Counter[str] = field(default_factory=Counter)

    def request(self, word: bytes) -> bytes:
        pad = self.dice.choice((0, 0, 0, 5, 60, 900, 9_000, 70_000, 300_000))
        body = b'{"model":"m01","x":"%b","p":"%b"}' % (word, b"p" * pad)
        if self.dice.random() < 0.1:
            return (
                f"POST {CHAT_PATH} HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
                + chunk(body)
                + b"0\r\n\r\n"
            )
        extra = self.dice.choice(("", "", "", "X-A: b\r\n", "X-A: c\r\n", "X-Request-Id: abc\r\n"))
        return f"POST {CHAT_PATH} HTTP/1.1\r\nHost: n\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def run(self) -> None:
        left = REQUESTS
        while left > 0:
            async with raw_client(self.port, limit=1 << 20) as client:
                left -= await self.talk(client, left)

    async def talk(self, client: RawClient, most: int) -> int:
        """Ask one connection's requests; return how many."""
        count = self.dice.randint(1, most)
        ahead = self.dice.random() < 0.4
        words = [b"<w%d>" % next(self.words) for _ in range(count)]
        if ahead:
            sending = asyncio.ensure_future(self.send(client, b"".join(map(self.request, words))))
        try:
            for asked, word in enumerate(words, 1):
                if not ahead:
                    await self.send(client, self.request(word))
                way = self.dice.random()
                if way < 0.06:
                    self.saw["left"] += 1
                    client.leave()
                    return asked
                if way < 0.1:
                    self.saw["half"] += 1
                    client.writer.write_eof()
                    await self.whole(client, word, may_be_cut=ahead)
                    return asked
                if way < 0.2:
                    client.stop_reading()
                    await asyncio.sleep(0.01)
                    client.go_on_reading()
                if not await self.whole(client, word):
                    self.saw["broken"] += 1
                    return asked
                self.saw["whole"] += 1
        finally:
            if ahead:
                sending.cancel()
                await asyncio.wait((sending,))
        return count

    async def send(self, client: RawClient, data: bytes) -> None:
        try:
            step = self.dice.choice((len(data), len(data), 1 + len(data) // 3, 60_000))
            for at in range(0, len(data), step):
                await client.send(data[at : at + step])
                await asyncio.sleep(0)
        except (ConnectionError, RuntimeError):
            pass

    async def whole(self, client: RawClient, word: bytes, *, may_be_cut: bool = False) -> bool:
        """Read one answer; say whether it is complete. A request that was cut by the end of sending is refused."""
        text = b""
        try:
            async with asyncio.timeout(20):
                head = await client.reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
                if length is not None:
                    text = await client.reader.readexactly(int(length[1]))
                else:
                    while size := int(await client.reader.readuntil(b"\r\n"), 16):
                        text += (await client.reader.readexactly(size + 2))[:-2]
                    await client.reader.readexactly(2)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            text += getattr(error, "partial", b"")
            assert set(WORD.findall(text)) <= {word}
            return False
        assert head[9:12] in (b"200", b"502", b"400" if may_be_cut else b""), head
        assert set(WORD.findall(text)) == ({word} if head[9:10] == b"2" else set()), (head, text[:300])
        return True


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_clients_and_engine_do_no_answer_strays_and_every_request_ends(seed: int) -> None:
    engine = Engine(random.Random(seed))
    async with raw_engine(engine) as port, running(engine_port=port) as node:
        clients = Clients(node.port, random.Random(seed + 1))
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(clients.run())
        await until(lambda: not node.core.open)
        node.assert_nothing_left()
