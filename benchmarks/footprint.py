"""What swapd takes when it does nothing, and when clients ask for much: memory, idle CPU, time to start."""

import asyncio
import compileall
import tempfile
import time
from pathlib import Path

import swapd
from benchmarks import goals, proxies
from benchmarks.tools import cpu_ns, forget_peak, median, rss_bytes, table
from tests.fakes.daemon import Daemon, chat, running

STREAMS = 1_000
IDLE_S = 5.0
STARTS = 5
BODY = 100_000_000
MIB = 2**20


def model(engine: str) -> dict[str, object]:
    """Describe the bench engine with room for many streams."""
    limits = {"concurrency": 2 * STREAMS, "max_queue": 2 * STREAMS}
    return {"engine": "command", "command": [engine, "{port}"], "memory": "1GiB", "warmup": "none", **limits}


async def start_time(engine: str) -> float:
    """Start a daemon; return milliseconds until it is ready."""
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        async with running(Path(name), models={"bench": model(engine)}):
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


async def large_body(daemon: Daemon, load: str, directory: Path) -> int:
    """Send a large body; return by how much the daemon's peak memory grew, bytes."""
    request = proxies.request_file(directory, chat("bench", pad="word " * (BODY // 5)))
    pid = daemon.process.pid
    forget_peak(pid)
    before = rss_bytes(pid)
    await proxies.generate(load, int(daemon.url.rpartition(":")[2]), request, connections=1, requests=1)
    return rss_bytes(pid, "VmHWM") - before


async def main() -> None:
    """Measure and print."""
    # as an installation does: where Python may write no bytecode, each start would compile everything
    compileall.compile_dir(Path(swapd.__file__).parent, quiet=1)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        engine, load = (proxies.compiled(program, directory) for program in ("upstream", "load"))
        starts = [await start_time(engine) for _ in range(STARTS)]
        limits = {"max_body": "256MiB", "max_buffered": "512MiB"}
        async with running(directory, models={"bench": model(engine)}, http=limits) as daemon:
            idle_rss, cpu = rss_bytes(daemon.process.pid), await idle_cpu(daemon)
            await daemon.cli("load", "bench")
            streams = await idle_streams(daemon)
            beyond = await large_body(daemon, load, directory) - BODY
    rows = [
        ["start to ready", f"{median(starts):.0f} ms"],
        ["idle memory", f"{idle_rss / 1e6:.1f} MB"],
        ["idle CPU", f"{cpu:.2f} %"],
        [f"{STREAMS:,} idle streams", f"{streams / MIB:.1f} MiB"],
        [f"a body of {BODY / 1e6:.0f} MB, beyond the body", f"{beyond / MIB:.1f} MiB"],
    ]
    table("Footprint", ["", ""], rows)
    goals.measured("start", median(starts))
    goals.measured("idle memory", idle_rss / 1e6)
    goals.measured("idle CPU", cpu)
    goals.measured("streams memory", streams / MIB)
    goals.measured("body memory", beyond / MIB)


if __name__ == "__main__":
    asyncio.run(main())
