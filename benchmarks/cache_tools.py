"""What the benchmarks of the weight cache share: a cache that answers, how late the loop is, and a table of ways."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.tools import median, percentile, table
from swapd.core.events import WeightsFetched
from swapd.core.ids import Instant, ModelName
from swapd.weights import CacheSettings, WeightCache, Weights
from swapd.weights.facts import Fact

MIB = 2**20
MODEL = ModelName("m")


@asynccontextmanager
async def lags(found: list[float]) -> AsyncIterator[None]:
    """Collect by how much the loop is late, milliseconds."""

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            found.append((time.perf_counter() - began - 0.001) * 1000)

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watching.cancel()


class Cache:
    """A weight cache whose answers can be waited for."""

    def __init__(self, path: Path, weights: Weights, *, connections: int | None = None) -> None:
        """Without ``connections``: as many as in a daemon."""
        self._answers: asyncio.Queue[Fact] = asyncio.Queue()
        settings = CacheSettings(path=path, keep_free=0.0)
        if connections is not None:
            settings = replace(settings, connections=connections)
        self.cache = WeightCache(
            settings=settings, post=self._answers.put_nowait, now=lambda: Instant(time.monotonic_ns())
        )
        self.cache.serve({MODEL: weights})

    async def until(self, kind: type[Fact]) -> None:
        """Wait for an answer."""
        while not isinstance(answer := await self._answers.get(), kind):
            assert "Failed" not in type(answer).__name__, answer

    async def fetch(self) -> None:
        """Fetch until the copy is durable and known to be right."""
        self.cache.fetch(MODEL)
        await self.until(WeightsFetched)


@dataclass
class Taken:
    """What one way took, by round."""

    seconds: list[float] = field(default_factory=list)
    #: processor seconds, of this process and of the ones that it has started and waited for
    cpu: list[float] = field(default_factory=list)
    #: by how much the loop was late, ms
    late: list[float] = field(default_factory=list)

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        """Measure one round."""
        async with lags(self.late):
            began, before = time.perf_counter(), sum(os.times()[:4])
            yield
            self.seconds.append(time.perf_counter() - began)
            self.cpu.append(sum(os.times()[:4]) - before)


def paired(goal: Taken, taken: Taken) -> float:
    """Return which part of a goal's speed was reached in the median round."""
    return median([one / other for one, other in zip(goal.seconds, taken.seconds, strict=True)])


def compared(title: str, size: int, ways: dict[str, Taken], *, beside: dict[str, str]) -> None:
    """Print a row for each way: its speed, alone and as part of others', its CPU, and how late the loop was."""
    rows = [
        (
            name,
            f"{size / MIB / median(taken.seconds):.0f}",
            *(f"{paired(ways[goal], taken):.0%}" for goal in beside),
            f"{median(taken.cpu) / size * 2**30:.2f}",
            f"{percentile(taken.late, 0.99):.1f}",
        )
        for name, taken in ways.items()
    ]
    table(title, ("way", "MiB/s", *beside.values(), "CPU, s a GiB", "loop lag p99, ms"), rows)


async def idle() -> None:
    """Print how late the loop is on this machine while swapd does nothing."""
    late: list[float] = []
    async with lags(late):
        await asyncio.sleep(3)
    print(f"\nLoop lag p99 while nothing is done: {percentile(late, 0.99):.1f} ms")
