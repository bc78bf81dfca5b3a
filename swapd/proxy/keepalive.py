"""Keeps a stream's connection alive while its model loads, by comments that event-stream readers pass over.

Proxies drop connections that are silent for a minute or two. A comment also says what is waited for and how far that
has come, for people who look at the raw stream. The price is that the status 200 is out before the answer is known:
what would have been an error status becomes an error event and an unclean end. A wait shorter than the interval is not
touched.
"""

from collections.abc import Iterator
from typing import Final

from aiohttp import hdrs, web

from swapd.core.ids import SECOND, Duration, Instant
from swapd.core.reasons import WaitingFor
from swapd.core.view import ModelView
from swapd.proxy import forward
from swapd.proxy.desk import Desk
from swapd.proxy.exchange import Exchange
from swapd.proxy.failure import Failure, RefusedError
from swapd.proxy.gate import Lease
from swapd.proxy.relay import Answer

_SHOWN_OF_AN_ERROR: Final = 2000
READ_OF_AN_ERROR: Final = 64 << 10


async def wait(desk: Desk, exchange: Exchange, lease: Lease, interval: Duration) -> None:
    """Wait for the grant and send a comment whenever the interval has passed; raises ``RejectedError``."""
    while await lease.wait(interval / SECOND) is None:
        response = await forward.commit_stream(exchange)
        await response.write(comment(desk, lease))


def comment(desk: Desk, lease: Lease) -> bytes:
    """Return the comment that is sent while a request waits: ``: waiting for weights, 43 %, about 35 s``."""
    model = desk.services.model(lease.model)
    waited_for = None if model is None else next((one for one in WaitingFor if model.queued.get(one)), None)
    if model is None or waited_for is None:
        return f": waiting for {lease.model}\n\n".encode()
    parts = (f": waiting for {waited_for.value.replace('_', ' ')}", *_progress(model, waited_for, desk.services.now()))
    return f"{', '.join(parts)}\n\n".encode()


def _progress(model: ModelView, waited_for: WaitingFor, now: Instant) -> Iterator[str]:
    """Say how far it has come, as far as that is known."""
    fetch, instance = model.fetch, model.instance
    if waited_for is WaitingFor.WEIGHTS and fetch is not None:
        if fetch.waits:
            yield "which wait for room on the disk"
        elif not fetch.running:
            yield "after other fetches"
        elif fetch.total:
            yield f"{fetch.done * 100 // fetch.total} %"
        # before the first bytes have come, what remains is a guess
        yield from _about(fetch.remaining if fetch.rate > 0 and not fetch.waits else 0)
    elif waited_for is WaitingFor.LOAD and instance is not None:
        yield from _about(instance.since + model.load_estimate - now)


def _about(remaining: int) -> Iterator[str]:
    if remaining > 0:
        yield f"about {-(-remaining // SECOND)} s"


async def pass_on(desk: Desk, exchange: Exchange, answer: Answer) -> web.StreamResponse:
    """Send the answer into a stream that has begun; raises ``RefusedError`` if it is none."""
    is_stream = forward.media_type(answer) == forward.EVENT_STREAM and hdrs.CONTENT_ENCODING not in answer.headers
    if answer.status == 200 and is_stream:
        return await forward.pass_on(exchange, answer, desk.services.now)
    text = bytearray()
    async for chunk in answer.chunks():
        text += chunk[: READ_OF_AN_ERROR - len(text)]
    raise RefusedError(no_event_stream(answer.status, text))


def no_event_stream(status: int, text: bytes | bytearray) -> Failure:
    """Return the failure for an engine that answered with something else, of which the beginning is shown."""
    shown = text.decode("utf-8", "replace")[:_SHOWN_OF_AN_ERROR]
    message = f"The engine answered with status {status} and no event stream: {shown}"
    return Failure(status, "api_error", "engine_error", message)
