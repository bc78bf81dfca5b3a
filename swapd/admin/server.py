"""Answers on the admin socket: status, topology, promotion report, events, record of requests, the operator's orders.

An order's response comes when the order is carried out; its body is ``{"ok", "detail", "reason"}``. An error's body is
``{"ok": false, "detail": <one sentence>, "reason": <word or null>}`` with a status that is not 200. Names may be
aliases. No handler waits for another one, so status answers while a swap or a drain is going on.
"""

from contextlib import aclosing
from pathlib import Path
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler

from swapd.admin import cache, timeline, unix_socket
from swapd.admin.answers import RefusedError, answer, document, known_model, read_object
from swapd.admin.control import Control, Result
from swapd.admin.events import EventHub, TooManyReadersError
from swapd.admin.unix_socket import AdminSocketError
from swapd.core.ids import Duration, ModelName, seconds
from swapd.core.reasons import Rejection

__all__ = ["AdminServer", "AdminSocketError", "admin_app"]

_MAX_BODY: Final = 64 * 1024
_CSV: Final = "text/csv"
_ALIAS: Final = "/swapd"
"""Every path is also there below this one, as it would be on a listener that has other paths, too."""
_TIMEOUT: Final = '{"timeout": 30}'
_MAX_SECONDS: Final = 366 * 86_400.0
_SHUTDOWN_S: Final = 1.0
"""How long the end waits for responses that are being written."""


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
    routes = [
        web.get("/v1/status", handlers.status),
        web.get("/v1/topology", handlers.topology),
        web.get("/v1/report", handlers.report),
        web.get("/v1/events", handlers.events),
        web.get("/v1/trace", handlers.trace),
        web.get("/v1/trace/models", handlers.trace_models),
        web.post("/v1/models/{model:.*}/load", handlers.load),
        web.post("/v1/models/{model:.*}/unload", handlers.unload),
        web.post("/v1/models/{model:.*}/pin", handlers.pin),
        web.post("/v1/models/{model:.*}/unpin", handlers.unpin),
        web.post("/v1/drain", handlers.drain),
        web.post("/v1/undrain", handlers.undrain),
        web.post("/v1/reload", handlers.reload),
        web.post("/v1/gpus/release", handlers.release_gpus),
        web.post("/v1/gpus/acquire", handlers.acquire_gpus),
        *timeline.routes(control),
        *cache.routes(control),
    ]
    app = web.Application(client_max_size=_MAX_BODY, middlewares=[_errors])
    for prefix in ("", _ALIAS):
        app.router.add_routes(
            [web.RouteDef(route.method, f"{prefix}{route.path}", route.handler, route.kwargs) for route in routes]
        )
    return app


class _Handlers:
    def __init__(self, control: Control, hub: EventHub) -> None:
        self._control = control
        self._hub = hub

    async def status(self, _: web.Request) -> web.Response:
        return await document(await self._control.status())

    async def topology(self, _: web.Request) -> web.Response:
        return await document(await self._control.topology())

    async def report(self, _: web.Request) -> web.Response:
        return await document(await self._control.report())

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
        return web.Response(text=await self._control.model_list(), content_type=_CSV)

    async def load(self, request: web.Request) -> web.Response:
        return answer(await self._control.load(self._model(request)))

    async def unload(self, request: web.Request) -> web.Response:
        model, cut_after = self._model(request), await _cut_after(request)
        return answer(await self._control.unload(model, cut_after))

    async def pin(self, request: web.Request) -> web.Response:
        return answer(await self._control.pin(self._model(request), True))  # noqa: FBT003 - see Control

    async def unpin(self, request: web.Request) -> web.Response:
        return answer(await self._control.pin(self._model(request), False))  # noqa: FBT003 - see Control

    async def drain(self, request: web.Request) -> web.Response:
        return answer(await self._control.drain(await _cut_after(request)))

    async def undrain(self, _: web.Request) -> web.Response:
        return answer(await self._control.undrain())

    async def reload(self, _: web.Request) -> web.Response:
        return answer(await self._control.reload())

    async def release_gpus(self, _: web.Request) -> web.Response:
        return answer(await self._control.release_gpus())

    async def acquire_gpus(self, _: web.Request) -> web.Response:
        return answer(await self._control.acquire_gpus())

    def _model(self, request: web.Request) -> ModelName:
        return known_model(self._control, request.match_info["model"])


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every error the same body."""
    try:
        return await handler(request)
    except RefusedError as refused:
        return answer(refused.result)
    except (web.RequestPayloadError, HttpProcessingError):
        detail = "the body is malformed or cannot be decoded; send plain JSON"
        return answer(Result(ok=False, detail=detail, reason=Rejection.INVALID_REQUEST))
    except web.HTTPException as error:
        detail = f"{request.method} {request.path}: {error.reason}"
        return web.json_response({"ok": False, "detail": detail, "reason": None}, status=error.status)


async def _cut_after(request: web.Request) -> Duration | None:
    """Read ``{"timeout": <seconds or null>}``; no body is no timeout."""
    value = (await read_object(request, _TIMEOUT)).get("timeout")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_SECONDS:
        raise RefusedError(
            f"the body is a JSON object like {_TIMEOUT}, in seconds; null waits for ever", Rejection.INVALID_REQUEST
        )
    return seconds(value)
