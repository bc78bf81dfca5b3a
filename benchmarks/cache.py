"""How fast weights come: a fetch against curl, the page cache against dd, and what the event loop notices of it.

Before that, who leaves the disk (`cache_workload`); after it, what a cold start saves by overlapping (`cold_start`).
`python -m benchmarks.cache [DIRECTORY] [MIB]`: the directory is on the disk that is measured.
"""

import asyncio
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from benchmarks import goals
from benchmarks.cache_workload import policies
from benchmarks.cold_start import cold_starts
from benchmarks.tools import drop_from_memory, median, percentile, table, write_noise
from swapd.core.events import WeightsFetched, WeightsWarmed
from swapd.core.ids import Instant, ModelName
from swapd.weights import CacheSettings, WeightCache, Weights
from swapd.weights.facts import Fact
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

    def __init__(self, path: Path, weights: Weights, connections: int) -> None:
        self._answers: asyncio.Queue[Fact] = asyncio.Queue()
        settings = CacheSettings(path=path, keep_free=0.0, connections=connections)
        self.cache = WeightCache(
            settings=settings, post=self._answers.put_nowait, now=lambda: Instant(time.monotonic_ns())
        )
        self.cache.serve({MODEL: weights})

    async def until(self, kind: type[Fact]) -> None:
        """Wait for an answer."""
        while not isinstance(answer := await self._answers.get(), kind):
            assert "Failed" not in type(answer).__name__, answer


async def fetch(path: Path, weights: Weights, connections: int) -> float:
    """Fetch into an empty cache; return the seconds until the copy is durable and known to be right."""
    made = Cache(path / "cache", weights, connections)
    await made.cache.start()
    began = time.perf_counter()
    made.cache.fetch(MODEL)
    await made.until(WeightsFetched)
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


def settle(path: Path, size: int) -> None:
    """Write as much, wait for the disk and remove it, so that each way finds the disk idle and memory in use before.

    A virtual machine gets memory from its host when it touches it first, which takes longer than all else in a fetch.
    """
    with (path / "settle").open("wb", buffering=0) as file:
        for _ in range(size // MIB):
            file.write(bytes(MIB))
        os.fsync(file.fileno())
    (path / "settle").unlink()


async def fetching(path: Path, url: str, size: int, sha256: str) -> None:
    """Compare fetches, in turn so that a noisy neighbour bothers all alike."""
    late: dict[str, list[float]] = {}
    ours, checked = Weights(url), Weights(url, sha256=sha256)
    ways: dict[str, Callable[[], Awaitable[float]]] = {
        "curl": lambda: curl(path, url, sync=False),
        "curl, then sync": lambda: curl(path, url, sync=True),
        "ours, 1 connection": lambda: fetch(path, ours, 1),
        "ours, 4 connections": lambda: fetch(path, ours, 4),
        "ours, 4 connections, sha256": lambda: fetch(path, checked, 4),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS):
        for name in [*ways][:: -1 if turn % 2 else 1]:
            await asyncio.to_thread(settle, path, size)
            async with lags(late.setdefault(name, [])):
                times[name].append(await ways[name]())
    goals.measured("fetch", paired(times["curl"], times["ours, 4 connections"]))
    title = f"Fetch of {size // MIB} MiB from loopback; ours: sizes and CRCs, in the end on the disk"
    compared(title, size, times, late, beside={"curl": "of curl", "curl, then sync": "of curl, then sync"})


async def warming(path: Path, url: str, size: int) -> None:
    """Compare reading cold files."""
    made = Cache(path / "cache", Weights(url), 4)
    await made.cache.start()
    made.cache.fetch(MODEL)
    await made.until(WeightsFetched)
    file = made.cache.path(MODEL)
    assert file is not None

    async def dd(count: int) -> None:
        """Read with so many processes, each its part."""
        part = size // MIB // 8 // count
        processes = [
            await asyncio.create_subprocess_exec(
                *("dd", f"if={file}", "of=/dev/null", "bs=8M", "status=none", f"skip={part * number}", f"count={part}")
            )
            for number in range(count)
        ]
        for process in processes:
            await process.wait()

    async def ours() -> None:
        made.cache.warm(MODEL)
        await made.until(WeightsWarmed)

    ways: dict[str, Callable[[], Awaitable[None]]] = {"dd": lambda: dd(1), "4 × dd": lambda: dd(4), "ours": ours}
    late: dict[str, list[float]] = {name: [] for name in ways}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, read in ways.items():
            await asyncio.to_thread(drop_from_memory, file)
            if resident_bytes(file):
                print("the page cache cannot be emptied here: nothing to compare")
                await made.cache.aclose()
                return
            async with lags(late[name]):
                began = time.perf_counter()
                await read()
                times[name].append(time.perf_counter() - began)
    title = f"Reading {size // MIB} MiB cold"
    goals.measured("warming", paired(times["dd"], times["ours"]))
    compared(title, size, times, late, beside={"dd": "of dd", "4 × dd": "of 4 × dd"})
    await made.cache.aclose()


def paired(goal: list[float], took: list[float]) -> float:
    """Return which part of a goal's speed was reached in the median round."""
    return median([one / other for one, other in zip(goal, took, strict=True)])


def compared(
    title: str, size: int, times: dict[str, list[float]], late: dict[str, list[float]], *, beside: dict[str, str]
) -> None:
    """Print a row for each way: its speed, alone and as part of others', and how late the loop was."""
    rows = [
        (
            name,
            f"{size / MIB / median(took):.0f}",
            *(f"{paired(times[goal], took):.0%}" for goal in beside),
            f"{percentile(late[name], 0.99):.1f}",
        )
        for name, took in times.items()
    ]
    table(title, ("way", "MiB/s", *beside.values(), "loop lag p99, ms"), rows)


async def idle() -> None:
    """Print how late the loop is on this machine while swapd does nothing."""
    late: list[float] = []
    async with lags(late):
        await asyncio.sleep(3)
    print(f"\nLoop lag p99 while nothing is done: {percentile(late, 0.99):.1f} ms")


async def main() -> None:
    """Measure and print."""
    place = sys.argv[1] if len(sys.argv) > 1 else None
    size = int(sys.argv[2] if len(sys.argv) > 2 else 512) * MIB
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    await policies()
    with tempfile.TemporaryDirectory(dir=place) as name, tempfile.TemporaryDirectory(dir="/dev/shm") as served:
        path, port = Path(name), 18_923
        write_noise(Path(served) / "weights", size // MIB)
        server = subprocess.Popen([sys.executable, "-c", SERVER, served, str(port)])  # noqa: ASYNC220 - before all else
        url = f"http://127.0.0.1:{port}/weights"
        try:
            await asyncio.to_thread(
                subprocess.run,
                ["curl", "-sf", "--retry-connrefused", "--retry", "20", "-o", "/dev/null", url],
                check=True,
            )
            await idle()
            with (Path(served) / "weights").open("rb") as file:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            await fetching(path, url, size, sha256)
            await warming(path, url, size)
        finally:
            server.kill()
            server.wait()
        await cold_starts(path)


if __name__ == "__main__":
    asyncio.run(main())
