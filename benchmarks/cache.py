"""How fast weights come: fetches (`cache_fetch`), the page cache against dd, and what the event loop notices of it.

Before that, who leaves the disk (`cache_workload`); after it, what a cold start saves by overlapping (`cold_start`).
`python -m benchmarks.cache [DIRECTORY] [MIB]`: the directory is on the disk that is measured.
"""

import asyncio
import logging
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from benchmarks import goals
from benchmarks.cache_fetch import fetches, serving
from benchmarks.cache_tools import MIB, MODEL, Cache, Taken, compared, idle, paired
from benchmarks.cache_workload import policies
from benchmarks.cold_start import cold_starts
from benchmarks.tools import drop_from_memory, write_noise
from swapd.core.events import WeightsWarmed
from swapd.weights import Weights
from swapd.weights.page_cache import resident_bytes

ROUNDS = 11


async def warming(path: Path, url: str, size: int) -> None:
    """Compare reading cold files."""
    made = Cache(path / "cache", Weights(url))
    await made.cache.start()
    await made.fetch()
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
    taken = {name: Taken() for name in ways}
    for _ in range(ROUNDS):
        for name, read in ways.items():
            await asyncio.to_thread(drop_from_memory, file)
            if resident_bytes(file):
                print("the page cache cannot be emptied here: nothing to compare")
                await made.cache.aclose()
                return
            async with taken[name].measured():
                await read()
    title = f"Reading {size // MIB} MiB cold"
    goals.measured("warming", paired(taken["dd"], taken["ours"]))
    compared(title, size, taken, beside={"dd": "of dd", "4 × dd": "of 4 × dd"})
    await made.cache.aclose()


async def main() -> None:
    """Measure and print."""
    place = sys.argv[1] if len(sys.argv) > 1 else None
    size = int(sys.argv[2] if len(sys.argv) > 2 else 512) * MIB
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    await policies()
    with tempfile.TemporaryDirectory(dir=place) as name, tempfile.TemporaryDirectory(dir="/dev/shm") as served:
        path, file = Path(name), Path(served) / "weights"
        write_noise(file, size // MIB)
        async with serving(Path(served)) as url:
            await idle()
            await fetches(path, url, size, file)
            await warming(path, f"{url}/weights", size)
        await cold_starts(path)


if __name__ == "__main__":
    asyncio.run(main())
