"""A process that fetches once and says how it went.

With `--forks`, each line `N` on standard input is answered by a forked child that is killed at its Nth step that
touches the disk: many deaths are cheap that way. `--job` says what it does instead of a fetch.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swapd.weights import Standing, Weights
from swapd.weights.facts import Fetched, Removed, Verified
from tests.weights.caches import MIB, M, N, running

LIMIT = 3 * MIB

#: what changes the disk or reads it through, and in between what a crash could hit
STEPS = [(os, name) for name in ("pwrite", "write", "fsync", "ftruncate", "preadv", "unlink", "rmdir")]
STEPS += [(Path, name) for name in ("hardlink_to", "rename", "replace", "mkdir", "rmdir", "touch")]


def die_at(number: int) -> Callable[[], int]:
    """Let the process be killed at its step `number`; return how to count the steps."""
    count = 0

    def stepping(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return step

    for place, name in STEPS:
        setattr(place, name, stepping(getattr(place, name)))
    return lambda: count


async def fetch(path: Path, url: str) -> bool:
    async with running(path, {M: Weights(url)}, connections=2) as run:
        answer = await run.fetch()
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
        return isinstance(answer, Fetched)


async def evict(path: Path, url: str) -> bool:
    """Fetch a model for which another one has to leave."""
    async with running(path, {M: Weights(f"{url}/m"), N: Weights(f"{url}/n")}, max_size=LIMIT) as run:
        await run.fetch(N)
        run.cache.heed({N: Standing(held=True)})
        await run.settled()
        return set(run.cached) == {N} and run.cache.stats().used <= LIMIT


async def share(path: Path, url: str) -> bool:
    """Fetch two models that have a file in common at the same time, then remove one."""
    models = {M: Weights(url, ("common", "m")), N: Weights(url, ("common", "n"))}
    async with running(path, models, connections=2) as run:
        run.cache.fetch(M)
        run.cache.fetch(N)
        await run.answer(M)
        await run.answer(N)
        await run.settled()
        run.cache.remove(M)
        removed = await run.until(Removed)
        await run.settled()
        return not removed.detail and set(run.cached) == {N} and run.cache.stats().used == run.cached[N]


async def verify(path: Path, url: str) -> bool:
    """Look at a copy that is damaged, and fetch it anew."""
    async with running(path, {M: Weights(f"{url}/m")}) as run:
        if run.cached:
            run.cache.verify(M)
            if (await run.until(Verified)).intact:
                return True
        since = len(run.facts)
        run.cache.refetch(M)
        answer = await run.answer(since=since)
        await run.settled()
        return isinstance(answer, Fetched) and len(run.cached) == 1


JOBS = {"fetch": fetch, "evict": evict, "share": share, "verify": verify}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("url")
    parser.add_argument("--forks", action="store_true")
    parser.add_argument("--job", choices=JOBS, default="fetch")
    arguments = parser.parse_args()
    job = JOBS[arguments.job]
    if not arguments.forks:
        return 0 if asyncio.run(job(arguments.path, arguments.url)) else 1
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            die_at(int(line))
            os._exit(0 if asyncio.run(job(arguments.path, arguments.url)) else 1)
        _, status = os.waitpid(pid, 0)
        sys.__stdout__.write(f"ended {os.waitstatus_to_exitcode(status)}\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
    return 0


if __name__ == "__main__":
    sys.exit(main())
