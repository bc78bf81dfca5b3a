"""A process that fetches once and says how it went; `--die-at N` kills it at the Nth step that touches the disk.

Without `--die-at`, lines `N` on standard input are answered by a forked child each, so that many deaths are cheap.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swapd.weights import Weights
from swapd.weights.facts import Fetched
from tests.weights.caches import M, running

#: what changes the disk, and in between what a crash could hit
STEPS = [(os, name) for name in ("pwrite", "write", "fsync", "ftruncate")]
STEPS += [(Path, name) for name in ("hardlink_to", "rename", "replace", "mkdir", "rmdir")]


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


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("url")
    parser.add_argument("--forks", action="store_true")
    arguments = parser.parse_args()
    if not arguments.forks:
        return 0 if asyncio.run(fetch(arguments.path, arguments.url)) else 1
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            die_at(int(line))
            os._exit(0 if asyncio.run(fetch(arguments.path, arguments.url)) else 1)
        _, status = os.waitpid(pid, 0)
        sys.__stdout__.write(f"ended {os.waitstatus_to_exitcode(status)}\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
    return 0


if __name__ == "__main__":
    sys.exit(main())
