"""Runs blocking calls one after the other on one own thread, each under a deadline.

For libraries that block or want a single thread (a database file, a driver). The queue is bounded. A call that has
not begun at its deadline never runs; one that has begun cannot be interrupted: its caller is told, its result is
dropped, and the calls behind it wait. The thread is a daemon, so a call that hangs for ever cannot hold up the exit.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")


class ThreadBusyError(Exception):
    """The queue of the thread is full: the call was not accepted."""


@dataclass(slots=True)
class _Job:
    function: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    #: set by the caller, read by the thread: a race only decides whether a late call still runs
    abandoned: bool = False


class OneThread:
    """One worker thread; made and used on one event loop."""

    def __init__(self, name: str, *, max_queued: int = 64) -> None:
        self._jobs: queue.Queue[_Job | None] = queue.Queue(max_queued)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, function: Callable[[], T], *, timeout: float | None) -> T:  # noqa: ASYNC109 - the deadline is the point
        """Run ``function`` on the thread and return its result or raise its exception.

        Raises ``TimeoutError`` after ``timeout`` seconds, ``ThreadBusyError`` when the queue is full, ``RuntimeError``
        after ``aclose``. ``None``: the result is wanted however late it comes, and the caller minds the time.
        """
        if self._closed:
            raise RuntimeError(f"thread {self._thread.name!r} is closed")
        loop = asyncio.get_running_loop()
        job = _Job(function, loop, loop.create_future())
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise ThreadBusyError(f"thread {self._thread.name!r} has {self._jobs.maxsize} calls waiting") from None
        try:
            async with asyncio.timeout(timeout):
                return cast("T", await job.future)
        finally:
            job.abandoned = True

    async def aclose(self, *, timeout: float) -> bool:  # noqa: ASYNC109 - the deadline is the point
        """Let the queued calls finish for up to ``timeout`` seconds, then end the thread; ``False``: it still runs."""
        self._closed = True
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        signalled = False
        while self._thread.is_alive() and loop.time() < until:
            if not signalled:
                try:
                    self._jobs.put_nowait(None)
                    signalled = True
                except queue.Full:
                    pass
            await asyncio.sleep(0.005)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.abandoned:
                continue
            try:
                result, error = job.function(), None
            except BaseException as caught:  # noqa: BLE001 - handed to the caller, whatever it is
                result, error = None, caught
            try:
                job.loop.call_soon_threadsafe(_settle, job.future, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody is left to tell
            del job, result, error  # or the last result would live until the next call


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
