"""What it costs to go through swapd: rate, latency and CPU against the same engine without swapd.

Both ways are taken in turn within each repetition, in random order; ratios are formed pair by pair and the median is
printed. CPU is taken from the scheduler's statistics of each process, which the neighbours on the machine hardly touch.
"""

import asyncio
import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.tools import HERE, cpu_ns, engine_of, generate, median, table
from tests.fakes.daemon import Daemon, chat, running, tiny_models

REPETITIONS = 5


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of load."""

    title: str
    model: str
    body: dict[str, Any]
    connections: int
    requests: int
    #: what CPU is divided by: `requests` or `events`
    unit: str = "requests"


@dataclass(slots=True)
class Samples:
    """One list per figure, a value per repetition."""

    direct_rate: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    added_p50_ms: list[float] = field(default_factory=list)
    engine_us: list[float] = field(default_factory=list)
    swapd_us: list[float] = field(default_factory=list)

    def row(self, title: str) -> list[object]:
        """Form the ratios pair by pair and take medians."""
        rate_ratio = median([ours / direct for ours, direct in zip(self.rate, self.direct_rate, strict=True)])
        cpu_ratio = median([ours / engine for ours, engine in zip(self.swapd_us, self.engine_us, strict=True)])
        return [
            title,
            f"{median(self.direct_rate):,.0f}",
            f"{median(self.rate):,.0f}",
            f"{rate_ratio:.2f}",
            f"{median(self.added_p50_ms):+.2f}",
            f"{median(self.engine_us):.1f}",
            f"{median(self.swapd_us):.1f}",
            f"{cpu_ratio:.1f}",
        ]


def streamed(chunks: int, interval_ms: int) -> dict[str, Any]:
    """Make the body that lets the bench engine stream."""
    return chat("bench", stream=True, chunks=chunks, interval_ms=interval_ms)


WORK = (
    Work("plain request, 1 connection", "bench", chat("bench"), 1, 1_000),
    Work("plain request, 16 connections", "bench", chat("bench"), 16, 4_000),
    Work("plain request, 64 connections", "bench", chat("bench"), 64, 4_000),
    Work("SSE event, unpaced, 16 streams", "bench", streamed(500, 0), 16, 64, "events"),
    Work("SSE event, 25/s, 200 streams", "bench", streamed(50, 40), 200, 200, "events"),
    Work("llama.cpp, plain request, 4 connections", "m01", chat("m01"), 4, 400),
    Work("llama.cpp, SSE event, 4 streams", "m01", chat("m01", stream=True), 4, 400, "events"),
)


async def measure(daemon: Daemon, work: Work, samples: Samples) -> None:
    """Do one repetition: both ways, in random order."""
    engine, engine_port = await engine_of(daemon, work.model)
    rates, latencies = {}, {}
    for way in random.sample(["direct", "swapd"], 2):
        port = engine_port if way == "direct" else int(daemon.url.rpartition(":")[2])
        measured = engine if way == "direct" else daemon.process.pid
        before = cpu_ns(measured)
        seen = await generate(port, work.body, connections=work.connections, requests=work.requests)
        units = seen[work.unit]
        used_us = (cpu_ns(measured) - before) / 1000 / units
        rates[way], latencies[way] = units / seen["seconds"], seen["p50_ms"]
        (samples.engine_us if way == "direct" else samples.swapd_us).append(used_us)
    samples.direct_rate.append(rates["direct"])
    samples.rate.append(rates["swapd"])
    samples.added_p50_ms.append(latencies["swapd"] - latencies["direct"])


async def main(repetitions: int = REPETITIONS) -> None:
    """Run every kind of load and print the table."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        bench = {
            "engine": "command",
            "command": [sys.executable, str(HERE / "upstream.py"), "--port", "{port}"],
            "memory": "1GiB",
            "concurrency": 4096,
            "max_queue": 4096,
        }
        models = {"bench": bench, **tiny_models(directory, ["m01"], concurrency=16)}
        async with running(directory, models=models) as daemon:
            await daemon.cli("load", "bench")
            await daemon.cli("load", "m01")
            samples = {work: Samples() for work in range(len(WORK))}
            for repetition in range(repetitions + 1):
                for index in random.sample(range(len(WORK)), len(WORK)):
                    # The first repetition warms both sides up and is thrown away.
                    await measure(daemon, WORK[index], samples[index] if repetition else Samples())
            head = ["", "direct/s", "swapd/s", "ratio", "added p50 ms", "engine µs", "swapd µs", "CPU ratio"]
            rows = [samples[index].row(work.title) for index, work in enumerate(WORK)]
            table("Relay: through swapd against the same engine without it (CPU per request or event)", head, rows)


if __name__ == "__main__":
    asyncio.run(main())
