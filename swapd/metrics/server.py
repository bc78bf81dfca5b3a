"""Answers on the metrics port: ``/metrics``, ``/livez``, ``/readyz``, and each engine's own page. Read-only.

``/livez`` says one thing: the event loop turned less than 30 seconds ago. ``/readyz`` says whether the node takes
requests, and never asks whether a model is resident.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web

from swapd.core.ids import SECOND, Duration
from swapd.metrics.collect import Metrics, TooManyScrapesError

LIVE_WITHIN = Duration(30 * SECOND)
"""An older stamp of the event loop is a hang."""


def metrics_app(
    metrics: Metrics, *, engine_metrics: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.Application:
    """Return the application of the metrics port.

    ``engine_metrics`` answers ``/metrics/models/{model}`` with the engine's own page; it must not start the model.
    """

    async def page(request: web.Request) -> web.Response:
        try:
            body, content_type = await metrics.page(request.headers.get("Accept", ""))
        except TooManyScrapesError as error:
            return web.Response(status=503, text=f"{error}\n")
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def livez(_: web.Request) -> web.Response:
        age = metrics.heartbeat.age()
        if age < LIVE_WITHIN:
            return web.Response(text="ok\n")
        return web.Response(status=503, text=f"the event loop has not turned for {age / SECOND:.0f} s\n")

    async def readyz(_: web.Request) -> web.Response:
        reasons = metrics.not_ready()
        if not reasons:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="".join(f"{reason}\n" for reason in reasons))

    app = web.Application()
    app.router.add_get("/metrics", page)
    app.router.add_get("/metrics/models/{model:.+}", engine_metrics)
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    return app
