"""Blocking calls run one at a time on one thread; a hanging one costs its caller a deadline and nobody the loop."""

import asyncio
import threading

import pytest

from swapd.aio.one_thread import OneThread, ThreadBusyError


async def test_calls_run_in_order_on_one_thread_and_return_their_results() -> None:
    thread = OneThread("worker")
    names = await asyncio.gather(*(thread.call(lambda: threading.current_thread().name, timeout=10) for _ in range(3)))
    assert names == ["worker"] * 3
    assert await thread.aclose(timeout=10)


async def test_an_exception_reaches_the_caller() -> None:
    thread = OneThread("worker")
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0, timeout=10)
    assert await thread.call(lambda: 7, timeout=10) == 7
    assert await thread.aclose(timeout=10)


async def test_a_hanging_call_ends_at_its_deadline_and_a_late_one_never_runs() -> None:
    thread = OneThread("worker")
    release, ran = threading.Event(), []
    with pytest.raises(TimeoutError):
        await thread.call(release.wait, timeout=0.01)
    with pytest.raises(TimeoutError):
        await thread.call(lambda: ran.append(1), timeout=0.01)
    assert not await thread.aclose(timeout=0.01)
    release.set()
    assert await thread.aclose(timeout=10)
    assert ran == []


async def test_a_full_queue_refuses() -> None:
    thread = OneThread("worker", max_queued=1)
    release, begun = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        release.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(thread.call(block, timeout=10))
        await asyncio.to_thread(begun.wait)
        group.create_task(thread.call(lambda: None, timeout=10))
        await asyncio.sleep(0)
        with pytest.raises(ThreadBusyError):
            await thread.call(lambda: None, timeout=10)
        release.set()
    assert await thread.aclose(timeout=10)


async def test_a_closed_thread_accepts_nothing() -> None:
    thread = OneThread("worker")
    assert await thread.aclose(timeout=10)
    with pytest.raises(RuntimeError, match="closed"):
        await thread.call(lambda: None, timeout=1)
