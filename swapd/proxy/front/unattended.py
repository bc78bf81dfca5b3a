"""Bounds the time in which an answer is read to its end without its client (``on_client_abort: finish``)."""

import asyncio
from collections.abc import Callable

from swapd.core.ids import SECOND, Duration
from swapd.proxy.services import TaskStarter


class Unattended:
    """One such answer."""

    def __init__(self, tasks: TaskStarter, limit: Duration, give_up: Callable[[], None], *, name: str) -> None:
        """``give_up`` is called after ``limit`` or when the daemon closes; raises ``RuntimeError`` once it has."""
        self._ended = asyncio.get_running_loop().create_future()
        self._limit_s = limit / SECOND
        self._give_up = give_up
        _ = tasks.start(self._wait(), name=name)

    def ended(self) -> None:
        """Take it that the request has ended."""
        if not self._ended.done():
            self._ended.set_result(None)

    async def _wait(self) -> None:
        try:
            await asyncio.wait((self._ended,), timeout=self._limit_s)
        finally:
            self._give_up()
