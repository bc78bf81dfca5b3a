"""An operator's order ends with the core's answer, and an operator who leaves does not undo it."""

import asyncio

import pytest

from swapd.agent.operators import Operators
from swapd.core.commands import Answer
from swapd.core.events import Event, NodeUndrainOrdered
from swapd.core.ids import Instant, RequestId


def _undrain(request: RequestId) -> Event:
    return NodeUndrainOrdered(at=Instant(0), request=request)


async def test_an_answer_given_in_the_same_step_is_delivered() -> None:
    operators = Operators(
        post=lambda event: operators.answered(Answer(request=event.request, ok=True, detail="done")),  # type: ignore[union-attr] - the only event here
        next_request=lambda: RequestId(5),
    )
    assert await operators.order(_undrain) == Answer(request=RequestId(5), ok=True, detail="done")


async def test_the_answer_to_an_operator_who_has_left_is_ignored() -> None:
    posted: list[Event] = []
    operators = Operators(post=posted.append, next_request=lambda: RequestId(5))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await operators.order(_undrain)
    operators.answered(Answer(request=RequestId(5), ok=True, detail="done"))
    assert operators._waiting == {}


async def test_whoever_does_not_wait_sees_at_once_whether_the_answer_has_come() -> None:
    operators = Operators(post=lambda _: None, next_request=lambda: RequestId(5))
    placed = operators.place(_undrain)
    assert not placed.done()
    operators.answered(Answer(request=RequestId(5), ok=True, detail="done"))
    assert placed.done()
    assert (await placed).detail == "done"
    assert operators._waiting == {}
