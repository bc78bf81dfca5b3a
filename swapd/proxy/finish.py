"""Reads an abandoned answer to its end, for engines that suffer when one request of a batch is broken off.

Until then the request counts as in flight: whoever reads holds the lease and ends it. It is bounded in time, by the
core's Cut and by the model's ``request_timeout``; the answer's bytes are dropped as they come.
"""

import asyncio

from swapd.core.ids import SECOND
from swapd.core.reasons import Outcome, Rejection
from swapd.proxy.attempts import CutError, OverdueError, until_broken_off
from swapd.proxy.desk import Desk
from swapd.proxy.exchange import Exchange
from swapd.proxy.relay import Answer, BrokenAnswerError, MalformedAnswerError, Outbound, UnansweredError
from swapd.proxy.services import Endpoint
from swapd.proxy.usage import UsageReader

RelayError = UnansweredError | MalformedAnswerError


async def open_answer(desk: Desk, exchange: Exchange, endpoint: Endpoint, outbound: Outbound) -> Answer:
    """Send the request and return when the answer's head is in; raises what the relay raises.

    Where abandoned answers are finished, a cancellation of the caller leaves the request under way, for ``hand_over``.
    """
    if not exchange.finish_on_abort:
        return await desk.relay.open(endpoint, outbound)
    opening = desk.services.tasks.start(_result(desk, endpoint, outbound), name=f"answer {exchange.request_id}")
    exchange.opening = opening
    result = await asyncio.shield(opening)
    exchange.opening = None
    if isinstance(result, UnansweredError | MalformedAnswerError):
        raise result
    return result


async def _result(desk: Desk, endpoint: Endpoint, outbound: Outbound) -> Answer | RelayError:
    try:
        return await desk.relay.open(endpoint, outbound)
    except (UnansweredError, MalformedAnswerError) as error:
        return error


def hand_over(desk: Desk, exchange: Exchange) -> None:
    """Take over an exchange whose client has left, if its answer is to be read to the end."""
    if not exchange.finish_on_abort or (exchange.answer is None and exchange.opening is None):
        return
    exchange.handed_over = True
    try:
        _ = desk.services.tasks.start(_finish(desk, exchange), name=f"finish {exchange.request_id}")
    except RuntimeError:
        # the daemon is closing
        exchange.handed_over = False


async def _finish(desk: Desk, exchange: Exchange) -> None:
    assert exchange.lease is not None
    try:
        async with asyncio.timeout(desk.settings.finish_timeout / SECOND), until_broken_off(exchange.lease):
            await _read(exchange)
    except OverdueError:
        exchange.reason = Rejection.UPSTREAM_TIMEOUT
    except (TimeoutError, CutError, BrokenAnswerError):
        pass
    finally:
        cut = exchange.lease.is_cut
        exchange.close(desk, Outcome.CUT if cut else Outcome.CANCELLED)


async def _read(exchange: Exchange) -> None:
    if exchange.opening is not None:
        result = await exchange.opening
        exchange.opening = None
        if isinstance(result, UnansweredError | MalformedAnswerError):
            return
        exchange.answer = result
    answer = exchange.answer
    assert answer is not None
    reader = exchange.reader or UsageReader.of(answer.headers)
    async for chunk in answer.chunks():
        reader.feed(chunk)
    exchange.usage = reader.finish()
