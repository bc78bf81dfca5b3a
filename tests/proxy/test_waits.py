"""What a request waited, and whether for a load, is recorded however the wait ended."""

import pytest

from swapd.core.commands import Reject
from swapd.core.ids import Duration, ModelName, RequestId
from swapd.core.reasons import Outcome, Rejection, State
from tests.proxy.breaking import BODY, CHAT_PATH
from tests.proxy.harness import post_bytes, raw_client, running, until


async def test_a_refusal_after_a_wait_is_recorded_with_the_wait_and_its_start() -> None:
    async with running() as node, raw_client(node.port) as client:
        node.core.hold = True
        await client.send(post_bytes(CHAT_PATH, BODY))
        await until(lambda: node.core.waiting)
        waited = Duration(3_000_000_000)
        node.front.gate.rejected(
            Reject(RequestId(1), ModelName("m01"), Rejection.WAIT_TIMEOUT, None, "x", cold_start=True, waited=waited)
        )
        assert (await client.read_head()).startswith(b"HTTP/1.1 503")
        record = await node.settled(1)
        assert (record.waited_s, record.cold_start, record.outcome) == (3.0, True, Outcome.REJECTED)


async def test_a_refusal_at_once_waited_for_nothing() -> None:
    async with running() as node, raw_client(node.port) as client:
        node.core.refusal = (Rejection.QUEUE_FULL, None, False)
        await client.send(post_bytes(CHAT_PATH, BODY))
        await client.read_head()
        record = await node.settled(1)
        assert (record.waited_s, record.cold_start) == (0, False)


@pytest.mark.parametrize(
    ("state", "cold"),
    [(None, True), (State.LOADING, True), (State.DRAINING, True), (State.READY, False)],
    ids=["absent", "loading", "draining", "ready"],
)
async def test_a_departure_from_the_queue_is_recorded_with_the_wait_and_what_it_was_for(
    state: State | None, *, cold: bool
) -> None:
    async with running() as node:
        node.core.hold = True
        node.states["m01"] = state
        async with raw_client(node.port) as client:
            await client.send(post_bytes(CHAT_PATH, BODY))
            await until(lambda: node.core.waiting)
            client.leave()
            record = await node.settled(1)
        assert record.cold_start is cold
        assert 0 < record.waited_s <= record.duration_s
        assert record.outcome is Outcome.CANCELLED
