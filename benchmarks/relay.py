"""What a request, a piece of a stream and a large body cost in swapd and in others, before the same engine.

The others: nginx, a naive proxy on aiohttp, and the bare front door. All proxies are pinned to one CPU, the load
generator to another. Within each repetition they take turns in random order; ratios are formed pair by pair and the
median is printed. CPU is taken from the scheduler's statistics.
"""

import asyncio
import os
import random
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import goals, proxies
from benchmarks.tools import cpu_ns, engine_of, median, table
from tests.fakes.daemon import chat, running

REPETITIONS: Final = 5
_ALL: Final = ("nginx", "bare", "swapd", "naive")
_BOTH: Final = ("nginx", "swapd")


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of load."""

    title: str
    body: dict[str, Any]
    connections: int
    requests: int
    #: what CPU is divided by: `requests` or `events`
    unit: str = "requests"
    compared: tuple[str, ...] = _BOTH


def streamed(chunks: int, interval_ms: int) -> dict[str, Any]:
    """Make the body that lets the engine stream."""
    return chat("bench", stream=True, chunks=chunks, interval_ms=interval_ms)


ONE = Work("plain request, 1 connection", chat("bench"), 1, 3_000)
FEW = Work("plain request, 16 connections", chat("bench"), 16, 6_000, compared=_ALL)
MANY = Work("plain request, 64 connections", chat("bench"), 64, 6_000, compared=_ALL)
PACED = Work("paced event, 400 streams of 25/s", streamed(50, 40), 400, 400, "events", ("nginx", "swapd", "naive"))
CROWD = Work("paced event, 1,000 streams of 25/s", streamed(50, 40), 1_000, 1_000, "events")
LARGE = Work("body of 20 MB", chat("bench", pad="word " * 4_000_000), 1, 12)
WORK = (ONE, FEW, MANY, PACED, CROWD, LARGE)


@dataclass(frozen=True, slots=True)
class Proxy:
    """One of the compared."""

    pid: int
    port: int


Series = dict[str, list[float]]


@dataclass(slots=True)
class Samples:
    """What was measured of one kind of load: by proxy, a value per repetition."""

    #: CPU per unit, µs
    cpu: Series = field(default_factory=dict)
    #: latency, or for events their delay, ms
    p50: Series = field(default_factory=dict)
    p99: Series = field(default_factory=dict)


def ratio(of: Series, other: str) -> float:
    """Return the median of the ratios of swapd to another, pair by pair."""
    return median([ours / theirs for ours, theirs in zip(of["swapd"], of[other], strict=True)])


def more(of: Series, other: str) -> float:
    """Return the median of the differences of swapd to another, pair by pair."""
    return median([ours - theirs for ours, theirs in zip(of["swapd"], of[other], strict=True)])


async def measure(compared: dict[str, Proxy], program: str, work: Work, samples: Samples, *, directory: Path) -> None:
    """Do one repetition: every proxy, in random order."""
    request = proxies.request_file(directory, work.body)
    kind = "delay_" if work.unit == "events" else ""
    for name in random.sample(work.compared, len(work.compared)):
        proxy = compared[name]
        before = cpu_ns(proxy.pid)
        seen = await proxies.generate(
            program, proxy.port, request, connections=work.connections, requests=work.requests
        )
        # what is still to be logged belongs to it
        await asyncio.sleep(0.2)
        samples.cpu.setdefault(name, []).append((cpu_ns(proxy.pid) - before) / 1000 / seen[work.unit])
        samples.p50.setdefault(name, []).append(seen[f"{kind}p50_ms"])
        samples.p99.setdefault(name, []).append(seen[f"{kind}p99_ms"])


def row(work: Work, samples: Samples) -> list[object]:
    """Form a line of the table."""
    costs = [f"{median(samples.cpu[name]):.1f}" if name in samples.cpu else "–" for name in _ALL]
    ratios = [f"{ratio(samples.cpu, name):.2f}" if name in samples.cpu else "–" for name in ("nginx", "naive")]
    late = [f"{median(samples.p50[name]):.3f} / {median(samples.p99[name]):.3f}" for name in _BOTH]
    return [work.title, *costs, *ratios, *late]


def note(samples: dict[str, Samples]) -> None:
    """Note what the goals are about."""
    plain = [samples[work.title].cpu for work in (FEW, MANY)]
    goals.measured("request", max(ratio(cpu, "nginx") for cpu in plain))
    goals.measured("request to naive", max(ratio(cpu, "naive") for cpu in plain))
    goals.measured("product", max(more(cpu, "bare") for cpu in plain))
    goals.measured("chunk", ratio(samples[PACED.title].cpu, "nginx"))
    goals.measured("chunk to naive", ratio(samples[PACED.title].cpu, "naive"))
    goals.measured("p50", ratio(samples[ONE.title].p50, "nginx"))
    goals.measured("delay p50", ratio(samples[CROWD.title].p50, "nginx"))
    goals.measured("delay p99", ratio(samples[CROWD.title].p99, "nginx"))
    goals.measured("body", ratio(samples[LARGE.title].cpu, "nginx"))


async def main(repetitions: int = REPETITIONS) -> None:
    """Run every kind of load and print the table."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        # the daemon's own folder: whoever has it in his command line is taken for an engine of the daemon
        directory, node = Path(name), Path(name) / "node"
        node.mkdir()
        engine, load = (proxies.compiled(program, directory) for program in ("upstream", "load"))
        model = {"engine": "command", "command": [engine, "{port}"], "memory": "1GiB", "warmup": "none"}
        models = {"bench": {**model, "concurrency": 4096, "max_queue": 4096}}
        async with running(node, models=models) as daemon:
            await daemon.cli("load", "bench")
            _, port = await engine_of(daemon, "bench")
            compared = {
                "nginx": Proxy(*stack.enter_context(proxies.nginx(directory, port))),
                "naive": Proxy(*stack.enter_context(proxies.python_proxy("naive", port))),
                "bare": Proxy(*stack.enter_context(proxies.python_proxy("bare", port))),
                "swapd": Proxy(daemon.process.pid, int(daemon.url.rpartition(":")[2])),
            }
            for proxy in compared.values():
                await proxies.listening(proxy.port)
                proxies.pin(proxy.pid, min(os.sched_getaffinity(0)))
            samples = {work.title: Samples() for work in WORK}
            for repetition in range(repetitions + 1):
                for work in random.sample(WORK, len(WORK)):
                    # the first repetition warms all sides up and is thrown away
                    kept = samples[work.title] if repetition else Samples()
                    await measure(compared, load, work, kept, directory=directory)
    head = ["CPU in µs", *_ALL, "to nginx", "to naive", *(f"{name}: ms, p50 / p99" for name in _BOTH)]
    rows = [row(work, samples[work.title]) for work in WORK]
    table("Relay: CPU per request, event or body; latency, of events their delay", head, rows)
    note(samples)


if __name__ == "__main__":
    asyncio.run(main())
