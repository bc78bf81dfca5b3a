"""Says that something below the cache's folder may have changed, soon after it did and from time to time anyway.

What lies below ``.swapd`` is left out: a fetch writes there all the time. A folder that is new is looked at once more
when it is quiet: the kernel tells nothing of what was put into it before it was watched. File systems that send no
events are looked at when the period is over.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Final

from watchfiles import Change

from swapd.aio.watching import watched

_STEP_MS: Final = 100
_QUIET_MS: Final = 1000
_QUIET_S: Final = _QUIET_MS / 1000


async def signs(path: Path, own: Path, *, period_s: float) -> AsyncIterator[None]:
    """Yield after each burst of changes below ``path`` and once per period; ``own``: what is below is left out.

    Never ends and never raises by itself.
    """
    inside = f"{own}/"

    def matters(_: Change, name: str) -> bool:
        return not name.startswith(inside)

    while True:
        yield
        try:
            async with aclosing(_looks(path, matters, period_s)) as looks:
                async for _ in looks:
                    yield
        except (OSError, RuntimeError):  # not there, or too many folders are watched on this machine
            await asyncio.sleep(min(period_s, _QUIET_S) if _inode(path) is None else period_s)


async def _looks(path: Path, matters: Callable[[Change, str], bool], period_s: float) -> AsyncGenerator[None, None]:
    """Yield whenever a look is due; ends when another folder is at the path."""
    looked_at = _inode(path)
    # the kernel tells nothing of what came between the last look and now
    quiet_s, again = 0.0, True
    events = watched(path, matters=matters, step_ms=_STEP_MS, quiet_ms=_QUIET_MS)
    async with aclosing(events):
        async for changes in events:
            quiet_s = 0.0 if changes else quiet_s + _QUIET_S
            if changes or again or quiet_s >= period_s:
                quiet_s, again = 0.0, bool(changes)
                yield
            # a folder made anew often has the number of the one that was removed
            if _inode(path) != looked_at or (Change.deleted, str(path)) in changes:
                return


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None
