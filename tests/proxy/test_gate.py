"""A lease is answered by the core and ends exactly once."""

import asyncio

import pytest

from swapd.core.catalog import Priority
from swapd.core.commands import Cut, Grant, Reject
from swapd.core.events import Event, RequestArrived, RequestEnded, UpstreamFailed
from swapd.core.ids import Bytes, Duration, InstanceId, Instant, ModelName, RequestId
from swapd.core.reasons import Outcome, Rejection
from swapd.proxy.gate import Gate, RejectedError
from tests.proxy.harness import DEADLINE_S

MODEL = ModelName("m01")
ONE = RequestId(1)


def grant(instance: int = 7, request: RequestId = ONE) -> Grant:
    return Grant(request, InstanceId(instance), MODEL, cold_start=False, waited=Duration(0), stages={})


def reject() -> Reject:
    return Reject(ONE, MODEL, Rejection.QUEUE_FULL, None, "full")


class Core:
    """Keeps what was posted and answers as told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.answers: list[Grant | Reject] = []
        self.gate = Gate(post=self.post, admit=self.post, now=lambda: Instant(5), next_request_id=lambda: ONE)

    def post(self, event: Event) -> None:
        self.events.append(event)
        if not isinstance(event, RequestEnded) and self.answers:
            match self.answers.pop(0):
                case Grant() as command:
                    self.gate.granted(command)
                case Reject() as command:
                    self.gate.rejected(command)


async def test_a_grant_inside_the_post_needs_no_future() -> None:
    core = Core()
    core.answers = [grant()]
    lease = core.gate.open(MODEL, priority=Priority.LOW, body_bytes=3)
    waiting = lease.wait()
    with pytest.raises(StopIteration) as done:
        waiting.send(None)
    assert done.value.value == grant()
    assert core.events == [RequestArrived(Instant(5), ONE, MODEL, Priority.LOW, Bytes(3))]


async def test_a_grant_that_the_post_returns_is_the_answer() -> None:
    events: list[Event] = []
    core = Core()
    gate = Gate(post=events.append, admit=lambda _event: grant(), now=core.gate.now, next_request_id=lambda: ONE)
    lease = gate.open(MODEL)
    assert await lease.wait() == grant()
    assert (lease.grant, lease.waited, lease.cold_start) == (grant(), 0, False)
    lease.end(Outcome.SERVED)
    assert events == [RequestEnded(Instant(5), ONE, Outcome.SERVED)]


async def test_a_refusal_inside_the_post_is_raised() -> None:
    core = Core()
    core.answers = [reject()]
    lease = core.gate.open(MODEL)
    with pytest.raises(RejectedError) as refused:
        await lease.wait()
    assert refused.value.command == reject()
    lease.end(Outcome.REJECTED)
    assert core.events[-1] == RequestEnded(Instant(5), ONE, Outcome.REJECTED)


async def test_a_later_grant_wakes_the_waiter_and_a_wait_with_a_limit_can_be_repeated() -> None:
    core = Core()
    lease = core.gate.open(MODEL)
    assert await lease.wait(0.0) is None
    asyncio.get_running_loop().call_soon(core.gate.granted, grant())
    assert await lease.wait(20) == grant()


async def test_a_cancelled_waiter_may_still_be_granted_and_ends_once() -> None:
    core = Core()
    lease = core.gate.open(MODEL)
    waiting = asyncio.ensure_future(lease.wait())
    await asyncio.sleep(0)
    core.gate.granted(grant())
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    lease.end(Outcome.CANCELLED)
    lease.end(Outcome.SERVED)
    assert [type(event) for event in core.events] == [RequestArrived, RequestEnded]
    assert lease.outcome is Outcome.CANCELLED
    assert core.gate.open_requests == 0


async def test_after_a_failed_attempt_the_next_answer_is_waited_for() -> None:
    core = Core()
    core.answers = [grant(7), grant(8)]
    lease = core.gate.open(MODEL)
    await lease.wait()
    lease.upstream_failed()
    assert core.events[-1] == UpstreamFailed(Instant(5), ONE, InstanceId(7))
    assert await lease.wait() == grant(8)
    lease.upstream_failed()
    assert core.events[-1] == UpstreamFailed(Instant(5), ONE, InstanceId(8))
    waiting = asyncio.ensure_future(lease.wait())
    await asyncio.sleep(0)
    core.gate.rejected(reject())
    with pytest.raises(RejectedError):
        await waiting


async def test_commands_for_a_request_that_has_ended_are_ignored() -> None:
    core = Core()
    lease = core.gate.open(MODEL)
    lease.end(Outcome.CANCELLED)
    core.gate.granted(grant())
    core.gate.rejected(reject())
    core.gate.cut(Cut(ONE, MODEL, InstanceId(1)))
    assert lease.grant is None
    assert not lease.is_cut


async def test_a_post_that_raises_leaves_no_lease() -> None:
    def post(_event: Event) -> None:
        raise ZeroDivisionError

    gate = Gate(post=post, admit=post, now=lambda: Instant(5), next_request_id=lambda: ONE)
    with pytest.raises(ZeroDivisionError):
        gate.open(MODEL)
    assert gate.open_requests == 0


async def test_what_a_request_waited_is_what_the_core_says_and_a_second_refusal_does_not_shorten_it() -> None:
    core = Core()
    core.answers = [
        Grant(ONE, InstanceId(7), MODEL, cold_start=True, waited=Duration(8), stages={}),
        Reject(ONE, MODEL, Rejection.UPSTREAM_FAILED, None, "gone"),
    ]
    lease = core.gate.open(MODEL)
    lease.upstream_failed()
    assert (lease.waited, lease.cold_start) == (8, True)


async def test_the_time_limit_runs_while_the_request_is_granted_and_starts_anew_with_each_grant() -> None:
    core = Core()
    lease = core.gate.open(MODEL, limit=Duration(1))
    await _soon()
    assert not lease.is_overdue
    core.gate.granted(grant(7))
    lease.upstream_failed()
    await _soon()
    assert not lease.is_overdue
    over = asyncio.Event()
    lease.on_break = over.set
    core.gate.granted(grant(8))
    await asyncio.wait_for(over.wait(), DEADLINE_S)
    assert lease.is_overdue


async def test_an_ended_request_does_not_become_overdue() -> None:
    core = Core()
    core.answers = [grant()]
    lease = core.gate.open(MODEL, limit=Duration(1))
    lease.end(Outcome.SERVED)
    await _soon()
    assert not lease.is_overdue


async def _soon() -> None:
    """Let every timer fire that is due."""
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, done.set)
    await done.wait()
