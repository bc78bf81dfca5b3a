"""Long blocking jobs: their outcome, and how they are told to stop."""

import asyncio
import threading

import pytest

from swapd.aio.threads import Stop, StoppedError, on_own_thread


async def test_the_result_comes_back_from_another_thread() -> None:
    name = await on_own_thread(lambda: threading.current_thread().name, name="job")
    assert name == "job"


async def test_an_error_is_raised_in_the_caller() -> None:
    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await on_own_thread(fail, name="job")


async def test_a_cancelled_caller_leaves_at_once_and_its_job_is_told() -> None:
    stop, begun, ended = Stop(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        try:
            stop.pause(60)
        except StoppedError:
            ended.set()

    waiting = asyncio.ensure_future(on_own_thread(work, name="job", stop=stop))
    await asyncio.to_thread(begun.wait, 30)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.to_thread(ended.wait, 30)


def test_a_blocked_call_is_woken_once_also_when_it_comes_too_late() -> None:
    stop, woken = Stop(), list[str]()

    def first() -> None:
        woken.append("first")

    def second() -> None:
        woken.append("second")

    stop.waking(first)
    stop.waking(second)
    stop.not_waking(second)
    stop.check()
    stop()
    stop()
    stop.waking(second)
    assert woken == ["first", "second"]
    assert stop.stopped
    with pytest.raises(StoppedError):
        stop.check()


def test_a_pause_without_a_stop_just_ends() -> None:
    Stop().pause(0.001)


async def test_a_job_that_outlives_the_loop_is_no_trouble() -> None:
    go = threading.Event()
    loop = asyncio.new_event_loop()

    def on_other_loop() -> None:
        async def begin() -> None:
            waiting = asyncio.ensure_future(on_own_thread(go.wait, name="late"))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])

        loop.run_until_complete(begin())
        loop.close()

    await asyncio.to_thread(on_other_loop)
    go.set()
    for thread in threading.enumerate():
        if thread.name == "late":
            await asyncio.to_thread(thread.join, 30)
