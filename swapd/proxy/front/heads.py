"""Reads the heads of requests, and takes only those of which every byte has one meaning.

One regular expression decides: a known method, a target in origin form, HTTP/1.1, field names that are tokens, values
of printable ASCII, no folded lines, no bare CR or LF, no NUL. Beyond that: one Host, at most one Content-Length and
that of digits, and no field that changes how the connection is read. Everything else may be good HTTP or an attempt to
smuggle a request; this module does not tell them apart. It says ``None``, and the connection goes to aiohttp, whose
parser is the only other one there is.
"""

import re
from collections.abc import Callable
from typing import Final

MAX_HEAD: Final = 32 << 10
"""Bytes; what is longer goes to aiohttp, which has limits of its own."""
_MAX_LENGTH_DIGITS: Final = 15

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_HEAD: Final = re.compile(
    rb"(POST|GET|HEAD|PUT|DELETE|OPTIONS|PATCH) (/[\x21-\x7e]*+) HTTP/1\.1"
    rb"((?:\r\n" + _TOKEN + rb":[\t\x20-\x7e]*+)*+)\r\n\r\n"
)
_SPECIAL: Final = re.compile(
    rb"\r\n(host|content-length|connection|transfer-encoding|expect|upgrade|te|trailer|keep-alive|http2-settings"
    rb"|proxy-[a-z-]+|content-type|content-encoding|x-request-id|x-swapd-model|x-swapd-priority"
    rb"):[ \t]*([^\r\n]*)",
    re.IGNORECASE,
)
_DROPPED: Final = re.compile(
    rb"\r\n(?:host|content-length|connection|keep-alive|x-request-id"
    rb"|proxy-(?:connection|authenticate|authorization)):[^\r\n]*",
    re.IGNORECASE,
)
_ACCEPT_ENCODING: Final = re.compile(rb"\r\naccept-encoding:[^\r\n]*", re.IGNORECASE)
_OTHER_FORMS: Final = (b"multipart/", b"audio/", b"image/", b"video/", b"application/octet-stream")
"""Media types that are not read as JSON, at least not always."""


class RequestHead:
    """One request's head, as far as anything here needs it."""

    __slots__ = (
        "client_id",
        "fields",
        "has_body",
        "keep_alive",
        "length",
        "method",
        "model",
        "priority",
        "size",
        "target",
    )

    def __init__(self, method: bytes, target: bytes, size: int) -> None:
        self.method = method
        self.target = target
        #: bytes of the head itself
        self.size = size
        #: fields for the engine, each with the line end before it
        self.fields = b""
        #: of the body
        self.length = 0
        #: the request says that it has a body, perhaps an empty one
        self.has_body = False
        self.keep_alive = True
        #: value of ``x-request-id``, ``x-swapd-model`` and ``x-swapd-priority``
        self.client_id: str | None = None
        self.model: str | None = None
        self.priority: str | None = None


def read_head(data: bytes) -> RequestHead | None:
    """Return the head at the beginning of ``data``, which holds all of it; ``None`` if it is not of the plain form."""
    found = _HEAD.match(data)
    if found is None:
        return None
    method, target, fields = found.groups()
    head = RequestHead(method, target, found.end())
    hosts = 0
    for name, value in _SPECIAL.findall(fields):
        key = name.lower()
        if key == b"host":
            hosts += 1
            continue
        take = _FIELDS.get(key, _drop)
        if not take(head, value.rstrip(b" \t")):
            return None
    if hosts != 1 or b"#" in target:
        return None
    head.fields = _DROPPED.sub(b"", fields)
    return head


def could_begin(data: bytes) -> bool:
    """Tell whether ``data``, without the empty line that ends a head, may still become a head of the plain form."""
    return len(data) <= MAX_HEAD and data.count(b"\n") == data.count(b"\r\n") and b"\0" not in data


def without_accept_encoding(fields: bytes) -> bytes:
    """Return the fields for an engine whose answer has to be readable."""
    return _ACCEPT_ENCODING.sub(b"", fields)


def _length(head: RequestHead, value: bytes) -> bool:
    if head.has_body or not value.isdigit() or len(value) > _MAX_LENGTH_DIGITS:
        return False
    head.length = int(value)
    head.has_body = True
    return True


def _connection(head: RequestHead, value: bytes) -> bool:
    wish = value.lower()
    if wish == b"close":
        head.keep_alive = False
    return wish in {b"keep-alive", b"close"}


def _client_id(head: RequestHead, value: bytes) -> bool:
    if head.client_id is not None:
        return False
    head.client_id = value.decode("ascii")
    return True


def _model(head: RequestHead, value: bytes) -> bool:
    head.model = value.decode("ascii")
    return True


def _priority(head: RequestHead, value: bytes) -> bool:
    if head.priority is not None:
        return False
    head.priority = value.decode("ascii")
    return True


def _media_type(_head: RequestHead, value: bytes) -> bool:
    return not value.lower().startswith(_OTHER_FORMS)


def _refuse(_head: RequestHead, _value: bytes) -> bool:
    return False


def _drop(_head: RequestHead, _value: bytes) -> bool:
    return True


_FIELDS: Final[dict[bytes, Callable[[RequestHead, bytes], bool]]] = {
    b"content-length": _length,
    b"connection": _connection,
    b"x-request-id": _client_id,
    b"x-swapd-model": _model,
    b"x-swapd-priority": _priority,
    b"content-type": _media_type,
    **dict.fromkeys(
        (b"transfer-encoding", b"content-encoding", b"expect", b"upgrade", b"te", b"trailer", b"http2-settings"),
        _refuse,
    ),
}
