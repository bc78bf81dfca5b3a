"""Notices that the configuration file has changed, however that was done, and says so once per burst of writes.

The file's directory is watched, not the file: editors and ConfigMaps replace it (the latter by swapping a symlink next
to it). Beside the kernel's events the file is looked at every few seconds, for file systems that send none. Whether the
content still means the same is not decided here.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from swapd.aio.watching import watched


@dataclass(frozen=True, slots=True)
class Pace:
    """How often and how patiently to look; seconds."""

    #: between two looks without an event
    poll: float = 3.0
    #: without a further write, after which a burst counts as over
    settle: float = 0.5
    #: longest wait for a burst to end: a file that is written all the time is reported that often
    patience: float = 5.0
    #: first wait after the watcher has failed; doubled each time, up to ``retry_most``
    retry: float = 0.5
    retry_most: float = 30.0


_PACE: Final = Pace()
#: identity, time and size of the file behind all symlinks; ``None``: not there
Fingerprint = tuple[int, int, int, int] | None


def _ignore(_: Exception) -> None:
    pass


async def changes(
    path: Path, stop: asyncio.Event, *, on_error: Callable[[Exception], None] = _ignore, pace: Pace = _PACE
) -> AsyncIterator[None]:
    """Yield once after each burst of changes to the file (also when it goes away or comes back), until ``stop`` is set.

    Never raises by itself: ``on_error`` is told what went wrong with the kernel's events, and the file is looked at
    without them until they work again.
    """
    known, retry = fingerprint(path), pace.retry
    while not stop.is_set():
        try:
            async with aclosing(_looks(path, stop, pace)) as looks:
                async for _ in looks:
                    retry = pace.retry
                    if fingerprint(path) != known and not stop.is_set():
                        known = await _settled(path, stop, pace)
                        yield
        except (OSError, RuntimeError) as error:
            on_error(error)
        if fingerprint(path) != known and not stop.is_set():
            known = await _settled(path, stop, pace)
            yield
        await _pause(stop, retry)
        retry = min(2 * retry, pace.retry_most)


def fingerprint(path: Path) -> Fingerprint:
    """Return what tells two versions of the file apart."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


async def _looks(path: Path, stop: asyncio.Event, pace: Pace) -> AsyncGenerator[None, None]:
    """Yield whenever the file may have changed; ends when the watched directory is no longer the one at that path."""
    directory = path.parent
    looked_at = _inode(directory)
    events = watched(directory, quiet_ms=max(1, round(pace.poll * 1000)), recursive=False, stopped=stop.is_set)
    async with aclosing(events):
        async for _ in events:
            yield
            if _inode(directory) != looked_at:
                return


def _inode(directory: Path) -> tuple[int, int] | None:
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


async def _settled(path: Path, stop: asyncio.Event, pace: Pace) -> Fingerprint:
    """Wait until the file has stayed the same for a while; return what it is then."""
    now, waited = fingerprint(path), 0.0
    while waited < pace.patience and not stop.is_set():
        before = now
        await _pause(stop, pace.settle)
        waited += pace.settle
        now = fingerprint(path)
        if now == before:
            break
    return now


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
