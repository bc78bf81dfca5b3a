"""How fast weights come: a fetch against curl, from a source that is fast and from one that limits each connection."""

import asyncio
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks import goals
from benchmarks.cache_tools import MIB, Cache, Taken, compared, paired
from swapd.weights import Weights

ROUNDS = 5
LIMITED_ROUNDS = 3
PORT = 18_923
LIMIT_MIB = 100
"""A second, of each connection to the source that limits them: about what an object store gives."""
SERVER = """
import asyncio, contextlib, sys
from pathlib import Path
from aiohttp import web

root, port, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
PIECE = 2**18

async def limited(request):
    path = root / request.match_info["name"]
    part, size = request.http_range, path.stat().st_size
    start, stop = part.start or 0, min(part.stop or size, size)
    headers = {"ETag": '"it"', "Content-Range": f"bytes {start}-{stop - 1}/{size}"}
    response = web.StreamResponse(status=206, headers=headers)
    response.content_length = stop - start
    await response.prepare(request)
    clock = asyncio.get_running_loop().time
    began = clock()
    with path.open("rb") as file, contextlib.suppress(ConnectionResetError):  # one that is no longer wanted
        for at in range(start, stop, PIECE):
            file.seek(at)
            await response.write(file.read(min(PIECE, stop - at)))
            await asyncio.sleep(began + (at - start + PIECE) / limit - clock())
    return response

app = web.Application()
app.router.add_get("/limited/{name}", limited)
app.router.add_static("/", root)
web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)
"""

SHA256 = "import hashlib, sys; hashlib.file_digest(open(sys.argv[1], 'rb'), 'sha256')"
"""By the same library as ours: `sha256sum` takes several times as long."""


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[str]:
    """Run the server in a process of its own; yield its URL."""
    arguments = (str(directory), str(PORT), str(LIMIT_MIB * MIB))
    server = subprocess.Popen([sys.executable, "-c", SERVER, *arguments])  # noqa: ASYNC220 - before all else
    url = f"http://127.0.0.1:{PORT}"
    patient = ("curl", "-sf", "--retry-connrefused", "--retry", "20", "-o", "/dev/null")
    try:
        await run(*patient, f"{url}/weights")
        yield url
    finally:
        server.kill()
        server.wait()


async def run(*command: str) -> None:
    """Run a program to its end."""
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    assert await process.wait() == 0, command


def settle(path: Path, size: int) -> None:
    """Write as much, wait for the disk and remove it, so that each way finds the disk idle and memory in use before.

    A virtual machine gets memory from its host when it touches it first, which takes longer than all else in a fetch.
    """
    with (path / "settle").open("wb", buffering=0) as file:
        for _ in range(size // MIB):
            file.write(bytes(MIB))
        os.fsync(file.fileno())
    (path / "settle").unlink()


Way = Callable[[Taken], Awaitable[None]]
"""Goes one way once, and has measured what is to be compared."""


def ours(path: Path, weights: Weights, *, connections: int | None = None) -> Way:
    """Fetch into an empty cache, until the copy is durable and known to be right."""

    async def way(taken: Taken) -> None:
        made = Cache(path / "cache", weights, connections=connections)
        await made.cache.start()
        async with taken.measured():
            await made.fetch()
        await made.cache.aclose()
        shutil.rmtree(path / "cache", ignore_errors=True)  # a thread may still be clearing away

    return way


def curl(path: Path, url: str, *then: Sequence[str]) -> Way:
    """Fetch the same with curl, and run programs over it one after the other."""

    async def way(taken: Taken) -> None:
        file = path / "curl"
        async with taken.measured():
            await run("curl", "-sSf", "-o", str(file), url)
            for command in then:
                await run(*command, str(file))
        file.unlink()

    return way


async def measured(path: Path, size: int, rounds: int, ways: dict[str, Way]) -> dict[str, Taken]:
    """Measure all ways in turn, so that a noisy neighbour bothers all alike."""
    taken = {name: Taken() for name in ways}
    for turn in range(rounds):
        for name in [*ways][:: -1 if turn % 2 else 1]:
            await asyncio.to_thread(settle, path, size)
            await ways[name](taken[name])
    return taken


async def fetching(path: Path, url: str, size: int, sha256: str) -> None:
    """Compare fetches from a source that gives all that it has to one connection."""
    sync, summed = ("sync", "-d"), (sys.executable, "-c", SHA256)
    ways: dict[str, Way] = {
        "curl": curl(path, url),
        "curl, then sync": curl(path, url, sync),
        "curl, then sha256, then sync": curl(path, url, summed, sync),
        "ours, 1 connection": ours(path, Weights(url), connections=1),
        "ours": ours(path, Weights(url)),
        "ours, with sha256": ours(path, Weights(url, sha256=sha256)),
    }
    taken = await measured(path, size, ROUNDS, ways)
    goals.measured("fetch", paired(taken["curl"], taken["ours"]))
    title = f"Fetch of {size // MIB} MiB from loopback; ours: sizes and CRCs, in the end on the disk"
    beside = {
        "curl": "of curl",
        "curl, then sync": "of that and sync",
        "curl, then sha256, then sync": "of all three",
    }
    compared(title, size, taken, beside=beside)


async def limited(path: Path, url: str, size: int) -> None:
    """Compare fetches from a source that limits each connection."""
    ways: dict[str, Way] = {
        "curl": curl(path, url),
        "ours, 1 connection": ours(path, Weights(url), connections=1),
        "ours": ours(path, Weights(url)),
    }
    taken = await measured(path, size, LIMITED_ROUNDS, ways)
    title = f"Fetch of {size // MIB} MiB from loopback that gives each connection {LIMIT_MIB} MiB/s"
    compared(title, size, taken, beside={"curl": "of curl"})


async def fetches(path: Path, url: str, size: int, file: Path) -> None:
    """Compare fetches of a file that is served, and print."""
    with file.open("rb") as opened:
        sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
    await fetching(path, f"{url}/{file.name}", size, sha256)
    await limited(path, f"{url}/limited/{file.name}", size)
