"""How long one turn of the event loop becomes by a large body, and by a scrape of a node with many models.

All streams wait for the longest turn. It is measured inside, in CPU time of the loop's thread, so that other processes
do not count: the front door with a stub for a core, and the metrics of a core with 300 models.
"""

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvloop
from aiohttp import web

from benchmarks import core, goals, proxies
from benchmarks.bare import front_door
from benchmarks.tools import median, table
from swapd.core.ids import SECOND, Bytes, Duration, Instant
from swapd.core.reasons import Outcome
from swapd.core.scheduler import Scheduler
from swapd.core.topology import Gpu, NodeTopology
from swapd.metrics.collect import Metrics
from swapd.metrics.server import metrics_app
from tests.fakes.daemon import chat, free_port

REPETITIONS = 20
SIZE = 2_000_000
READ = "import sys, urllib.request as u; u.urlopen(sys.argv[1]).read()"
CODES = (200, 429, 499, 503)


class Turns:
    """Notes the longest turn of the loop, in CPU time."""

    def __init__(self) -> None:
        self.longest_ns = 0
        self._on = True
        self._last = time.thread_time_ns()
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        now = time.thread_time_ns()
        self.longest_ns = max(self.longest_ns, now - self._last)
        if self._on:
            asyncio.get_running_loop().call_soon(self._turn)
        self._last = time.thread_time_ns()

    def end(self) -> float:
        """Stop; return milliseconds."""
        self._on = False
        return self.longest_ns / 1e6


@asynccontextmanager
async def served(runner: web.BaseRunner) -> AsyncIterator[int]:
    """Serve on a free port; yields it."""
    port = free_port()
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield port
    finally:
        await runner.cleanup()


@contextmanager
def longest(found: list[float]) -> Iterator[None]:
    """Add the longest turn within the block."""
    turns = Turns()
    yield
    found.append(turns.end())


async def bodies(directory: Path) -> dict[str, float]:
    """Return the longest turn by kind of body, ms, the median of several bodies."""
    upstream, load = (proxies.compiled(program, directory) for program in ("upstream", "load"))
    kinds = {
        "text": chat("bench", pad="word " * (SIZE // 5)),
        "token ids": chat("bench", pad=[12_345] * (SIZE // 7)),
    }
    longest_ms = {}
    with proxies.engine(upstream) as engine:
        await proxies.listening(engine)
        front = front_door(engine)
        async with served(front.runner()) as port:
            for kind, body in kinds.items():
                request = proxies.request_file(directory, body)
                found: list[float] = []
                for _ in range(REPETITIONS + 1):
                    with longest(found):
                        await proxies.generate(load, port, request, connections=1, requests=1)
                longest_ms[kind] = median(found[1:])
        await front.aclose()
    return longest_ms


def metrics_of_many_models() -> Metrics:
    """Return the metrics of a node where every model has had requests of every kind."""
    catalog = core.catalog(random.Random(300))
    topology = NodeTopology(tuple(Gpu(index, f"virtual-{index}", Bytes(80 << 30)) for index in range(core.GPUS)))
    scheduler = Scheduler(topology, catalog, Instant(0))
    metrics = Metrics(
        view=lambda: scheduler.view_in_steps(Instant(0)), now=lambda: Instant(0), not_ready=tuple, version="0"
    )
    metrics.configure(catalog.models)
    second = Duration(SECOND)
    for name in catalog.models:
        for code in CODES:
            for cold in (True, False):
                metrics.request_finished(
                    name,
                    code=code,
                    outcome=Outcome.SERVED,
                    cold_start=cold,
                    duration=second,
                    queue_wait=second,
                    first_byte=second,
                    prompt_tokens=1,
                    completion_tokens=1,
                )
    return metrics


async def no_engine(_: web.Request) -> web.StreamResponse:
    """Answer for the engines' own pages."""
    return web.Response()


async def scrapes() -> float:
    """Return the longest turn by a scrape, ms, the median of several."""
    app = metrics_app(metrics_of_many_models(), engine_metrics=no_engine)
    found: list[float] = []
    async with served(web.AppRunner(app)) as port:
        for _ in range(REPETITIONS + 1):
            with longest(found):
                command = [sys.executable, "-c", READ, f"http://127.0.0.1:{port}/metrics"]
                process = await asyncio.create_subprocess_exec(*command)
                assert await process.wait() == 0
    return median(found[1:])


async def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        by_body = await bodies(Path(name))
    scrape = await scrapes()
    rows: list[list[object]] = [[f"a body of 2 MB, {kind}", f"{value:.2f}"] for kind, value in by_body.items()]
    rows.append([f"a scrape, {core.MODELS} models", f"{scrape:.2f}"])
    table("Stalls: the longest turn of the loop, CPU in ms", ["by", "ms"], rows)
    goals.measured("body stall", by_body["text"])
    goals.measured("ids stall", by_body["token ids"])
    goals.measured("scrape stall", scrape)


if __name__ == "__main__":
    uvloop.run(main())
