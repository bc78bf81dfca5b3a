"""What a request and a piece of a stream cost in swapd, in nginx and in a naive proxy, before the same engine.

The proxies are pinned to one CPU, the load generator to another. Within each repetition they take turns in random
order; ratios are formed pair by pair and the median is printed. CPU is taken from the scheduler's statistics.
"""

import asyncio
import json
import os
import random
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import proxies
from benchmarks.tools import cpu_ns, engine_of, median, table
from tests.fakes.daemon import chat, running

REPETITIONS = 5


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of load."""

    title: str
    body: dict[str, Any]
    connections: int
    requests: int
    #: what CPU is divided by: `requests` or `events`
    unit: str
    #: CPU relative to nginx, and to the naive proxy
    goals: tuple[float, float]


def streamed(chunks: int, interval_ms: int) -> dict[str, Any]:
    """Make the body that lets the engine stream."""
    return chat("bench", stream=True, chunks=chunks, interval_ms=interval_ms)


WORK = (
    Work("plain request, 1 connection", chat("bench"), 1, 1_500, "requests", (1.6, 0.2)),
    Work("plain request, 16 connections", chat("bench"), 16, 6_000, "requests", (1.6, 0.2)),
    Work("plain request, 64 connections", chat("bench"), 64, 6_000, "requests", (1.6, 0.2)),
    Work("paced event, 400 streams of 25/s", streamed(50, 40), 400, 400, "events", (1.15, 0.5)),
)


@dataclass(frozen=True, slots=True)
class Proxy:
    """One of the compared."""

    pid: int
    port: int


@dataclass(slots=True)
class Samples:
    """CPU per unit (µs) and median latency or delay (ms) by proxy, a value per repetition."""

    cpu: dict[str, list[float]] = field(default_factory=dict)
    late: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, of: dict[str, list[float]], other: str) -> float:
        """Return the median of the ratios, pair by pair."""
        return median([ours / theirs for ours, theirs in zip(of["swapd"], of[other], strict=True)])


async def generate(program: str, port: int, work: Work, directory: Path) -> dict[str, float]:
    """Run the load generator; every request must succeed."""
    body, file = json.dumps(work.body).encode(), directory / "request"
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    file.write_bytes(head + b"content-length: %d\r\n\r\n%b" % (len(body), body))
    command = [program, str(port), str(work.connections), str(work.requests), str(file)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    proxies.pin(process.pid, max(os.sched_getaffinity(0)))
    output, _ = await process.communicate()
    assert process.returncode == 0, "the load generator failed; it says why above"
    seen: dict[str, float] = json.loads(output)
    assert seen["failures"] == 0, seen
    return seen


async def measure(compared: dict[str, Proxy], program: str, work: Work, samples: Samples, directory: Path) -> None:
    """Do one repetition: every proxy, in random order."""
    for name in random.sample(list(compared), len(compared)):
        proxy = compared[name]
        before = cpu_ns(proxy.pid)
        seen = await generate(program, proxy.port, work, directory)
        # what is still to be logged belongs to it
        await asyncio.sleep(0.2)
        samples.cpu.setdefault(name, []).append((cpu_ns(proxy.pid) - before) / 1000 / seen[work.unit])
        late = seen["delay_p50_ms"] if work.unit == "events" else seen["p50_ms"]
        samples.late.setdefault(name, []).append(late)


def row(work: Work, samples: Samples) -> list[object]:
    """Form a line of the table."""
    to_nginx, to_naive = samples.ratio(samples.cpu, "nginx"), samples.ratio(samples.cpu, "naive")
    kept = to_nginx <= work.goals[0] and to_naive <= work.goals[1]
    costs = [f"{median(samples.cpu[name]):.1f}" for name in ("nginx", "swapd", "naive")]
    goals = f"≤ {work.goals[0]}, ≤ {work.goals[1]}"
    ratios = [f"{to_nginx:.2f}", f"{to_naive:.2f}", goals, "yes" if kept else "no"]
    return [work.title, *costs, *ratios, f"{samples.ratio(samples.late, 'nginx'):.2f}"]


async def main(repetitions: int = REPETITIONS) -> None:
    """Run every kind of load and print the table."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        engine, load = (proxies.compiled(program, directory) for program in ("upstream", "load"))
        model = {"engine": "command", "command": [engine, "{port}"], "memory": "1GiB", "warmup": "none"}
        models = {"bench": {**model, "concurrency": 4096, "max_queue": 4096}}
        async with running(directory, models=models) as daemon:
            await daemon.cli("load", "bench")
            _, port = await engine_of(daemon, "bench")
            compared = {
                "nginx": Proxy(*stack.enter_context(proxies.nginx(directory, port))),
                "naive": Proxy(*stack.enter_context(proxies.naive(port))),
                "swapd": Proxy(daemon.process.pid, int(daemon.url.rpartition(":")[2])),
            }
            for proxy in compared.values():
                await proxies.listening(proxy.port)
                proxies.pin(proxy.pid, min(os.sched_getaffinity(0)))
            samples = [Samples() for _ in WORK]
            for repetition in range(repetitions + 1):
                for index in random.sample(range(len(WORK)), len(WORK)):
                    # the first repetition warms all sides up and is thrown away
                    kept = samples[index] if repetition else Samples()
                    await measure(compared, load, WORK[index], kept, directory)
            head = ["CPU in µs", "nginx", "swapd", "naive", "to nginx", "to naive", "goals", "met", "latency to nginx"]
            rows = [row(work, sampled) for work, sampled in zip(WORK, samples, strict=True)]
            table("Relay: CPU per request or event, and the median latency or delay", head, rows)


if __name__ == "__main__":
    asyncio.run(main())
