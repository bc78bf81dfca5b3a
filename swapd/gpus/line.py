"""Asks NVML one thing at a time on its own thread, and says when an answer is overdue.

A call into the driver cannot be interrupted, and its result matters however late it comes: an Init that took a minute
has succeeded. So an overdue call is not given up but declared late, and nothing else is asked until it has returned.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from swapd.aio.one_thread import OneThread
from swapd.core.ids import SECOND, Duration, Instant

T = TypeVar("T")


class Line:
    """The thread that NVML is asked on; used by one task at a time, on one event loop."""

    def __init__(self, *, now: Callable[[], Instant], overdue: Callable[[], None]) -> None:
        """``overdue`` is called once for each call that has passed its deadline."""
        self._now = now
        self._overdue = overdue
        self._thread = OneThread("nvml", max_queued=1)
        self._busy = False
        #: since when a call should have returned that has not; ``None``: there is none
        self.late_since: Instant | None = None

    @property
    def busy(self) -> bool:
        """Whether a call has not returned, also when nobody waits for it any more."""
        return self._busy

    async def ask(self, function: Callable[[], T], *, deadline: Duration) -> T:
        """Return what ``function`` returns or raise what it raises, however long it takes."""
        assert not self._busy, "a second question while the first is unanswered"
        self._busy = True

        def work() -> T:
            try:
                return function()
            finally:
                self._busy = False

        timer = asyncio.get_running_loop().call_later(deadline / SECOND, self._is_late)
        try:
            return await self._thread.call(work, timeout=None)
        finally:
            timer.cancel()
            self.late_since = None

    def _is_late(self) -> None:
        self.late_since = self._now()
        self._overdue()

    async def aclose(self, *, timeout: float) -> bool:  # noqa: ASYNC109 - the deadline is the point
        """End the thread; ``False``: a call still has not returned, and the thread ends with the process."""
        return await self._thread.aclose(timeout=timeout)
