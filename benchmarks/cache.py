"""How fast weights come: a fetch against curl, the page cache against dd, and what the event loop notices of it.

`python -m benchmarks.cache [DIRECTORY] [MIB]`: the directory is on the disk that is measured.
"""

import asyncio
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks import goals
from benchmarks.tools import median, percentile, table
from swapd.core.ids import Instant, ModelName
from swapd.weights import CacheSettings, WeightCache, Weights
from swapd.weights.eviction import Candidate, choose
from swapd.weights.facts import Fact, Fetched, Warmed
from swapd.weights.page_cache import resident_bytes

MIB = 2**20
ROUNDS = 5
MODEL = ModelName("m")
SERVER = """
import sys
from aiohttp import web
app = web.Application()
app.router.add_static("/", sys.argv[1])
web.run_app(app, host="127.0.0.1", port=int(sys.argv[2]), print=None, access_log=None)
"""


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

    def __init__(self, path: Path, url: str, connections: int) -> None:
        self._answers: asyncio.Queue[Fact] = asyncio.Queue()
        settings = CacheSettings(path=path, keep_free=0.0, connections=connections)
        self.cache = WeightCache(
            settings=settings, post=self._answers.put_nowait, now=lambda: Instant(time.monotonic_ns())
        )
        self.cache.serve({MODEL: Weights(url)})

    async def until(self, kind: type[Fact]) -> None:
        """Wait for an answer."""
        while not isinstance(answer := await self._answers.get(), kind):
            assert "Failed" not in type(answer).__name__, answer


async def fetch(path: Path, url: str, connections: int) -> float:
    """Fetch into an empty cache; return the seconds."""
    made = Cache(path / "cache", url, connections)
    await made.cache.start()
    began = time.perf_counter()
    made.cache.fetch(MODEL)
    await made.until(Fetched)
    took = time.perf_counter() - began
    await made.cache.aclose()
    shutil.rmtree(path / "cache", ignore_errors=True)  # a thread may still be clearing away
    return took


async def curl(path: Path, url: str, *, sync: bool) -> float:
    """Fetch the same with curl; with ``sync`` until it is on the disk, as a fetch of ours is."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec("curl", "-sSf", "-o", str(path / "curl"), url)
    assert await process.wait() == 0
    if sync:
        process = await asyncio.create_subprocess_exec("sync", "-d", str(path / "curl"))
        assert await process.wait() == 0
    took = time.perf_counter() - began
    (path / "curl").unlink()
    return took


def drop(path: Path) -> None:
    """Put a file out of the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


