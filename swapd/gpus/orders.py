"""Sees to it that each order to read memory is answered by exactly one fact, in time."""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import NewType

from swapd.core.events import GpuMemoryRead
from swapd.core.ids import SECOND, Duration, Instant

Order = NewType("Order", int)


class MemoryOrders:
    """The orders that wait for a reading; on one event loop."""

    def __init__(
        self, *, post: Callable[[GpuMemoryRead], None], now: Callable[[], Instant], deadline: Duration
    ) -> None:
        self._post = post
        self._now = now
        self._deadline = deadline
        self._numbers = itertools.count()
        self._waiting: dict[Order, asyncio.TimerHandle] = {}

    def add(self) -> None:
        """Take an order; it is answered by an empty reading when its deadline passes."""
        order = Order(next(self._numbers))
        loop = asyncio.get_running_loop()
        self._waiting[order] = loop.call_later(self._deadline / SECOND, self._give_up, order)

    def waiting(self) -> tuple[Order, ...]:
        """Return the orders that wait; a reading that begins later answers them."""
        return tuple(self._waiting)

    def publish(self, orders: Iterable[Order], reading: GpuMemoryRead) -> None:
        """Post a reading: once for each of the orders that still waits, and once if none does."""
        answered = [order for order in orders if order in self._waiting]
        for order in answered:
            self._waiting.pop(order).cancel()
            self._post(reading)
        if not answered:
            self._post(reading)

    def give_up(self) -> None:
        """Answer every order by an empty reading: the driver cannot be asked."""
        for order in self.waiting():
            self._give_up(order)

    def _give_up(self, order: Order) -> None:
        self._waiting.pop(order).cancel()
        at = self._now()
        self._post(GpuMemoryRead(at=at, taken=at))
