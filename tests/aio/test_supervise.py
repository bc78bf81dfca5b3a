"""Every task has an owner: no exception is lost, nothing outlives the owner."""

import asyncio

import pytest

from swapd.aio.supervise import Tasks


async def boom() -> None:
    raise ValueError("boom")


async def test_an_exception_is_reported_with_the_name_of_its_task() -> None:
    seen: list[tuple[str, str]] = []
    tasks = Tasks(on_failure=lambda name, error: seen.append((name, str(error))))
    task = tasks.start(boom(), name="bomb")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert seen == [("bomb", "boom")]
    assert len(tasks) == 0


async def test_the_result_reaches_whoever_awaits_the_task() -> None:
    tasks = Tasks()
    assert await tasks.start(asyncio.sleep(0, "done"), name="quick") == "done"


async def test_closing_ends_every_task_and_reports_no_cancellation() -> None:
    seen: list[str] = []
    tasks = Tasks(on_failure=lambda name, _error: seen.append(name))
    running = [tasks.start(asyncio.Event().wait(), name=f"t{i}") for i in range(5)]
    await asyncio.sleep(0)
    await tasks.aclose()
    assert all(task.cancelled() for task in running)
    assert (len(tasks), seen) == (0, [])
    await tasks.aclose()


async def test_an_exception_during_the_close_is_reported() -> None:
    seen: list[str] = []
    tasks = Tasks(on_failure=lambda name, _error: seen.append(name))

    async def fail_on_cancel() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("in the clean-up")

    _ = tasks.start(fail_on_cancel(), name="sore loser")
    await asyncio.sleep(0)
    await tasks.aclose()
    assert seen == ["sore loser"]


async def test_nothing_starts_after_the_close() -> None:
    tasks = Tasks()
    await tasks.aclose()
    with pytest.raises(RuntimeError, match="after its owner had closed"):
        _ = tasks.start(boom(), name="late")


async def test_a_task_may_close_its_own_owner() -> None:
    tasks = Tasks()
    other = tasks.start(asyncio.Event().wait(), name="other")
    await tasks.start(tasks.aclose(), name="closer")
    assert other.cancelled()
