"""Runs long blocking jobs off the event loop, each on a thread of its own that can be told to stop.

For jobs that take seconds or minutes (a download, reading a file through). The threads are daemons, so one that hangs
in the kernel cannot hold up the exit. A cancelled caller leaves at once; its job is told to stop and ends by itself.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class StoppedError(Exception):
    """The job was told to stop."""


class Stop:
    """Tells a job to stop; set from any thread, once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._called: list[Callable[[], None]] = []

    def __call__(self) -> None:
        """Stop the job: whatever it waits for ends, and its next ``check`` raises."""
        with self._lock:
            self._event.set()
            called, self._called = self._called, []
        for wake in called:
            wake()

    @property
    def stopped(self) -> bool:
        """Whether the job was told to stop."""
        return self._event.is_set()

    def check(self) -> None:
        """Raise ``StoppedError`` if the job was told to stop."""
        if self._event.is_set():
            raise StoppedError

    def pause(self, seconds: float) -> None:
        """Wait; raises ``StoppedError`` as soon as the job is told to stop."""
        if self._event.wait(seconds):
            raise StoppedError

    def waking(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` when the job is told to stop (at once if it was): something that ends a blocked call."""
        with self._lock:
            if not self._event.is_set():
                self._called.append(wake)
                return
        wake()

    def not_waking(self, wake: Callable[[], None]) -> None:
        """Forget what ``waking`` was told."""
        with self._lock:
            self._called = [known for known in self._called if known != wake]


async def on_own_thread(
    function: Callable[[], T], *, name: str, stop: Stop | None = None, ended: Callable[[], None] | None = None
) -> T:
    """Run ``function`` on a new daemon thread; return its result or raise its exception.

    When the caller is cancelled, ``stop`` is told, the thread is left to its end and its result is dropped. ``ended``
    is called on the loop when the function has ended, whether somebody still waits or not.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[], None]) -> None:
        if ended is not None:
            ended()
        if not future.done():
            set_outcome()

    def run() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
            caught = error
            outcome = lambda: future.set_exception(caught)  # noqa: E731 - two lines are enough
        else:
            outcome = lambda: future.set_result(result)  # noqa: E731 - see above
        try:
            loop.call_soon_threadsafe(settle, outcome)
        except RuntimeError:
            return  # the loop is closed: nobody is left to tell

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        return await future
    except asyncio.CancelledError:
        if stop is not None:
            stop()
        raise
