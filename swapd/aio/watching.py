"""Hears from the kernel what changes in a folder, on a thread of its own.

The library's way of doing this on a loop loads a framework for asynchronous programs, a tenth of the daemon's start.
"""

import threading
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final

from typing_extensions import override
from watchfiles import Change, watch

from swapd.aio.one_thread import OneThread

_CLOSE_S: Final = 1.0


class _Ended(threading.Event):
    """Is also set when something else says so."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        super().__init__()
        self._stopped = stopped

    @override
    def is_set(self) -> bool:
        return super().is_set() or self._stopped()


def _never() -> bool:
    return False


async def watched(
    folder: Path,
    *,
    quiet_ms: int,
    step_ms: int = 50,
    recursive: bool = True,
    matters: Callable[[Change, str], bool] | None = None,
    stopped: Callable[[], bool] = _never,
) -> AsyncGenerator[set[tuple[Change, str]], None]:
    """Yield each burst of changes, and an empty set whenever there was none for ``quiet_ms``, until ``stopped``.

    A burst ends with the first ``step_ms`` without a change. ``stopped`` is asked on the thread. Raises what the
    kernel says when it cannot watch.
    """
    ended = _Ended(stopped)
    events = watch(
        folder,
        watch_filter=matters,
        step=step_ms,
        stop_event=ended,
        rust_timeout=quiet_ms,
        yield_on_timeout=True,
        recursive=recursive,
    )
    thread = OneThread("watch")
    try:
        while (changes := await thread.call(lambda: next(events, None), timeout=None)) is not None:
            yield changes
    finally:
        ended.set()
        if await thread.aclose(timeout=_CLOSE_S):
            events.close()
