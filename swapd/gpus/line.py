"""Asks NVML one thing at a time on its own thread, and says when an answer is overdue.

A call into the driver cannot be interrupted, and its result matters however late it comes: an Init that took a minute
has succeeded. So an overdue call is not given up but declared late, and nothing else is asked until it has returned.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from swapd.aio.one_thread import OneThread
from swapd.core.ids import SECOND, Duration

T = TypeVar("T")


class Line:
    """The thread that NVML is asked on; used by one task at a time, on one event loop."""

    def __init__(self, *, late: Callable[[bool], None]) -> None:
        """``late`` is told when an answer is overdue, and when that answer has come."""
        self._late = late
        self._thread = OneThread("nvml", max_queued=1)
        self._busy = False

    async def ask(self, function: Callable[[], T], *, deadline: Duration) -> T:
        """Return what ``function`` returns or raise what it raises, however long it takes."""
        assert not self._busy, "a second question while the first is unanswered"
        self._busy = True

        def work() -> T:
            try:
                return function()
            finally:
                self._busy = False

        return await self.wait(self._thread.call(work, timeout=None), deadline=deadline)

    async def wait(self, answer: Awaitable[T], *, deadline: Duration) -> T:
        """Wait for something else that the driver owes, and say when it is overdue."""
        overdue = False

        def is_overdue() -> None:
            nonlocal overdue
            overdue = True
            self._late(True)  # noqa: FBT003 - late is the word

        timer = asyncio.get_running_loop().call_later(deadline / SECOND, is_overdue)
        try:
            return await answer
        except asyncio.CancelledError:
            overdue = False  # it has not come: nobody waits for it any more
            raise
        finally:
            timer.cancel()
            if overdue:
                self._late(False)  # noqa: FBT003

    async def aclose(self, *, timeout: float) -> bool:  # noqa: ASYNC109 - the deadline is the point
        """End the thread; ``False``: a call has not returned, and the thread ends with the process."""
        return await self._thread.aclose(timeout=timeout)