async def fetching(path: Path, url: str, size: int) -> None:
    """Compare fetches, in turn so that a noisy neighbour bothers all alike."""
    late: dict[str, list[float]] = {}
    ways: dict[str, Callable[[], Awaitable[float]]] = {
        "curl": lambda: curl(path, url, sync=False),
        "curl, then sync": lambda: curl(path, url, sync=True),
        "ours, 1 connection": lambda: fetch(path, url, 1),
        "ours, 4 connections": lambda: fetch(path, url, 4),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            async with lags(late.setdefault(name, [])):
                times[name].append(await way())
    plain = median(times["curl"])
    rows = [
        (
            name,
            f"{size / MIB / median(took):.0f}",
            f"{plain / median(took):.0%}",
            f"{percentile(late[name], 0.99):.1f}",
        )
        for name, took in times.items()
    ]
    goals.measured("fetch", plain / median(times["ours, 4 connections"]))
    table(f"Fetch of {size // MIB} MiB from loopback", ("way", "MiB/s", "of curl", "loop lag p99, ms"), rows)


async def warming(path: Path, url: str, size: int) -> None:
    """Compare reading cold files."""
    made = Cache(path / "cache", url, 4)
    await made.cache.start()
    made.cache.fetch(MODEL)
    await made.until(Fetched)
    file = made.cache.path(MODEL)
    assert file is not None
    late: dict[str, list[float]] = {"dd bs=8M": [], "ours": []}
    times: dict[str, list[float]] = {name: [] for name in late}

    async def dd() -> None:
        process = await asyncio.create_subprocess_exec("dd", f"if={file}", "of=/dev/null", "bs=8M", "status=none")
        await process.wait()

    async def ours() -> None:
        made.cache.warm(MODEL)
        await made.until(Warmed)

    for _ in range(ROUNDS):
        for name, read in (("dd bs=8M", dd), ("ours", ours)):
            await asyncio.to_thread(drop, file)
            if resident_bytes(file):
                print("the page cache cannot be emptied here: nothing to compare")
                await made.cache.aclose()
                return
            async with lags(late[name]):
                began = time.perf_counter()
                await read()
                times[name].append(time.perf_counter() - began)
    plain = median(times["dd bs=8M"])
    rows = [
        (
            name,
            f"{size / MIB / median(took):.0f}",
            f"{plain / median(took):.0%}",
            f"{percentile(late[name], 0.99):.1f}",
        )
        for name, took in times.items()
    ]
    goals.measured("warming", plain / median(times["ours"]))
    table(f"Reading {size // MIB} MiB cold", ("way", "MiB/s", "of dd", "loop lag p99, ms"), rows)
    await made.cache.aclose()


def hits(order: str, seed: int) -> tuple[float, float]:
    """Play a random workload on a cache of a third of all; return hit rate and seconds of fetching per request."""
    dice = random.Random(seed)
    sizes = [round(dice.lognormvariate(3, 1)) + 1 for _ in range(60)]
    rates = [dice.choice([0.1, 0.5, 1.0]) for _ in sizes]  # GB/s of each one's source
    weights = [1 / (rank + 1) for rank in range(len(sizes))]
    dice.shuffle(weights)
    limit, half_life = sum(sizes) // 3, 500
    here: set[int] = set()
    frequency, last = [0.0] * len(sizes), [-1] * len(sizes)
    found, fetched = 0, 0.0
    requests = 5000
    for at in range(requests):
        (model,) = dice.choices(range(len(sizes)), weights)
        frequency[model] = frequency[model] * 0.5 ** ((at - last[model]) / half_life) + 1
        last[model] = at
        if model in here:
            found += 1
            continue
        fetched += sizes[model] / rates[model]
        needed = sum(sizes[other] for other in here) + sizes[model] - limit
        aged = {other: frequency[other] * 0.5 ** ((at - last[other]) / half_life) for other in here}
        candidates = [
            Candidate(
                f"{other:02}",
                {(0, other): sizes[other]},
                aged[other] * sizes[other] / rates[other] if order == "ours" else 0.0,
                last[other],
            )
            for other in sorted(here)
        ]
        here -= {int(name) for name in choose(candidates, needed)}
        here.add(model)
    return found / requests, fetched / requests


def policies() -> None:
    """Compare orders of eviction from the disk."""
    rows = []
    for order in ("LRU", "ours"):
        played = [hits(order, seed) for seed in range(5)]
        rate, cost = (statistics.mean(part) for part in zip(*played, strict=True))
        rows.append((order, f"{rate:.1%}", f"{cost:.1f}"))
    table("Random workload, cache of a third of all weights", ("order", "hit rate", "s fetching per request"), rows)


async def main() -> None:
    """Measure and print."""
    place = sys.argv[1] if len(sys.argv) > 1 else None
    size = int(sys.argv[2] if len(sys.argv) > 2 else 512) * MIB
    policies()
    with tempfile.TemporaryDirectory(dir=place) as name, tempfile.TemporaryDirectory(dir="/dev/shm") as served:
        path, port = Path(name), 18_923
        with (Path(served) / "weights").open("wb") as file:
            for _ in range(size // MIB):
                file.write(os.urandom(MIB))
        server = subprocess.Popen([sys.executable, "-c", SERVER, served, str(port)])  # noqa: ASYNC220 - before all else
        url = f"http://127.0.0.1:{port}/weights"
        try:
            await asyncio.to_thread(
                subprocess.run,
                ["curl", "-sf", "--retry-connrefused", "--retry", "20", "-o", "/dev/null", url],
                check=True,
            )
            await fetching(path, url, size)
            await warming(path, url, size)
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    asyncio.run(main())
