"""Gives every task an owner: its exception is reported, and it ends with its owner.

``asyncio.create_task`` is called here and nowhere else. A bare task may be collected while it runs, and its exception
may be lost; a task started here is held until it has ended.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

T = TypeVar("T")

_log = structlog.get_logger(__name__)


def log_failure(name: str, error: BaseException) -> None:
    """Log the failure of the task ``name`` with its traceback."""
    _log.error("task_failed", task=name, exc_info=error)


class Tasks:
    """The tasks of one owner; ``on_failure(name, error)`` is told of every exception but a cancellation."""

    def __init__(self, *, on_failure: Callable[[str, BaseException], None] = log_failure) -> None:
        self._on_failure = on_failure
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def start(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task on the running loop; raises ``RuntimeError`` once the owner has closed."""
        if self._closed:
            coro.close()
            raise RuntimeError(f"task {name!r} was started after its owner had closed")
        task = asyncio.create_task(coro, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._on_failure(task.get_name(), error)

    def __len__(self) -> int:
        """Return the number of tasks that have not ended."""
        return len(self._running)

    async def aclose(self) -> None:
        """Cancel every task and wait until all have ended; may be called again."""
        self._closed = True
        own = asyncio.current_task()
        while rest := [task for task in self._running if task is not own]:
            for task in rest:
                task.cancel()
            await asyncio.wait(rest)
            # the done callbacks run in the next turn of the loop; without it the set would still hold ended tasks
            await asyncio.sleep(0)
