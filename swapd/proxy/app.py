"""Opens the data port: takes each request to its route, and sees that every error has a body that SDKs understand.

Connections are kept by ``server.py``: routing is one table of our own, bodies are read by ``body.py``, and malformed
HTTP, too, is answered in our form. Handlers are cancelled when their client leaves. No header here allows
browsers to read answers across origins, and nothing on this port controls the node.
"""

import dataclasses
from typing import Final

import structlog
from aiohttp import HttpVersion10, HttpVersion11, hdrs, web

from swapd.aio.turns import in_turns
from swapd.proxy import models_api
from swapd.proxy.body import Body
from swapd.proxy.budget import Budget
from swapd.proxy.desk import Desk
from swapd.proxy.dialects import Dialect
from swapd.proxy.errors import error_response, internal_error, invalid, method_not_allowed, not_found, unknown_version
from swapd.proxy.exchange import Exchange
from swapd.proxy.failure import Failure, RefusedError
from swapd.proxy.front.server import FrontServer
from swapd.proxy.gate import Gate
from swapd.proxy.inference import serve
from swapd.proxy.pooled import PooledRelay
from swapd.proxy.relay import Relay
from swapd.proxy.request_id import HEADER, request_id_of
from swapd.proxy.routes import FORWARDED, Match, dialect_of, find
from swapd.proxy.services import Services
from swapd.proxy.settings import ProxySettings

_HEAD_LIMIT: Final = 16 << 10
_VERSIONS: Final = frozenset((HttpVersion10, HttpVersion11))
_SHUTDOWN_S: Final = 1.0
"""For requests still running when the server is closed; the core's drain has come before that."""

_log = structlog.get_logger(__name__)


class FrontDoor:
    """The data port. Make it on the running loop; ``runner()`` serves it, ``aclose()`` comes after the runner's end."""

    def __init__(self, services: Services, settings: ProxySettings, *, relay: Relay | None = None) -> None:
        self.gate: Final = Gate(
            post=services.post, admit=services.admit, now=services.now, next_request_id=services.next_request_id
        )
        desk = Desk(
            services=services,
            settings=settings,
            gate=self.gate,
            relay=relay or PooledRelay(settings.connect_timeout),
            budget=Budget(settings.max_buffered),
        )
        self._server = FrontServer(
            self.handle,
            self._malformed,
            desk=desk,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            max_line_size=_HEAD_LIMIT,
            max_field_size=_HEAD_LIMIT,
        )

    @property
    def _desk(self) -> Desk:
        return self._server.desk

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the bodies held in memory."""
        return self._desk.budget.used

    @property
    def engine_connections(self) -> int:
        """Number of connections to engines, idle or not; those of WebSockets are not among them."""
        return self._server.engine_connections + self._desk.relay.connections

    def reconfigure(self, settings: ProxySettings) -> None:
        """Use other limits and times for requests that arrive from now on."""
        self._desk.budget.limit = settings.max_buffered
        self._server.desk = dataclasses.replace(self._desk, settings=settings)

    def runner(self) -> web.ServerRunner:
        """Return a runner for ``web.TCPSite`` and the like."""
        return web.ServerRunner(self._server, handle_signals=False, shutdown_timeout=_SHUTDOWN_S)

    async def aclose(self) -> None:
        """Close the connections to the engines."""
        self._server.close_engines()
        self._desk.relay.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; raises only when its client has gone, or is to notice a break."""
        request_id = request_id_of(request.headers.get(HEADER))
        try:
            return await self._route(request, request_id)
        except ConnectionError:
            raise
        except Exception as error:
            # without the query: clients put keys there
            path = _origin_form(request.raw_path).partition("?")[0]
            _log.exception("request_failed", request_id=request_id, path=path)
            if request.writer.output_size > 0:
                raise ConnectionError("the handler failed after the answer had begun") from error
            response = self._error(internal_error(), dialect_of(path), request_id)
            response.force_close()
            return response

    async def _route(self, request: web.BaseRequest, request_id: str) -> web.StreamResponse:
        target = _origin_form(request.raw_path)
        path = target.partition("?")[0]
        if request.version not in _VERSIONS:
            response = self._error(unknown_version(), dialect_of(path), request_id)
            response.force_close()
            return response
        match = find(path)
        if match is None or "#" in target:
            return self._error(not_found(path), dialect_of(path), request_id)
        methods = match.route.methods
        if methods and request.method not in methods:
            return self._error(method_not_allowed(request.method, methods), match.route.dialect, request_id)
        if match.route.kind in FORWARDED:
            exchange = Exchange(
                request=request,
                match=match,
                request_id=request_id,
                arrived=self._desk.services.now(),
                body=Body(self._desk.budget),
                target=target,
                path=path,
                dialect=match.route.dialect,
            )
            return await serve(self._desk, exchange)
        return await self._own(match, request_id)

    async def _own(self, match: Match, request_id: str) -> web.Response:
        try:
            body = await in_turns(models_api.answer_in_steps(self._desk.services, match))
        except RefusedError as error:
            return self._error(error.failure, match.route.dialect, request_id)
        headers = {HEADER: request_id, hdrs.SERVER: "swapd"}
        return web.Response(body=body, content_type="application/json", headers=headers)

    def _error(self, failure: Failure, dialect: Dialect, request_id: str) -> web.Response:
        return error_response(failure, dialect, request_id, self._desk.services.random)

    def _malformed(self, message: str) -> web.Response:
        first = message.splitlines()[0][:200] if message else "it cannot be read"
        failure = invalid(f"The request is not well-formed HTTP: {first}")
        response = self._error(failure, Dialect.OPENAI, request_id_of(None))
        response.force_close()
        return response


def _origin_form(target: str) -> str:
    """Return path and query of a request target, which may be a whole URL (RFC 9112 §3.2.2)."""
    if target.lower().startswith(("http://", "https://")):
        _, slash, rest = target.partition("://")[2].partition("/")
        return slash + rest or "/"
    return target
