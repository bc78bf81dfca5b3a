"""Tries a granted request on its instance, and again where the core grants it anew; ends it when it is cut or late.

How often is the core's decision: each failed attempt is reported, and the answer is another grant or a refusal.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from swapd.core.ids import SECOND, Duration
from swapd.proxy.desk import Desk
from swapd.proxy.gate import Lease
from swapd.proxy.relay import UnansweredError
from swapd.proxy.services import Endpoint

T = TypeVar("T")


class CutError(Exception):
    """The core has ordered to break the request off."""


class OverdueError(Exception):
    """The request has been at its engine for longer than its model's ``request_timeout``."""

    def __init__(self, limit: Duration) -> None:
        super().__init__(f"longer than {limit / SECOND:g} s")
        self.limit = limit


@asynccontextmanager
async def until_broken_off(lease: Lease) -> AsyncIterator[None]:
    """Run the body until the lease is to be broken off; then it is interrupted wherever it waits.

    Raises ``CutError`` or ``OverdueError`` then.
    """
    loop = asyncio.get_running_loop()
    try:
        # a scope without a deadline, used for its clean way to interrupt and to tell that from a cancellation
        async with asyncio.timeout(None) as scope:

            def interrupt() -> None:
                # a request may become overdue and be cut one after the other, but is interrupted once
                if not scope.expired():
                    scope.reschedule(loop.time())

            lease.on_break = interrupt
            _raise_if_broken_off(lease)
            yield
    except TimeoutError:
        _raise_if_broken_off(lease)
        raise
    finally:
        lease.on_break = None


def _raise_if_broken_off(lease: Lease) -> None:
    if lease.is_cut:
        raise CutError
    if lease.is_overdue:
        assert lease.limit is not None
        raise OverdueError(lease.limit)


async def try_instances(desk: Desk, lease: Lease, attempt: Callable[[Endpoint, bool], Awaitable[T]]) -> T:
    """Return what ``attempt(endpoint, fresh)`` returns; ``fresh`` from the second time on.

    Raises ``RejectedError`` when the core gives up, and whatever the attempt raises except ``UnansweredError``.
    """
    fresh = False
    while True:
        assert lease.grant is not None
        endpoint = desk.services.endpoint(lease.grant.instance)
        if endpoint is not None:
            try:
                return await attempt(endpoint, fresh)
            except UnansweredError:
                pass
        fresh = True
        lease.upstream_failed()
        await lease.wait()
