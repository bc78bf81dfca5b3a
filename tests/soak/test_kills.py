"""Streams whose clients leave and whose engines are killed at random, through a real daemon: nothing of them is left.

Every request carries a word of its own that the engine repeats in each piece of its answer, so that a piece that
strays into another answer is seen. The short form runs with every test run; the long one with `make soak`.
"""

import asyncio
import contextlib
import itertools
import json
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.fakes.daemon import Daemon, chat, running
from tests.soak.books import LONG_S, MIB, RSS_SLACK, settled
from tests.soak.engine import EVENTS

NAMES = ["k1", "k2", "k3", "k4"]
INTERVAL_S = 0.05
KILL_S = 1.0
REVIVE_S = 0.1
REFUSED_S = 0.2
PATIENCE_S = 60.0
END = b"0\r\n\r\n"


@dataclass(slots=True)
class Traffic:
    """What the clients do and see."""

    daemon: Daemon
    dice: random.Random
    #: requests so far
    asked: int = 0
    #: how requests ended, and how many engines were killed
    seen: Counter[str] = field(default_factory=Counter)
    #: the daemon's memory, descriptors and TCP connections, a few times on the way
    figures: list[tuple[int, int, int]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"  {rss / MIB:.1f} MiB, {fds} descriptors, {tcp} TCP connections\n" for rss, fds, tcp in self.figures]
        return "".join(lines) + f"  {dict(self.seen)}\n"

    def request(self, model: str, word: str) -> bytes:
        """Make a request: plain or a stream, short or long, in one piece or in chunks, which goes by the other path."""
        long = {"pad": "x" * 200_000} if self.dice.random() < 0.05 else {}
        body = json.dumps(chat(model, stream=self.dice.random() < 0.8, user=word, **long)).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\n"
        if self.dice.random() < 0.3:
            return head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)

    async def client(self, end: float) -> None:
        """Ask again and again; stay to the end of an answer, leave within it, or be gone at once."""
        while asyncio.get_running_loop().time() < end:
            host, _, port = self.daemon.url.removeprefix("http://").partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            self.asked += 1
            model, word = self.dice.choice(NAMES), f"w{self.asked}"
            limit = PATIENCE_S if self.dice.random() < 0.5 else self.dice.random() * EVENTS * INTERVAL_S
            answer = bytearray()
            try:
                writer.write(self.request(model, word))
                async with asyncio.timeout(limit):
                    while not is_complete(answer) and (piece := await reader.read(1 << 16)):
                        answer += piece
                ended = self.judge(bytes(answer), model, word)
            except TimeoutError:
                assert limit < PATIENCE_S, f"no end of {bytes(answer)!r}"
                ended = "left"
            except ConnectionError:
                ended = "lost"
            finally:
                if self.dice.random() < 0.5:
                    writer.transport.abort()
                writer.close()
            self.seen[ended] += 1
            if ended.isdigit():
                await asyncio.sleep(self.dice.random() * REFUSED_S)

    def judge(self, answer: bytes, model: str, word: str) -> str:
        """Say how an answer has ended; fail if something in it belongs to another."""
        head, _, body = answer.partition(b"\r\n\r\n")
        status = head[9:12].decode()
        own = b'{"served_by": "%b", "user": "%b"}' % (model.encode(), word.encode())
        if status == "200":
            assert body.count(b'"user"') == body.count(own), answer
            if not is_complete(bytearray(answer)):
                return "broken"
            assert body.count(own) == (EVENTS if body.endswith(END) else 1), answer
            return "whole"
        assert b"served_by" not in body, answer
        return status

    async def killer(self, end: float) -> None:
        """Kill a random engine about once a second."""
        daemon = psutil.Process(self.daemon.process.pid)
        while asyncio.get_running_loop().time() < end:
            await asyncio.sleep(self.dice.random() * 2 * KILL_S)
            engines = daemon.children()
            if engines:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.dice.choice(engines).kill()
                    self.seen["killed"] += 1

    async def reviver(self, end: float) -> None:
        """Order the models to be loaded, as an operator would: whoever is killed so often is refused for minutes."""
        connector = aiohttp.UnixConnector(str(self.daemon.socket_path))
        async with aiohttp.ClientSession("http://admin", connector=connector) as admin:
            for name in itertools.cycle(NAMES):
                await asyncio.sleep(REVIVE_S)
                if asyncio.get_running_loop().time() > end:
                    return
                async with admin.post(f"/v1/models/{name}/load", json={}) as answer:
                    await answer.read()

    async def observer(self, end: float) -> None:
        """Note the daemon's figures ten times."""
        daemon, loop = psutil.Process(self.daemon.process.pid), asyncio.get_running_loop()
        step = (end - loop.time()) / 10
        for _ in range(10):
            await asyncio.sleep(step)
            connections = len(daemon.net_connections("tcp"))
            self.figures.append((daemon.memory_info().rss, daemon.num_fds(), connections))

    async def run(self, streams: int, seconds: float) -> None:
        """Let as many clients as there are to be streams work for some time."""
        end = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(streams):
                group.create_task(self.client(end))
            group.create_task(self.killer(end))
            group.create_task(self.reviver(end))
            group.create_task(self.observer(end))


def is_complete(answer: bytearray) -> bool:
    """Tell whether an answer has come to its proper end."""
    head, _, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
    return len(body) >= int(length[1]) if length else body.endswith(END)


@pytest.mark.parametrize(
    ("streams", "seconds"),
    [
        pytest.param(64, 5, id="short", marks=pytest.mark.timeout(300)),
        pytest.param(256, LONG_S, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(LONG_S + 600)]),
    ],
)
async def test_no_departure_and_no_death_of_an_engine_leaves_anything_behind(
    tmp_path: Path, streams: int, seconds: int
) -> None:
    engine = [sys.executable, "-I", "-S", str(Path(__file__).with_name("engine.py")), "{port}", "{name}"]
    command = [*engine, str(INTERVAL_S)]
    limits = {"concurrency": 512, "max_queue": 1024, "max_wait": "120s"}
    model = {"engine": "command", "command": command, "memory": "1GiB", "warmup": "none", **limits}
    async with running(tmp_path, models=dict.fromkeys(NAMES, model)) as daemon:
        warm = Traffic(daemon, random.Random(1))
        await warm.run(streams, max(2.0, seconds / 10))
        before, rss_before = await settled(daemon)
        traffic = Traffic(daemon, random.Random(2))
        await traffic.run(streams, seconds)
        after, rss_after = await settled(daemon)
        sys.stdout.write(f"\nbefore: {rss_before / MIB:.1f} MiB, {before}\n{traffic}")
        sys.stdout.write(f"after: {rss_after / MIB:.1f} MiB, {after}\n")
        assert after == before
        assert rss_after - rss_before < RSS_SLACK
        assert traffic.seen["whole"]
        assert traffic.seen["killed"]
