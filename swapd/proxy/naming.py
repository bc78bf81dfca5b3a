"""Decides where a request names its model.

In this order: the path (on routes that have it there), the JSON body or form, the query parameter ``model``, the header
``x-swapd-model``. The body comes before query and header because the engine reads it, too; they serve requests whose
body has no such field. With no name there is no guess, not even on a node with one model.
"""

from typing import Final
from urllib.parse import unquote

from aiohttp import hdrs, web
from multidict import MultiMapping

from swapd.core.catalog import Priority
from swapd.proxy.body import Body
from swapd.proxy.errors import invalid, refuse
from swapd.proxy.failure import RefusedError
from swapd.proxy.model_name import BodyFields, checked_name, read_json
from swapd.proxy.multipart import read_form

MODEL_HEADER: Final = "x-swapd-model"
PRIORITY_HEADER: Final = "x-swapd-priority"
_BINARY: Final = ("audio/", "image/", "video/", "application/octet-stream")
"""Media types whose bodies are not JSON, unless they look like an object: some clients name no better type."""


def name_in_path(raw: str) -> str:
    """Return the checked name from a path segment."""
    return checked_name(unquote(raw, errors="replace"))


def name_in_request(request: web.BaseRequest, body: Body) -> BodyFields:
    """Return the name and the stream flag of a request whose path has none; raises ``RefusedError``."""
    found = _in_body(request, body) if body.size else BodyFields(None, stream=False)
    if found.model is not None:
        return found
    headers = request.headers.getall(MODEL_HEADER, ())
    return BodyFields(name_beside_body(request.query, headers[-1] if headers else None), found.stream)


def name_beside_body(query: MultiMapping[str], header: str | None) -> str:
    """Return the checked name from the query or the header ``x-swapd-model``; raises ``RefusedError``."""
    for value in (*query.getall("model", ())[-1:], *(() if header is None else (header,))):
        return checked_name(value)
    raise refuse(
        "The request names no model: give it as the field 'model' of the JSON body or form, "
        f"as the query parameter 'model', or in the header {MODEL_HEADER}.",
        param="model",
    )


def priority_named(value: str | None) -> Priority:
    """Return the class that the client asks for; it can only lower the model's. Raises ``RefusedError``."""
    if value is None:
        return Priority.HIGH
    try:
        return Priority[value.strip().upper()]
    except KeyError:
        raise refuse(f"The header {PRIORITY_HEADER} must be high, normal or low.") from None


def _in_body(request: web.BaseRequest, body: Body) -> BodyFields:
    content_type = request.headers.get(hdrs.CONTENT_TYPE, "")
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type.startswith(_BINARY) and not body.data[:64].lstrip().startswith(b"{"):
        return BodyFields(None, stream=False)
    if request.headers.get(hdrs.CONTENT_ENCODING, "identity").strip().lower() not in {"", "identity"}:
        failure = invalid("A compressed body is not accepted here; send it plain.", status=415, code="content_encoding")
        raise RefusedError(failure)
    if media_type == "multipart/form-data":
        return BodyFields(read_form(content_type, body.data), stream=False)
    return read_json(body.data)
