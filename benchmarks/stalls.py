"""How long one turn of the event loop becomes by a large body, and by who looks at a node with many models.

All streams wait for the longest turn. It is measured inside, in CPU time of the loop's thread, so that other processes
do not count: the front door with a stub for a core; and pages and documents of a core with 300 models and a full queue.
"""

import asyncio
import gc
import http.client
import json
import random
import tempfile
import time
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from benchmarks import core, goals, proxies
from benchmarks.bare import front_door
from benchmarks.tools import median, table
from swapd.admin.events import EventHub
from swapd.admin.server import admin_app
from swapd.admin.status import ConfigInfo, Extras
from swapd.agent.control import AgentControl
from swapd.core.ids import Duration, Instant, ModelName
from swapd.core.reasons import Outcome
from swapd.core.scheduler import Scheduler
from swapd.core.view import NodeView, Offer
from swapd.metrics.collect import Metrics
from swapd.metrics.server import metrics_app
from tests.fakes.daemon import chat, free_port

REPETITIONS = 20
SIZE = 2_000_000
SETTLED = 6_000
"""Events after which the node has a past."""
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


async def longest(port: int, method: str, path: str, body: bytes | None = None) -> float:
    """Return the longest turn by answering a request, ms, the median of several."""
    found = []
    for _ in range(REPETITIONS + 1):
        turns = Turns()
        # neither the time of a thread counts, nor that of starting a process
        await asyncio.to_thread(ask, port, method, path, body)
        found.append(turns.end())
    return median(found[1:])


def ask(port: int, method: str, path: str, body: bytes | None) -> None:
    """Send a request and read the answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        connection.request(method, path, body)
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.read()


async def bodies(directory: Path) -> dict[str, float]:
    """Return the longest turn by kind of body, ms, the median of several bodies."""
    kinds = {
        "text": chat("bench", pad="word " * (SIZE // 5)),
        "token ids": chat("bench", pad=[12_345] * (SIZE // 7)),
    }
    with proxies.engine(proxies.compiled("upstream", directory)) as engine:
        await proxies.listening(engine)
        front = front_door(engine)
        async with served(front.runner()) as port:
            path = "/v1/chat/completions"
            found = {kind: await longest(port, "POST", path, json.dumps(body).encode()) for kind, body in kinds.items()}
        await front.aclose()
    return found


@dataclass(frozen=True, slots=True)
class Crowd:
    """A core with many models, where many wait, and its moment."""

    scheduler: Scheduler
    names: tuple[ModelName, ...]
    at: Instant

    @classmethod
    def gathered(cls) -> "Crowd":
        """Run an overloaded node for a while."""
        chance = random.Random(300)
        catalog = core.catalog(chance)
        scheduler = core.scheduler(catalog)
        node = core.overload(scheduler, catalog, chance)
        for _ in range(SETTLED):
            node.step()
        return cls(scheduler, tuple(sorted(catalog.models)), node.now)

    def view(self) -> Generator[None, None, NodeView]:
        """Build the snapshot as the daemon does."""
        return self.scheduler.view_in_steps(self.at)

    def offer(self, name: ModelName) -> Offer | None:
        """Tell what clients are told of a model."""
        return self.scheduler.offer(name, self.at)


def metrics_of(crowd: Crowd) -> Metrics:
    """Return the metrics of a node where every model has had requests of every kind."""
    metrics = Metrics(view=crowd.view, now=lambda: crowd.at, not_ready=tuple, version="0")
    metrics.configure(crowd.names)
    for name in crowd.names:
        for code in CODES:
            for cold in (True, False):
                metrics.request_finished(
                    name,
                    code=code,
                    outcome=Outcome.SERVED,
                    cold_start=cold,
                    duration_s=1.0,
                    queue_wait_s=1.0,
                    first_byte_s=1.0,
                    prompt_tokens=1,
                    completion_tokens=1,
                )
    return metrics


async def no_engine(_: web.Request) -> web.StreamResponse:
    """Answer for the engines' own pages."""
    return web.Response()


def admin_of(crowd: Crowd) -> web.Application:
    """Return the admin socket's application; it can be asked for status and report."""
    nothing: Any = None
    extras = Extras("0", Duration(0), ConfigInfo("swapd.yaml", ok=True), {})
    control = AgentControl(
        now=lambda: crowd.at,
        operators=nothing,
        directory=nothing,
        reloader=nothing,
        extras=lambda _: extras,
        view=crowd.view,
        arrivals=nothing,
        timelines=nothing,
        weights=nothing,
    )
    return admin_app(control, EventHub())


async def looks(runner: web.BaseRunner, path: str) -> float:
    """Return the longest turn by answering a GET, ms, the median of several."""
    async with served(runner) as port:
        return await longest(port, "GET", path)


async def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        by_body = await bodies(Path(name))
    crowd = Crowd.gathered()
    gc.collect()
    gc.freeze()
    front = front_door(0, crowd.names, crowd.offer)
    scrape = await looks(web.AppRunner(metrics_app(metrics_of(crowd), engine_metrics=no_engine)), "/metrics")
    models = await looks(front.runner(), "/v1/models")
    status, report = [await looks(web.AppRunner(admin_of(crowd)), f"/v1/{what}") for what in ("status", "report")]
    rows: list[list[object]] = [[f"a body of 2 MB, {kind}", f"{value:.2f}"] for kind, value in by_body.items()]
    by_look = {"a scrape": scrape, "GET /v1/models": models, "swapd status": status, "swapd report": report}
    rows += [[f"{what}, {core.MODELS} models", f"{value:.2f}"] for what, value in by_look.items()]
    table("Stalls: the longest turn of the loop, CPU in ms", ["by", "ms"], rows)
    goals.measured("body stall", by_body["text"])
    goals.measured("ids stall", by_body["token ids"])
    goals.measured("scrape stall", scrape)
    goals.measured("models stall", models)
    goals.measured("status stall", status)
    goals.measured("report stall", report)


if __name__ == "__main__":
    uvloop.run(main())
