"""Connects an operator's order with the core's answer to it.

An order is a request like any other: it has an id, and exactly one Answer names that id.
"""

import asyncio
from collections.abc import Callable

from swapd.core.commands import Answer
from swapd.core.events import Event
from swapd.core.ids import RequestId


class Operators:
    """The operator orders that wait for their answer."""

    def __init__(self, *, post: Callable[[Event], None], next_request: Callable[[], RequestId]) -> None:
        self._post = post
        self._next_request = next_request
        self._waiting: dict[RequestId, asyncio.Future[Answer]] = {}

    async def order(self, make: Callable[[RequestId], Event]) -> Answer:
        """Post the event that ``make`` builds for a fresh request id and wait for its answer.

        An operator who leaves early does not undo the order.
        """
        return await self.place(make)

    def place(self, make: Callable[[RequestId], Event]) -> asyncio.Future[Answer]:
        """Post the event likewise and return what will hold its answer; does at once if the core gave it at once."""
        request = self._next_request()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request] = future
        future.add_done_callback(lambda _: self._waiting.pop(request, None))  # also when nobody waits any more
        self._post(make(request))
        return future

    def answered(self, answer: Answer) -> None:
        """Deliver the core's answer; nobody may be waiting for it any more."""
        future = self._waiting.pop(answer.request, None)
        if future is not None and not future.done():
            future.set_result(answer)
