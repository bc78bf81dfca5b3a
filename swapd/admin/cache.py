"""Tells of the weight cache and takes orders about it: ``/v1/cache…`` and ``…/prefetch``; for the rules see ``server``.

``POST …/prefetch`` answers once the weights are there; with ``?wait=false`` at once, with status 202 if they are still
to come. Who leaves early does not end a fetch.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from swapd.admin.answers import RefusedError, answer, document, known_model, plain, read_object, status_of
from swapd.admin.control import Control, Result
from swapd.admin.devices import Json
from swapd.core.ids import SECOND, Bytes, Instant, ModelName
from swapd.core.reasons import Rejection
from swapd.core.view import FetchView, NodeView

_ACCEPTED = 202
_EXAMPLE = '{"models": ["m01", "m02"]}'


@dataclass(frozen=True, slots=True)
class CopyInfo:
    """One complete copy."""

    path: str
    #: without what may be secret
    source: str
    revision: str
    files: int
    size: Bytes
    #: whom it is for; ``()``: nobody wants it any more
    models: tuple[ModelName, ...]
    #: a check has found it damaged: it is not used, and leaves when room is needed
    damaged: bool


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """How the cache stands."""

    path: str
    #: files that are being fetched included
    used: Bytes
    limit: Bytes
    #: thereof what is not the cache's own
    foreign: Bytes
    copies: tuple[CopyInfo, ...]


def cache_document(view: NodeView, cache: CacheInfo | None) -> Json:
    """Return the document, made of plain JSON types; without a ``cache``, because no model needs one, an empty one."""
    pinned = {model.model for model in view.models if model.pinned}
    in_use = {instance.model for instance in view.instances}
    copies = () if cache is None else cache.copies
    return {
        "path": None if cache is None else cache.path,
        "used_bytes": 0 if cache is None else cache.used,
        "limit_bytes": None if cache is None else cache.limit,
        "foreign_bytes": 0 if cache is None else cache.foreign,
        "copies": [
            {
                "path": copy.path,
                "source": copy.source,
                "revision": copy.revision,
                "files": copy.files,
                "bytes": copy.size,
                "models": list(copy.models),
                "in_use": not in_use.isdisjoint(copy.models),
                "pinned": not pinned.isdisjoint(copy.models),
                "damaged": copy.damaged,
            }
            for copy in copies
        ],
        "fetches": [
            {"model": model.model, **fetch_document(model.fetch, view.at)}
            for model in view.models
            if model.fetch is not None
        ],
    }


def fetch_document(fetch: FetchView, at: Instant) -> Json:
    """Return a fetch; ``total_bytes`` is null until the source has told it."""
    return {
        "running": fetch.running,
        "age_s": round((at - fetch.since) / SECOND, 3),
        "done_bytes": fetch.done,
        "total_bytes": fetch.total or None,
        "bytes_per_s": round(fetch.rate),
        "remaining_s": round(fetch.remaining / SECOND, 3),
        "waits": fetch.waits or None,
    }


def routes(control: Control) -> list[web.RouteDef]:
    """Return the routes."""
    handlers = _Handlers(control)
    return [
        web.get("/v1/cache", handlers.cache),
        web.post("/v1/cache/{model:.*}/verify", handlers.verify),
        web.delete("/v1/cache/{model:.*}", handlers.remove),
        web.post("/v1/models/{model:.*}/prefetch", handlers.prefetch),
        web.post("/v1/prefetch", handlers.prefetch_several),
    ]


class _Handlers:
    def __init__(self, control: Control) -> None:
        self._control = control

    async def cache(self, _: web.Request) -> web.Response:
        return await document(await self._control.cache())

    async def verify(self, request: web.Request) -> web.Response:
        return answer(await self._control.verify(known_model(self._control, request.match_info["model"])))

    async def remove(self, request: web.Request) -> web.Response:
        return answer(await self._control.remove(known_model(self._control, request.match_info["model"])))

    async def prefetch(self, request: web.Request) -> web.Response:
        model = known_model(self._control, request.match_info["model"])
        result = await self._control.prefetch(model, wait=_wait(request))
        if result is None:
            return web.json_response(plain(_coming(model)), status=_ACCEPTED)
        return answer(result)

    async def prefetch_several(self, request: web.Request) -> web.Response:
        """Order all at once; one that is refused does not keep the others from coming."""
        names = (await read_object(request, _EXAMPLE)).get("models")
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise RefusedError(f"the body is a JSON object like {_EXAMPLE}", Rejection.INVALID_REQUEST)
        models = list(dict.fromkeys(known_model(self._control, name) for name in names))
        wait = _wait(request)
        results = await asyncio.gather(*(self._control.prefetch(model, wait=wait) for model in models))
        return _together(models, results)


def _wait(request: web.Request) -> bool:
    told = request.query.get("wait", "true")
    if told not in ("true", "false"):
        raise RefusedError("wait is true or false", Rejection.INVALID_REQUEST)
    return told == "true"


def _coming(model: ModelName) -> Result:
    return Result(ok=True, detail=f"the weights of {model} are being fetched")


def _together(models: Sequence[ModelName], results: Sequence[Result | None]) -> web.Response:
    whole = [result or _coming(model) for model, result in zip(models, results, strict=True)]
    failed = [result for result in whole if not result.ok]
    first = failed[0] if failed else None
    summary = Result(ok=True, detail="; ".join(result.detail for result in whole))
    if first is not None:
        summary = Result(ok=False, detail="; ".join(result.detail for result in failed), reason=first.reason)
    status = _ACCEPTED if first is None and None in results else status_of(summary)
    each = {model: plain(result) for model, result in zip(models, whole, strict=True)}
    return web.json_response({**plain(summary), "models": each}, status=status)
