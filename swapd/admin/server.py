"""Answers on the admin socket: status, topology, promotion report, events, record of requests, the operator's orders.

An order's response comes when the order is carried out; its body is ``{"ok", "detail", "reason"}``. An error's body is
``{"ok": false, "detail": <one sentence>, "reason": <word or null>}`` with a status that is not 200. Names may be
aliases. No handler waits for another one, so status answers while a swap or a drain is going on.
"""

import json
from contextlib import aclosing
from pathlib import Path
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from swapd.admin import timeline, unix_socket
from swapd.admin.control import Control, Result
from swapd.admin.events import EventHub, TooManyReadersError
from swapd.admin.unix_socket import AdminSocketError
from swapd.core.ids import Duration, ModelName, seconds
from swapd.core.reasons import Rejection

__all__ = ["AdminServer", "AdminSocketError", "admin_app"]

_MAX_BODY: Final = 64 * 1024
_CSV: Final = "text/csv"
_MAX_SECONDS: Final = 366 * 86_400.0
_SHUTDOWN_S: Final = 1.0
"""How long the end waits for responses that are being written."""
_STATUS = {Rejection.UNKNOWN_MODEL: 404, Rejection.INVALID_REQUEST: 400}
"""A refused order is 409 (the node is in another state than it takes), but for these."""


class AdminServer:
    """The admin socket of one daemon."""

    def __init__(self, path: Path, control: Control, hub: EventHub) -> None:
        self._path = path
        self._hub = hub
        self._runner = web.AppRunner(
            admin_app(control, hub), access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
        )
        self._inode: int | None = None

    async def start(self) -> None:
        """Listen. Raises ``AdminSocketError``."""
        listener = unix_socket.bind(self._path)
        self._inode = self._path.lstat().st_ino
        await self._runner.setup()
        await web.SockSite(self._runner, listener).start()

    async def aclose(self) -> None:
        """End the event streams, stop listening, remove the socket."""
        self._hub.close()
        if self._inode is not None:
            unix_socket.unlink(self._path, self._inode)
        await self._runner.cleanup()


def admin_app(control: Control, hub: EventHub) -> web.Application:
    """Return the application of the admin socket."""
    handlers = _Handlers(control, hub)
    app = web.Application(client_max_size=_MAX_BODY, middlewares=[_errors])
    app.router.add_get("/v1/status", handlers.status)
    app.router.add_get("/v1/topology", handlers.topology)
    app.router.add_get("/v1/report", handlers.report)
    app.router.add_get("/v1/events", handlers.events)
    app.router.add_routes(timeline.routes(control))
    app.router.add_get("/v1/trace", handlers.trace)
    app.router.add_get("/v1/trace/models", handlers.trace_models)
    app.router.add_post("/v1/models/{model:.+}/load", handlers.load)
    app.router.add_post("/v1/models/{model:.+}/unload", handlers.unload)
    app.router.add_post("/v1/models/{model:.+}/pin", handlers.pin)
    app.router.add_post("/v1/models/{model:.+}/unpin", handlers.unpin)
    app.router.add_post("/v1/drain", handlers.drain)
    app.router.add_post("/v1/undrain", handlers.undrain)
    app.router.add_post("/v1/reload", handlers.reload)
    app.router.add_post("/v1/gpus/release", handlers.release_gpus)
    app.router.add_post("/v1/gpus/acquire", handlers.acquire_gpus)
    return app


class _RefusedError(Exception):
    def __init__(self, detail: str, reason: Rejection) -> None:
        super().__init__(detail)
        self.result = Result(ok=False, detail=detail, reason=reason)


class _Handlers:
    def __init__(self, control: Control, hub: EventHub) -> None:
        self._control = control
        self._hub = hub

    async def status(self, _: web.Request) -> web.Response:
        return web.json_response(self._control.status())

    async def topology(self, _: web.Request) -> web.Response:
        return web.json_response(self._control.topology())

    async def report(self, _: web.Request) -> web.Response:
        return web.json_response(self._control.report())

    async def events(self, request: web.Request) -> web.StreamResponse:
        try:
            reader = self._hub.subscribe()
        except TooManyReadersError as error:
            return web.json_response({"ok": False, "detail": str(error), "reason": None}, status=429)
        try:
            response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
            await response.prepare(request)
            while lines := await reader.take():
                await response.write(lines)
        finally:
            reader.close()
        await response.write_eof()
        return response

    async def trace(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": _CSV})
        await response.prepare(request)
        async with aclosing(self._control.arrivals()) as chunks:
            async for chunk in chunks:
                await response.write(chunk)
        await response.write_eof()
        return response

    async def trace_models(self, _: web.Request) -> web.Response:
        return web.Response(text=self._control.model_list(), content_type=_CSV)

    async def load(self, request: web.Request) -> web.Response:
        return _answer(await self._control.load(self._model(request)))

    async def unload(self, request: web.Request) -> web.Response:
        model, cut_after = self._model(request), await _cut_after(request)
        return _answer(await self._control.unload(model, cut_after))

    async def pin(self, request: web.Request) -> web.Response:
        return _answer(await self._control.pin(self._model(request), True))  # noqa: FBT003 - see Control

    async def unpin(self, request: web.Request) -> web.Response:
        return _answer(await self._control.pin(self._model(request), False))  # noqa: FBT003 - see Control

    async def drain(self, request: web.Request) -> web.Response:
        return _answer(await self._control.drain(await _cut_after(request)))

    async def undrain(self, _: web.Request) -> web.Response:
        return _answer(await self._control.undrain())

    async def reload(self, _: web.Request) -> web.Response:
        return _answer(await self._control.reload())

    async def release_gpus(self, _: web.Request) -> web.Response:
        return _answer(await self._control.release_gpus())

    async def acquire_gpus(self, _: web.Request) -> web.Response:
        return _answer(await self._control.acquire_gpus())

    def _model(self, request: web.Request) -> ModelName:
        name = request.match_info["model"]
        model = self._control.resolve(name)
        if model is None:
            raise _RefusedError(f"no model and no alias is named {name!r}; see swapd status", Rejection.UNKNOWN_MODEL)
        return model


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every error the same body."""
    try:
        return await handler(request)
    except _RefusedError as refused:
        return _answer(refused.result)
    except (web.RequestPayloadError, HttpProcessingError):
        detail = "the body is malformed or cannot be decoded; send plain JSON"
        return _answer(Result(ok=False, detail=detail, reason=Rejection.INVALID_REQUEST))
    except web.HTTPException as error:
        detail = f"{request.method} {request.path}: {error.reason}"
        return web.json_response({"ok": False, "detail": detail, "reason": None}, status=error.status)


def _answer(result: Result) -> web.Response:
    body = {"ok": result.ok, "detail": result.detail, "reason": None if result.reason is None else result.reason.value}
    status = 200 if result.ok else 409 if result.reason is None else _STATUS.get(result.reason, 409)
    return web.json_response(body, status=status)


async def _cut_after(request: web.Request) -> Duration | None:
    """Read ``{"timeout": <seconds or null>}``; no body is no timeout."""
    raw = await request.read()
    if not raw:
        return None
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    value = body.get("timeout") if isinstance(body, dict) else raw
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_SECONDS:
        raise _RefusedError(
            'the body is a JSON object like {"timeout": 30}, in seconds; null waits for ever', Rejection.INVALID_REQUEST
        )
    return seconds(value)
