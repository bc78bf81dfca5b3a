"""Decides which header fields pass the front door, in either direction.

Hop-by-hop fields, and those that ``Connection`` nominates, belong to one connection and end here (RFC 9110 §7.6.1).
"""

from typing import Final

from aiohttp import hdrs
from multidict import CIMultiDict, CIMultiDictProxy

from swapd.proxy.errors import refuse
from swapd.proxy.request_id import HEADER as REQUEST_ID

_HOP_BY_HOP: Final = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)
#: written anew for the engine's connection
_REQUEST_ONLY: Final = frozenset(("host", "content-length", "expect", REQUEST_ID))
#: of the client's WebSocket handshake; the one with the engine has its own
_CORS: Final = "access-control-"
_HANDSHAKE: Final = "sec-websocket-"


def for_engine(received: CIMultiDictProxy[str], request_id: str, *, body_size: int | None = None) -> CIMultiDict[str]:
    """Return the fields to send to the engine; ``body_size`` is ``None`` for a request without a body.

    Raises ``RefusedError`` for a field that is not UTF-8: it could not be passed on unchanged.
    """
    dropped = _HOP_BY_HOP | _REQUEST_ONLY | _nominated(received)
    kept = CIMultiDict((name, value) for name, value in received.items() if name.lower() not in dropped)
    if any(not _is_utf8(value) for value in kept.values()):
        raise refuse("A header field is not encoded in UTF-8.")
    kept[REQUEST_ID] = request_id
    if body_size is not None:
        kept[hdrs.CONTENT_LENGTH] = str(body_size)
    return kept


def for_websocket(received: CIMultiDictProxy[str], request_id: str) -> CIMultiDict[str]:
    """Return the fields to send to the engine with a WebSocket handshake."""
    kept = for_engine(received, request_id)
    for name in [name for name in kept if name.lower().startswith(_HANDSHAKE)]:
        kept.popall(name, None)
    return kept


def for_client(received: CIMultiDictProxy[str], request_id: str) -> CIMultiDict[str]:
    """Return the fields of an engine's answer to send to the client, ``Content-Length`` among them.

    Not those by which an engine opens itself to web pages of any origin: the node is not the engine's to open.
    """
    dropped = _HOP_BY_HOP | _nominated(received) | {REQUEST_ID}
    kept = CIMultiDict(
        (name, _readable(value))
        for name, value in received.items()
        if (lower := name.lower()) not in dropped and not lower.startswith(_CORS)
    )
    kept[REQUEST_ID] = request_id
    return kept


def _nominated(received: CIMultiDictProxy[str]) -> frozenset[str]:
    lists = received.getall(hdrs.CONNECTION, ())
    return frozenset(name.strip().lower() for value in lists for name in value.split(","))


def _is_utf8(value: str) -> bool:
    return value.isascii() or not any("\udc80" <= char <= "\udcff" for char in value)


def _readable(value: str) -> str:
    """Return a value that can be written: bytes that are not UTF-8 are taken for Latin-1."""
    return value if _is_utf8(value) else value.encode("utf-8", "surrogateescape").decode("latin-1")
