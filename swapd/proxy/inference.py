"""Takes one request to an engine and back: name, body, lease, attempts, answer, one ending.

Every way out passes through ``serve``: there the failure is told, the lease ended, the body released and the record
made. A client that leaves cancels the handler at once; with ``on_client_abort: finish`` the rest of the answer is then
read by a task of its own (``finish.py``), and the lease ends with it.
"""

import asyncio

from aiohttp import hdrs, web
from multidict import CIMultiDict

from swapd.core.ids import ModelName
from swapd.core.reasons import Outcome
from swapd.proxy import finish, forward, keepalive
from swapd.proxy.address import address_of, resolved
from swapd.proxy.attempts import CutError, OverdueError, try_instances, until_broken_off
from swapd.proxy.body import read_body
from swapd.proxy.desk import Desk
from swapd.proxy.errors import cut_off, failure_of_reject, invalid, not_passed_on, overdue
from swapd.proxy.exchange import Exchange
from swapd.proxy.failure import Failure, RefusedError
from swapd.proxy.gate import Lease, RejectedError
from swapd.proxy.headers import for_engine
from swapd.proxy.naming import PRIORITY_HEADER, name_in_request, priority_named
from swapd.proxy.relay import Answer, BrokenAnswerError, MalformedAnswerError, Outbound
from swapd.proxy.routes import Kind
from swapd.proxy.services import Endpoint
from swapd.proxy.websocket import check_upgrade, is_upgrade, tunnel

_FAILURES = (RejectedError, RefusedError, BrokenAnswerError, MalformedAnswerError, CutError, OverdueError)


async def serve(desk: Desk, exchange: Exchange) -> web.StreamResponse:
    """Answer one inference request, whatever happens; raises when the client has gone."""
    outcome = Outcome.CANCELLED
    try:
        try:
            response = await _serve(desk, exchange)
            outcome = Outcome.SERVED
        except _FAILURES as error:
            outcome, failure = _told(error)
            response = await forward.fail(exchange, failure, desk.services, desk.settings.break_off_timeout)
    except (ConnectionError, asyncio.CancelledError):
        outcome = exchange.verdict or Outcome.CANCELLED
        finish.hand_over(desk, exchange)
        raise
    except Exception:
        exchange.status = exchange.status or 500
        raise
    finally:
        if not exchange.handed_over:
            exchange.close(desk, outcome)
    return response


def _told(error: Exception) -> tuple[Outcome, Failure]:
    """Return how a request that failed has ended, and what its client is told."""
    match error:
        case RejectedError():
            return Outcome.REJECTED, failure_of_reject(error.command)
        case RefusedError():
            return Outcome.SERVED, error.failure
        case CutError():
            return Outcome.CUT, cut_off()
        case OverdueError():
            return Outcome.UPSTREAM_FAILED, overdue(error.limit)
        case _:
            return Outcome.UPSTREAM_FAILED, not_passed_on(str(error))


async def _serve(desk: Desk, exchange: Exchange) -> web.StreamResponse:
    request = exchange.request
    priority = priority_named(request.headers.get(PRIORITY_HEADER))
    model, wants_stream = await _understand(desk, exchange)
    exchange.model = model
    options = desk.services.options(model)
    exchange.finish_on_abort = options.finish_on_abort
    headers = for_engine(
        request.headers, exchange.request_id, body_size=exchange.body.size if exchange.body.present else None
    )
    lease = desk.gate.open(model, priority=priority, body_bytes=exchange.body.size, limit=options.request_timeout)
    exchange.lease = lease
    interval = desk.settings.sse_keepalive
    if wants_stream and interval is not None and exchange.match.route.sse:
        await keepalive.wait(desk, exchange, lease, interval)
    else:
        await lease.wait()
    async with until_broken_off(lease):
        if is_upgrade(request):
            return await tunnel(desk, exchange, lease)
        if exchange.response is not None:
            headers.popall(hdrs.ACCEPT_ENCODING, None)
        answer = await _answer(desk, exchange, lease, headers)
        if exchange.response is not None:
            return await keepalive.pass_on(desk, exchange, answer)
        return await forward.pass_on(exchange, answer, desk.services.now)


async def _understand(desk: Desk, exchange: Exchange) -> tuple[ModelName, bool]:
    """Read the request as far as swapd needs: its model, and whether it wants a stream. Raises ``RefusedError``."""
    request, match = exchange.request, exchange.match
    model: ModelName | None = None
    if match.path_name is not None:
        address = address_of(desk.services, match, request.method, exchange.target)
        model, exchange.target, exchange.dialect = address
    if is_upgrade(request):
        check_upgrade(request)
    elif match.route.kind is Kind.WEBSOCKET:
        raise RefusedError(invalid("This path needs a WebSocket.", status=426, code="upgrade_required"))
    await read_body(request, exchange.body, desk.settings)
    if model is not None:
        return model, False
    found = name_in_request(request, exchange.body)
    assert found.model is not None
    return resolved(desk.services, found.model), found.stream


async def _answer(desk: Desk, exchange: Exchange, lease: Lease, headers: CIMultiDict[str]) -> Answer:
    """Return the engine's answer, of which the head is in; from here on nothing is tried again."""

    async def attempt(endpoint: Endpoint, fresh: bool) -> Answer:  # noqa: FBT001 - try_instances passes it so
        outbound = Outbound(exchange.request.method, exchange.target, headers, exchange.body, fresh=fresh)
        return await finish.open_answer(desk, exchange, endpoint, outbound)

    answer = await try_instances(desk, lease, attempt)
    exchange.answer = answer
    exchange.body.release()
    return answer
