"""Passes an engine's own metrics page through, for the metrics port.

It never starts a model and does not keep it: no lease is taken. The page is bounded in size and time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp
from aiohttp import hdrs, web

from swapd.core.ids import ModelName
from swapd.core.reasons import Rejection, State
from swapd.proxy import interim
from swapd.proxy.dialects import Dialect
from swapd.proxy.errors import error_response, failure_of, invalid, unknown_model
from swapd.proxy.failure import Failure
from swapd.proxy.naming import name_in_path
from swapd.proxy.request_id import HEADER, request_id_of
from swapd.proxy.services import Endpoint, Services

_PATIENCE_S: Final = 5.0
_MAX_PAGE: Final = 8 << 20
_ALIVE: Final = frozenset((State.READY, State.DRAINING))


def engine_metrics_handler(services: Services) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return the handler of ``GET /metrics/models/{model:.+}``."""

    async def handle(request: web.Request) -> web.StreamResponse:
        request_id = request_id_of(request.headers.get(HEADER))
        found = await _page(services, request.match_info["model"])
        if isinstance(found, Failure):
            return error_response(found, Dialect.OPENAI, request_id, services.random)
        content_type, page = found
        return web.Response(body=page, headers={hdrs.CONTENT_TYPE: content_type, HEADER: request_id})

    return handle


async def _page(services: Services, raw_name: str) -> tuple[str, bytes] | Failure:
    name = name_in_path(raw_name)
    model = services.directory.resolve(name)
    if model is None:
        return unknown_model(name)
    endpoint = _endpoint(services, model)
    if endpoint is None:
        return invalid(f"The model {model} is not resident, so it has no metrics now.", status=404, code="not_resident")
    url = f"http://{endpoint.authority}/metrics"
    try:
        async with (
            asyncio.timeout(_PATIENCE_S),
            aiohttp.ClientSession(connector=interim.connector()) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                return _failed(f"The engine's metrics page answers with status {response.status}.")
            page = bytearray()
            async for piece in response.content.iter_any():
                page += piece
                if len(page) > _MAX_PAGE:
                    return _failed(f"The engine's metrics page is larger than {_MAX_PAGE >> 20} MiB.")
            return response.headers.get(hdrs.CONTENT_TYPE, "text/plain; version=0.0.4"), bytes(page)
    except (aiohttp.ClientError, OSError) as error:
        return _failed(f"The engine's metrics page cannot be read: {str(error) or type(error).__name__}.")


def _failed(message: str) -> Failure:
    return failure_of(Rejection.UPSTREAM_FAILED, message)


def _endpoint(services: Services, model: ModelName) -> Endpoint | None:
    offer = services.offer(model)
    if offer is None or offer.instance is None or offer.instance.state not in _ALIVE:
        return None
    return services.endpoint(offer.instance.instance)
