"""Sends the request that proves that a server can answer, not only that it says it is healthy."""

import asyncio
from dataclasses import dataclass

from swapd.aio.backoff import Backoff
from swapd.core.ids import SECOND, Duration
from swapd.engines.base import WarmupPlan, WarmupRequest
from swapd.instances.http import Reply, UnreachableError, request

#: the server has no such route, or not for this model, or not for us: the next attempt may fit
_NOT_THIS_WAY = frozenset({400, 401, 403, 404, 405, 422, 501})
_NOT_YET = 503
_PAUSE_S = Backoff(first=0.01, cap=1.0)
_EXCERPT_CHARS = 200


class WarmupError(Exception):
    """The server keeps answering with errors; the text follows the model's name."""


@dataclass(frozen=True, slots=True)
class WarmupLimits:
    """How long to wait for what."""

    #: for one request
    request: Duration
    #: of nothing but errors
    errors: Duration


async def warm_up(host: str, port: int, plan: WarmupPlan, limits: WarmupLimits) -> bool:
    """Return once an attempt has succeeded; ``False``: the server has none of the routes, nothing is proven.

    No answer and 503 mean "not yet" and are repeated without end; other errors for ``limits.errors``, then they raise
    ``WarmupError``.
    """
    for attempt in plan.attempts:
        if await _succeeds(host, port, attempt, limits=limits, exact=plan.exact):
            return True
    return False


async def _succeeds(host: str, port: int, attempt: WarmupRequest, *, limits: WarmupLimits, exact: bool) -> bool:
    loop = asyncio.get_running_loop()
    failing_since: float | None = None
    repetition = 0
    while True:
        reply = await _ask(host, port, attempt, limits.request)
        if reply is not None:
            if 200 <= reply.status < 300:
                return True
            if reply.status in _NOT_THIS_WAY and not exact:
                return False
        if reply is None or reply.status == _NOT_YET:
            failing_since = None
        elif failing_since is None:
            failing_since = loop.time()
        elif loop.time() - failing_since >= limits.errors / SECOND:
            raise WarmupError(_description(attempt, reply))
        await asyncio.sleep(_PAUSE_S.delay(repetition))
        repetition += 1


async def _ask(host: str, port: int, attempt: WarmupRequest, limit: Duration) -> Reply | None:
    try:
        async with asyncio.timeout(limit / SECOND):
            return await request(host, port, method=attempt.method, path=attempt.path, body=attempt.body)
    except (TimeoutError, UnreachableError):
        return None


def _description(attempt: WarmupRequest, reply: Reply) -> str:
    text = " ".join(reply.body.decode("utf-8", "replace").split())[:_EXCERPT_CHARS]
    return f"answered its warm-up request {attempt.method} {attempt.path} with {reply.status}: {text or 'no body'}"
