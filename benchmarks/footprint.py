"""What swapd takes when it does nothing, and when clients ask for much: memory, idle CPU, time to start."""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

from benchmarks.tools import HERE, cpu_ns, median, rss_bytes, table
from tests.fakes.daemon import Daemon, chat, running

STREAMS = 1_000
IDLE_S = 5.0
STARTS = 5
BODY_MIB = 100
MIB = 2**20


def model() -> dict[str, object]:
    """Describe the bench engine with room for many streams."""
    command = [sys.executable, str(HERE / "upstream.py"), "--port", "{port}"]
    limits = {"concurrency": 2 * STREAMS, "max_queue": 2 * STREAMS}
    return {"engine": "command", "command": command, "memory": "1GiB", **limits}


async def start_time() -> float:
    """Start a daemon; return milliseconds until it is ready."""
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        async with running(Path(name), models={"bench": model()}):
            return (time.perf_counter() - began) * 1000


async def idle_cpu(daemon: Daemon) -> float:
    """Return the share of one CPU that the idle daemon uses, per cent."""
    before = cpu_ns(daemon.process.pid)
    await asyncio.sleep(IDLE_S)
    return (cpu_ns(daemon.process.pid) - before) / (IDLE_S * 1e9) * 100


async def idle_streams(daemon: Daemon) -> int:
    """Open streams that say one word and then nothing; return the bytes of memory they take together."""
    before = rss_bytes(daemon.process.pid)
    body = chat("bench", stream=True, chunks=2, interval_ms=3_600_000)
    async with daemon.client() as client:
        opened = [await client.post("/v1/chat/completions", json=body) for _ in range(STREAMS)]
        for answer in opened:
            await answer.content.readany()
        after = rss_bytes(daemon.process.pid)
        for answer in opened:
            answer.close()
    return after - before


async def refused_body(daemon: Daemon) -> tuple[int, int]:
    """Send a body beyond the limit; return the status and by how much the daemon's peak memory grew, bytes."""
    before = rss_bytes(daemon.process.pid, "VmHWM")
    piece = b" " * MIB

    async def pieces() -> object:
        for _ in range(BODY_MIB):
            yield piece

    status = 0
    async with daemon.client() as client:
        try:
            async with client.post("/v1/chat/completions", data=pieces()) as answer:
                status = answer.status
        except aiohttp.ClientConnectionError:
            status = -1  # refused so early that the answer was lost with the connection
    return status, rss_bytes(daemon.process.pid, "VmHWM") - before


async def main() -> None:
    """Measure and print."""
    starts = [await start_time() for _ in range(STARTS)]
    with tempfile.TemporaryDirectory() as name:
        async with running(Path(name), models={"bench": model()}) as daemon:
            idle_rss, cpu = rss_bytes(daemon.process.pid), await idle_cpu(daemon)
            status, grown = await refused_body(daemon)
            await daemon.cli("load", "bench")
            streams = await idle_streams(daemon)
    rows = [
        ["start to ready", f"{median(starts):.0f} ms"],
        ["idle memory", f"{idle_rss / MIB:.1f} MiB"],
        ["idle CPU", f"{cpu:.2f} %"],
        [f"{STREAMS:,} idle streams", f"{streams / MIB:.1f} MiB"],
        [f"body of {BODY_MIB} MiB: status {status}, memory grew by", f"{grown / MIB:.1f} MiB"],
    ]
    table("Footprint", ["", ""], rows)


if __name__ == "__main__":
    asyncio.run(main())
