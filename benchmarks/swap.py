"""What a swap costs beyond what the engine itself needs.

Arrival to first byte of a streamed answer from a model that is not resident, on one device that another model holds;
less the engine's own spawn-to-answer time, measured directly and in turn with the swaps. What the victim needs to stop
is shown as well: it is part of the swap, and no scheduler can avoid it.
"""

import asyncio
import contextlib
import itertools
import subprocess
import tempfile
import time
from pathlib import Path

import aiohttp

from benchmarks import goals
from benchmarks.tools import median, percentile, table
from tests.fakes.daemon import Daemon, chat, free_port, running, tiny_models

SWAPS = 40
#: asking more often takes so much of two cores that it slows the engine's load
POLL_S = 0.01
START_TIMEOUT_S = 30


async def swapped(client: aiohttp.ClientSession, model: str) -> float:
    """Ask for a model that is not resident; return seconds to the first byte."""
    began = time.perf_counter()
    async with client.post("/v1/chat/completions", json=chat(model, stream=True)) as answer:
        await answer.content.readany()
        elapsed = time.perf_counter() - began
        assert answer.status == 200
        assert answer.headers.get("x-swapd-cold-start") == "1"
        await answer.read()
    return elapsed


async def alone(command: list[str], weights: str, model: str) -> tuple[float, float]:
    """Run the engine without swapd; return seconds from spawn to first byte, and from SIGTERM to its end."""
    port = free_port()
    filled = [
        word.replace("{weights}", weights).replace("{port}", str(port)).replace("{name}", model) for word in command
    ]
    began = time.perf_counter()
    engine = await asyncio.create_subprocess_exec(*filled, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        await asyncio.wait_for(until_healthy(port), START_TIMEOUT_S)
        async with client.post("/v1/chat/completions", json=chat(model, stream=True)) as answer:
            await answer.content.readany()
            started = time.perf_counter() - began
            await answer.read()
    began = time.perf_counter()
    engine.terminate()
    await engine.wait()
    return started, time.perf_counter() - began


async def until_healthy(port: int) -> None:
    """Ask the engine every ten milliseconds until it has loaded, with as little work as can be."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /health HTTP/1.0\r\n\r\n")
            status = await reader.readline()
            writer.close()
            if b" 200 " in status:
                return
        await asyncio.sleep(POLL_S)


async def measure(daemon: Daemon, swaps: int) -> tuple[list[float], list[float], list[float]]:
    """Alternate swaps through swapd with starts without it; return the three series in milliseconds."""
    through, own, stops = [], [], []
    models = itertools.cycle(daemon.config["models"].items())
    async with daemon.client() as client:
        for _ in range(swaps + 2):
            name, model = next(models)
            through.append(await swapped(client, name) * 1000)
            started, stopped = await alone(model["command"], model["weights"], name)
            own.append(started * 1000)
            stops.append(stopped * 1000)
    # The first two loads find a cold page cache, and the first of them evicts nobody.
    return through[2:], own[2:], stops[2:]


async def main(swaps: int = SWAPS) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        models = tiny_models(directory, ["m01", "m02"])
        one_device = {"virtual": {"count": 1, "memory": "1GiB"}}
        async with running(directory, models=models, devices=one_device, scheduling={"protect": 0}) as daemon:
            through, own, stops = await measure(daemon, swaps)
    overhead = [swap - start for swap, start in zip(through, own, strict=True)]
    rest = [swap - start - stop for swap, start, stop in zip(through, own, stops, strict=True)]
    rows = [
        [title, f"{median(values):.1f}", f"{percentile(values, 0.9):.1f}"]
        for title, values in (
            ("arrival → first byte through swapd", through),
            ("the engine's own spawn → first byte", own),
            ("**swap overhead**", overhead),
            ("the engine's own stop", stops),
            ("overhead less the victim's stop", rest),
        )
    ]
    goals.measured("swap", median(rest))
    table(f"Swap: {swaps} swaps of tiny models on one device, milliseconds", ["", "median", "p90"], rows)


if __name__ == "__main__":
    asyncio.run(main())
