"""Says how an order ended, as the admin socket answers it."""

import json
from collections.abc import Generator
from typing import Any, Final

import msgspec
from aiohttp import web

from swapd.admin.control import Control, Result
from swapd.aio.turns import in_turns
from swapd.core.ids import ModelName
from swapd.core.reasons import Rejection

_STATUS: Final = {Rejection.UNKNOWN_MODEL: 404, Rejection.INVALID_REQUEST: 400}
"""A refused order is 409 (the node is in another state than it takes), but for these."""


class RefusedError(Exception):
    """A request that cannot be carried out as it is."""

    def __init__(self, detail: str, reason: Rejection) -> None:
        super().__init__(detail)
        self.result = Result(ok=False, detail=detail, reason=reason)


async def document(content: dict[str, object]) -> web.Response:
    """Return the response with a document, which may be large."""
    return web.Response(body=await in_turns(_written(content)), content_type="application/json")


def _written(content: dict[str, object]) -> Generator[None, None, bytes]:
    """Write a document as JSON in small steps, one for each item of its lists."""
    shown: dict[str, object] = {}
    for key, value in content.items():
        if isinstance(value, list):
            shown[key] = items = []
            for item in value:
                items.append(_as_json(item))
                yield
        else:
            shown[key] = _as_json(value)
    return msgspec.json.encode(shown)


def _as_json(value: object) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except UnicodeEncodeError:  # half a surrogate pair: a path that is no UTF-8
        return msgspec.Raw(json.dumps(value))


def answer(result: Result) -> web.Response:
    """Return the response for the end of an order."""
    return web.json_response(plain(result), status=status_of(result))


def plain(result: Result) -> dict[str, object]:
    """Return a result as JSON types."""
    reason = None if result.reason is None else result.reason.value
    return {"ok": result.ok, "detail": result.detail, "reason": reason}


def status_of(result: Result) -> int:
    """Return the HTTP status of a result."""
    return 200 if result.ok else 409 if result.reason is None else _STATUS.get(result.reason, 409)


def known_model(control: Control, name: str) -> ModelName:
    """Return the model that a name or alias stands for. Raises ``RefusedError``."""
    model = control.resolve(name)
    if model is None:
        raise RefusedError(f"no model and no alias is named {name!r}; see swapd status", Rejection.UNKNOWN_MODEL)
    return model


async def read_object(request: web.Request, example: str) -> dict[str, Any]:
    """Read the JSON object of a request, ``{}`` without a body. Raises ``RefusedError``."""
    raw = await request.read()
    try:
        body = json.loads(raw) if raw else {}
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise RefusedError(f"the body is a JSON object like {example}", Rejection.INVALID_REQUEST)
    return body
