"""Swaps, vanishing clients, a crowd on a cold model, an oversized body: afterwards everything is where it was.

The short form runs with every test run; the long one with `make soak`. Both do the same, in other numbers.
"""

import asyncio
import contextlib
import itertools
import random
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.fakes.daemon import Daemon, chat, eventually, running, total
from tests.soak.books import MIB, RSS_SLACK, settled

NAMES = [f"s{number:02}" for number in range(1, 9)]
SWAPPERS = 4


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done."""

    swaps: int
    disconnects: int
    crowd: int


SHORT = Size(swaps=200, disconnects=60, crowd=500)
LONG = Size(swaps=10_000, disconnects=1_000, crowd=500)


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(SHORT, id="short", marks=pytest.mark.timeout(600)),
        pytest.param(LONG, id="long", marks=[pytest.mark.soak, pytest.mark.timeout(14_400)]),
    ],
)
async def test_after_everything_that_clients_can_do_memory_descriptors_processes_and_counters_are_where_they_were(
    tmp_path: Path, size: Size
) -> None:
    engine = [sys.executable, "-I", "-S", str(Path(__file__).with_name("engine.py")), "{port}", "{name}"]
    model = {"engine": "command", "command": engine, "memory": "2GiB", "max_queue": 1024, "warmup": "none"}
    scheduling = {"protect": 0, "max_concurrent_loads": 2}
    async with running(
        tmp_path, models=dict.fromkeys(NAMES, model), scheduling=scheduling, defaults={"max_wait": "300s"}
    ) as daemon:
        await everything(daemon, Size(swaps=20, disconnects=20, crowd=size.crowd), random.Random(1))
        before, rss_before = await settled(daemon)
        await everything(daemon, size, random.Random(2))
        after, rss_after = await settled(daemon)
        sys.stdout.write(f"\nbefore: {rss_before / MIB:.1f} MiB, {before}\nafter: {rss_after / MIB:.1f} MiB, {after}\n")
        assert after == before
        assert rss_after - rss_before < RSS_SLACK


async def everything(daemon: Daemon, size: Size, rng: random.Random) -> None:
    """Do all of it once, one after the other."""
    await swaps(daemon, size.swaps, rng)
    await disconnects(daemon, size.disconnects, rng)
    await crowd(daemon, size.crowd)
    await oversized_body(daemon)


async def swaps(daemon: Daemon, count: int, rng: random.Random) -> None:
    """Ask for random models until so many had to be loaded; each answer comes from the model named."""
    cold = itertools.count()
    async with daemon.client() as client:

        async def swapper() -> None:
            while True:
                name = rng.choice(NAMES)
                async with client.post("/v1/chat/completions", json=chat(name)) as answer:
                    assert (answer.status, await answer.json()) == (200, {"served_by": name})
                    if answer.headers.get("x-swapd-cold-start") and next(cold) >= count:
                        return

        await asyncio.gather(*(swapper() for _ in range(SWAPPERS)))


async def disconnects(daemon: Daemon, count: int, rng: random.Random) -> None:
    """Leave at random moments: in the queue, during a load, in the middle of a stream."""

    async def vanish() -> None:
        async with daemon.client() as client:
            request = client.post("/v1/chat/completions", json=chat(rng.choice(NAMES), stream=True))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(read(request), rng.random() * 0.8)

    for _ in range(0, count, 10):
        await asyncio.gather(*(vanish() for _ in range(10)))


async def read(request: Any) -> None:
    """Read the whole answer of a request."""
    async with request as answer:
        await answer.read()


async def crowd(daemon: Daemon, clients: int) -> None:
    """Let many clients ask for one model that is not resident: all are answered, by one load."""
    state = {model["name"]: model["state"] for model in (await daemon.status())["models"]}
    cold = next(name for name in NAMES if state[name] == "absent")
    before = total(await daemon.metrics(), "swapd_model_loads_total", model=cold)
    async with daemon.client() as client:

        async def one() -> int:
            async with client.post("/v1/chat/completions", json=chat(cold)) as answer:
                await answer.read()
                return answer.status

        assert set(await asyncio.gather(*(one() for _ in range(clients)))) == {200}
    assert total(await daemon.metrics(), "swapd_model_loads_total", model=cold) - before == 1


async def oversized_body(daemon: Daemon) -> None:
    """Send 100 MiB, more than is allowed, and expect to be refused without an answer from an engine."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * MIB

    async def refused() -> float:
        return total(await daemon.metrics(), "swapd_requests_total", code="413")

    before, status = await refused(), 413
    async with daemon.client() as client:
        # A refusal in the middle of the upload may close the connection before the client reads the answer.
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with client.post("/v1/chat/completions", data=pieces()) as answer:
                status = answer.status
    assert status == 413

    async def counted() -> bool:
        return await refused() == before + 1

    await eventually(counted, "the oversized body is refused with 413")
