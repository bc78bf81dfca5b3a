"""A cold start whose parts overlap against one whose parts follow each other, through the real daemon.

The victim is the same: a model that needs two seconds to stop, as all of them here do. Overlapped, a request arrives
and the daemon does what it does. One after another, an operator does it: unload the victim, then fetch, then ask.
"""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.tools import drop_from_memory, median, table, write_noise
from tests.fakes.daemon import chat, running
from tests.fakes.scripted import scripted_model

ROUNDS = 3
STOP_S = 2.0
FETCHED_MIB = 32
BANDWIDTH = "8MB/s"
"""So that a fetch takes twice as long as the victim's stop."""
LOCAL_MIB = 1024
STEPS = {"unload victim": "/v1/models/victim/unload", "fetch": "/v1/models/remote/prefetch"}


class Node:
    """A daemon with one device, on which a victim is resident whenever a measurement begins."""

    def __init__(self, data: aiohttp.ClientSession, admin: aiohttp.ClientSession, local: Path) -> None:
        self._data, self._admin, self._local = data, admin, local

    async def order(self, path: str, *, method: str = "POST") -> None:
        """Have an operator's order carried out to its end."""
        async with self._admin.request(method, path) as answer:
            assert answer.status < 300, await answer.text()

    async def ask(self, model: str) -> None:
        """Ask a model, and wait for the first byte."""
        async with self._data.post("/v1/chat/completions", json=chat(model, stream=True)) as answer:
            assert answer.status == 200, await answer.text()
            await answer.content.readany()

    async def prepare(self) -> None:
        """Make the victim resident, with nothing cached and nothing in memory."""
        await self.ask("victim")
        async with self._admin.delete("/v1/cache/remote") as answer:
            await answer.read()  # perhaps it was not there
        await asyncio.to_thread(drop_from_memory, self._local)

    async def measure(self, model: str, *steps: str) -> float:
        """Return the seconds that it takes from here to the first byte, the operator's steps first."""
        await self.prepare()
        began = time.perf_counter()
        for step in steps:
            await self.order(STEPS[step])
        await self.ask(model)
        return time.perf_counter() - began


@asynccontextmanager
async def node(directory: Path) -> AsyncIterator[Node]:
    """Run the daemon."""
    remote, local = directory / "remote.gguf", directory / "local.gguf"
    await asyncio.to_thread(write_noise, remote, FETCHED_MIB)
    await asyncio.to_thread(write_noise, local, LOCAL_MIB)
    models: dict[str, dict[str, Any]] = {
        "victim": scripted_model(),
        "remote": scripted_model(weights={"source": f"file://{remote}"}),
        "local": scripted_model(weights=str(local)),
    }
    for name, model in models.items():
        model["stop"] = {"command": ["sleep", str(STOP_S)]}
        if name != "victim":  # an engine reads its weights before all else
            model["command"] = ["sh", "-c", 'cat "$0" > /dev/null && exec "$@"', "{weights}", *model["command"]]
    async with (
        running(
            directory,
            models=models,
            devices={"virtual": {"count": 1, "memory": "1GiB"}},
            scheduling={"protect": 0},
            cache={"path": str(directory / "cache"), "bandwidth": BANDWIDTH},
        ) as daemon,
        daemon.client() as data,
        aiohttp.ClientSession("http://admin", connector=aiohttp.UnixConnector(str(daemon.socket_path))) as admin,
    ):
        yield Node(data, admin, local)


async def cold_starts(directory: Path) -> None:
    """Measure in turn, and print."""
    async with node(directory) as made:
        cases: dict[tuple[str, str], Callable[[], Awaitable[float]]] = {
            (f"{FETCHED_MIB} MiB at {BANDWIDTH}", "overlapped"): lambda: made.measure("remote"),
            (f"{FETCHED_MIB} MiB at {BANDWIDTH}", "one after another"): lambda: made.measure("remote", *STEPS),
            (f"{LOCAL_MIB} MiB cold on the disk", "overlapped"): lambda: made.measure("local"),
            (f"{LOCAL_MIB} MiB cold on the disk", "one after another"): lambda: made.measure("local", "unload victim"),
        }
        times: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
        for _ in range(ROUNDS):
            for case, run in cases.items():
                times[case].append(await run())
    rows = [(*case, f"{median(took):.2f}") for case, took in times.items()]
    table(f"Cold start for a victim that takes {STOP_S:g} s to stop", ("weights", "parts", "s to the first byte"), rows)


async def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        await cold_starts(Path(name))


if __name__ == "__main__":
    asyncio.run(main())
