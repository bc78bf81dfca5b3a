"""Tries a granted request on its instance, and again where the core grants it once more; ends it when it is cut.

How often is the core's decision: each failed attempt is reported, and the answer is another grant or a refusal.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from swapd.proxy.desk import Desk
from swapd.proxy.gate import Lease
from swapd.proxy.relay import UnansweredError
from swapd.proxy.services import Endpoint

T = TypeVar("T")


class CutError(Exception):
    """The core has ordered to break the request off."""


@asynccontextmanager
async def until_cut(lease: Lease) -> AsyncIterator[None]:
    """Run the body until the lease is cut; then it is interrupted wherever it waits and ``CutError`` is raised."""
    loop = asyncio.get_running_loop()
    try:
        # a scope without a deadline, used for its clean way to interrupt and to tell that from a cancellation
        async with asyncio.timeout(None) as scope:
            lease.on_cut = lambda: scope.reschedule(loop.time())
            if lease.is_cut:
                raise CutError
            yield
    except TimeoutError:
        if lease.is_cut:
            raise CutError from None
        raise
    finally:
        lease.on_cut = None


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
