"""Reads the heads of requests, and takes only those of which every byte has one meaning.

One regular expression decides: a known method, a target in origin form, HTTP/1.1, field names that are tokens, values
of printable ASCII, no folded lines, no bare CR or LF, no NUL. Beyond that: one Host, at most one Content-Length and
that of digits, and no field that changes how the connection is read. Everything else may be good HTTP or an attempt to
smuggle a request; this module does not tell them apart. It says ``None``, and the connection goes to aiohttp, whose
parser is the only other one there is.
"""

import re
from typing import Final

from swapd.proxy.routes import Kind, Match, find_target

MAX_HEAD: Final = 32 << 10
"""Bytes; what is longer goes to aiohttp, which has limits of its own."""
_MAX_LENGTH_DIGITS: Final = 15
_INFERENCE: Final = Kind.INFERENCE

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_LINE: Final = rb"(POST|GET|HEAD|PUT|DELETE|OPTIONS|PATCH) (/[\x21-\x7e]*+) HTTP/1\.1"
_METHODS: Final = (b"POST ", b"GET ", b"HEAD ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ")
_FIRST_LINE: Final = re.compile(_LINE)
_HEAD: Final = re.compile(_LINE + rb"((?:\r\n" + _TOKEN + rb":[\t\x20-\x7e]*+)*+)\r\n\r\n")
_SPECIAL: Final = re.compile(
    rb"\r\n(host|content-length|connection|transfer-encoding|expect|upgrade|te|trailer|keep-alive|http2-settings"
    rb"|proxy-(?:connection|authenticate|authorization)|content-type|content-encoding|x-request-id|x-swapd-model"
    rb"|x-swapd-priority):[ \t]*([^\r\n]*)",
    re.IGNORECASE,
)
_DROPPED: Final = re.compile(
    rb"\r\n(?:host|connection|keep-alive|x-request-id|proxy-(?:connection|authenticate|authorization)):[^\r\n]*",
    re.IGNORECASE,
)
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)", re.IGNORECASE)
_ACCEPT_ENCODING: Final = re.compile(rb"\r\naccept-encoding:[^\r\n]*", re.IGNORECASE)
_DROPPED_NAMES: Final = frozenset((b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"))
_OTHER_FORMS: Final = (b"multipart/", b"audio/", b"image/", b"video/", b"application/octet-stream")
"""Media types that are not read as JSON, at least not always."""


class RequestHead:
    """What a head says but for the length of the body; what the class says holds until the head says otherwise.

    A client sends the same head again and again, with other lengths only: then it is not read again, see ``length_in``.
    """

    method: bytes
    method_name: str
    target: bytes
    #: the path without the query, and its route
    path: str
    match: Match | None
    #: a request of its kind is for an engine: a POST to one of the routes of ``routes.py``
    is_inference = False
    #: thereof, the model stands in the body, and there is nothing in the head that swapd heeds
    is_ordinary = False
    #: the answer to ``"stream": true`` in the body is a server-sent event stream
    streams_events = False
    #: fields for the engine, each with the line end before it; the digits of the length stand between the two
    before: bytes
    after: bytes
    keep_alive = True
    #: it is HEAD: the answer has no body
    bodiless = False
    #: value of ``x-request-id``, ``x-swapd-model`` and ``x-swapd-priority``
    client_id: str | None = None
    model: str | None = None
    priority: str | None = None
    #: bytes of the head as it was received, without the digits of the length
    size: int
    #: what was received before these digits, and after them
    _start: bytes
    _end: bytes
    #: what the engine at this host gets, see ``for_engine``
    host_line: bytes | None = None
    written: tuple[bytes, bytes]

    def for_engine(self, host_line: bytes) -> tuple[bytes, bytes]:
        """Return what an engine gets before the digits of the length, and after them up to the request's id."""
        if self.host_line is not host_line:
            self.host_line = host_line
            self.written = self.rewritten(host_line, self.target)
        return self.written

    def rewritten(self, host_line: bytes, target: bytes, *, readable: bool = False) -> tuple[bytes, bytes]:
        """Return the same with another target; ``readable``: the answer must not be compressed."""
        before, after = self.before, self.after
        if readable:
            before, after = _ACCEPT_ENCODING.sub(b"", before), _ACCEPT_ENCODING.sub(b"", after)
        return b"%b %b HTTP/1.1%b%b" % (self.method, target, host_line, before), after + b"\r\nx-request-id: "

    def length_in(self, data: bytes) -> bytes | None:
        """Return the digits of the length if ``data`` begins with this head, whatever they are; else ``None``."""
        start = self._start
        if not start or not data.startswith(start):
            return None
        at = len(start)
        end = data.find(b"\r", at, at + _MAX_LENGTH_DIGITS + 1)
        if end < 0 or not data.startswith(self._end, end):
            return None
        digits = data[at:end]
        return digits if digits.isdigit() else None

    def received(self, digits: bytes) -> bytes:
        """Return the head as it was received with this length."""
        return self._start + digits + self._end

    def split(self, received: bytes, fields: bytes) -> None:
        """Take the head as it was received, and its fields for the engine, apart at the length."""
        found, left = _LENGTH.search(received), _LENGTH.search(fields)
        if found is None or left is None:
            self._start = self._end = self.after = b""
            self.before, self.size = fields, len(received)
        else:
            self._start, self._end = received[: found.start(1)], received[found.end(1) :]
            self.before, self.after = fields[: left.start(1)], fields[left.end(1) :]
            self.size = len(self._start) + len(self._end)


def read_head(data: bytes) -> tuple[RequestHead, bytes] | None:
    """Return the head at the beginning of ``data``, which holds all of it, and the digits of its length, if any.

    ``None``: it is not of the plain form.
    """
    found = _HEAD.match(data)
    if found is None:
        return None
    head = RequestHead()
    head.method, head.target, fields = found.groups()
    special = _SPECIAL.findall(fields)
    hosts = lengths = dropped = 0
    digits = b""
    for name, value in special:
        key = name.lower()
        if key == b"host":
            hosts += 1
        elif key == b"content-length":
            lengths += 1
            digits = value.rstrip(b" \t")
            if not digits.isdigit() or len(digits) > _MAX_LENGTH_DIGITS:
                return None
        elif key == b"content-type":
            if value.lower().startswith(_OTHER_FORMS):
                return None
        elif key in _DROPPED_NAMES:
            dropped += 1
        elif not _take(head, key, value.rstrip(b" \t")):
            return None
        else:
            dropped += key != b"x-swapd-model"
    if hosts != 1 or lengths > 1 or b"#" in head.target or head.target.endswith(b"?"):
        return None
    if not dropped and fields[2:7].lower() == b"host:":
        # the common case, a fifth of the cost
        end = fields.find(b"\r\n", 2)
        kept = fields[end:] if end > 0 else b""
    else:
        kept = _DROPPED.sub(b"", fields)
    head.split(found[0], kept)
    head.method_name = head.method.decode("ascii")
    head.bodiless = head.method == b"HEAD"
    head.path, head.match = find_target(head.target)
    if head.match is not None:
        head.is_inference = head.match.route.kind is _INFERENCE and head.method == b"POST"
        head.is_ordinary = head.is_inference and head.match.path_name is None and head.priority is None
        head.streams_events = head.match.route.sse
    return head, digits


def _take(head: RequestHead, key: bytes, value: bytes) -> bool:
    """Note a field that is seldom there; ``False`` if it takes the request out of the plain form."""
    text = value.decode("ascii")
    match key:
        case b"connection":
            head.keep_alive = text.lower() != "close"
            return text.lower() in {"keep-alive", "close"}
        case b"x-request-id" if head.client_id is None:
            head.client_id = text
        case b"x-swapd-priority" if head.priority is None:
            head.priority = text
        case b"x-swapd-model":
            head.model = text
        case _:
            return False
    return True


def could_begin(data: bytes) -> bool:
    """Tell whether ``data``, without the empty line that ends a head, may still become a head of the plain form."""
    return len(data) <= MAX_HEAD and data.count(b"\n") == data.count(b"\r\n") and b"\0" not in data


def could_follow(data: bytes) -> bool:
    """Tell whether ``data``, which came with a request and beyond its body, is or may become one of the plain form."""
    data = data.lstrip(b"\r\n")
    if b"\r\n\r\n" in data:
        return read_head(data) is not None
    line, end, _ = data.partition(b"\r\n")
    if end:
        return _FIRST_LINE.fullmatch(line) is not None and could_begin(data)
    return any(line.startswith(method) or method.startswith(line) for method in _METHODS) and could_begin(data)
