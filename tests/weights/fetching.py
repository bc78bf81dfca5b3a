"""A process that fetches once and says how it went.

With `--forks`, each line `N` on standard input is answered by a forked child that is killed at its Nth step that
touches the disk: many deaths are cheap that way. `--job` says what it does instead of a fetch.
"""

import argparse
import asyncio
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swapd.core.events import FetchProgressed, FetchWaits, WeightsFetched, WeightsVerified
from swapd.weights import Standing, Weights
from swapd.weights.facts import Removed
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
        return isinstance(answer, WeightsFetched)


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
            if (await run.until(WeightsVerified)).intact:
                return True
        since = len(run.facts)
        run.cache.refetch(M)
        answer = await run.answer(since=since)
        await run.settled()
        return isinstance(answer, WeightsFetched) and len(run.cached) == 1


async def wait(path: Path, url: str, *, fill: str = "", remove: str = "") -> bool:
    """Fetch on a disk that is or becomes full: run `fill` when bytes come, remove a file when the fetch waits."""
    settings = {"progress_period": 1_000_000, "bandwidth": 16 * MIB if fill else None, "connections": 1}
    async with running(path, **settings) as run:
        run.cache.serve({M: Weights(url)})
        run.cache.fetch(M)
        if fill:
            while not (await run.until(FetchProgressed, since=len(run.facts))).done:
                pass
            await asyncio.to_thread(subprocess.run, fill, shell=True, check=False, stderr=subprocess.DEVNULL)
        if remove:
            sys.stdout.write(f"{await run.until(FetchWaits)}\n")
            Path(remove).unlink()  # noqa: ASYNC240 - quick
        answer = await run.answer()
        sys.stdout.write(f"{answer}\n")
        copy = run.cache.path(M)
        whole = copy is not None and copy.read_bytes() == Path(url.removeprefix("file://")).read_bytes()  # noqa: ASYNC240
        sys.stdout.write("whole" if whole else "nothing")
        return whole


JOBS = {"fetch": fetch, "evict": evict, "share": share, "verify": verify, "wait": wait}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("url")
    parser.add_argument("--forks", action="store_true")
    parser.add_argument("--job", choices=JOBS, default="fetch")
    parser.add_argument("--fill", default="")
    parser.add_argument("--then-remove", default="")
    arguments = parser.parse_args()
    job = JOBS[arguments.job]
    if job is wait:
        job = functools.partial(wait, fill=arguments.fill, remove=arguments.then_remove)
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
