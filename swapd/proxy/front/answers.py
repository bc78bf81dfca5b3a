"""Reads the head of an engine's answer once: how long the answer is, and what of its head the client gets.

An answer whose length can be read in two ways is refused, and so is a head that is not strictly HTTP. Fields of the one
connection, those that ``Connection`` nominates, and those that would open the node to web pages of other origins end
here, as on the other path (``headers.py``).
"""

import functools
import re
from collections.abc import Iterable
from typing import Final

from swapd.proxy.relay import MalformedAnswerError

MAX_HEAD: Final = 64 << 10
_MAX_LENGTH_DIGITS: Final = 15
REPEATED: Final = 1 << 10
"""Bytes; heads up to this size are remembered."""

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_HEAD: Final = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*+))?"
    rb"((?:\r\n" + _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*+)*+)\r\n\r\n"
)
_SPECIAL: Final = re.compile(
    rb"\r\n(content-length|transfer-encoding|connection|keep-alive|proxy-[a-z-]+|te|trailer|upgrade|x-request-id"
    rb"|access-control-[^:]*|content-type|content-encoding|server|date):[ \t]*([^\r\n]*)",
    re.IGNORECASE,
)
_DROPPED: Final = re.compile(
    rb"\r\n(?:transfer-encoding|connection|keep-alive|proxy-(?:connection|authenticate|authorization)|te|trailer|upgrade"
    rb"|x-request-id|access-control-[^:]*):[^\r\n]*",
    re.IGNORECASE,
)


class AnswerHead:
    """One answer's head, shared by equal ones. What the class says holds until the head says otherwise."""

    status: int
    reason: bytes
    #: bytes of the head itself
    size: int
    #: for the client, each with the line end before it; the length among them, the coding not
    fields: bytes
    #: of the body; ``None``: not said
    length: int | None = None
    chunked = False
    content_type = b""
    content_encoding = b""
    has_date = False
    has_server = False
    #: the engine leaves the connection open after this answer
    reusable = True
    #: a body follows, unless the request was HEAD
    has_body = True
    #: it is no interim one, and its body has a length
    is_plain = False
    #: for the client, before and after the id of a request that was neither held up nor is the last of its connection;
    #: written by ``replies.py`` when it is needed
    plain: tuple[bytes, bytes] | None = None


def read_answer_head(data: bytes) -> AnswerHead | None:
    """Return the head at the beginning of ``data``, ``None`` if it is not complete; raises ``MalformedAnswerError``."""
    found = _HEAD.match(data)
    if found is None:
        if len(data) > MAX_HEAD or b"\r\n\r\n" in data or not b"HTTP/1.".startswith(data[:7]):
            raise MalformedAnswerError("it is not sound HTTP")
        return None
    minor, status, reason, fields = found.groups()
    head = AnswerHead()
    head.status = int(status)
    head.reason = reason or b""
    head.size = found.end()
    if head.status in {204, 304}:
        head.has_body = False
    if minor == b"0":
        head.reusable = False
    odd = False
    nominated = b""
    for name, value in _SPECIAL.findall(fields):
        key = name.lower()
        if key == b"content-length":
            _note_length(head, value.rstrip(b" \t"))
        elif key == b"content-type":
            head.content_type = value
        elif key == b"date":
            head.has_date = True
        elif key == b"server":
            head.has_server = True
        elif key == b"content-encoding":
            head.content_encoding = value
        else:
            odd = True
            if key == b"connection":
                nominated += b"," + value.lower()
            elif key == b"transfer-encoding":
                if head.chunked or value.rstrip(b" \t").lower() != b"chunked":
                    raise MalformedAnswerError("its Transfer-Encoding is not chunked")
                head.chunked = True
    if head.chunked and head.length is not None:
        raise MalformedAnswerError("it has both Content-Length and Transfer-Encoding")
    head.is_plain = head.status >= 200 and head.has_body and head.length is not None
    head.fields = _passed_on(head, fields, nominated) if odd or not fields.isascii() else fields
    return head


@functools.lru_cache(maxsize=256)
def read_short(start: bytes) -> AnswerHead | None:
    """Return the head that ends after ``start``: an engine says the same again and again, at least within a second."""
    return read_answer_head(start + b"\r\n\r\n")


def _note_length(head: AnswerHead, value: bytes) -> None:
    if not value.isdigit() or len(value) > _MAX_LENGTH_DIGITS or head.length is not None:
        raise MalformedAnswerError("its Content-Length cannot be read")
    head.length = int(value)


def _passed_on(head: AnswerHead, fields: bytes, nominated: bytes) -> bytes:
    """Return the fields without those that end here, in an encoding that can be read."""
    fields = _DROPPED.sub(b"", fields)
    names = {name.strip() for name in nominated.split(b",")} - {b"", b"keep-alive"}
    if b"close" in names:
        head.reusable = False
    if names or not fields.isascii():
        lines = fields.split(b"\r\n")[1:]
        kept = [_readable(line) for line in lines if line.partition(b":")[0].lower() not in names]
        fields = b"".join(b"\r\n" + line for line in kept)
    return fields


@functools.lru_cache(maxsize=64)
def media_type(content_type: bytes) -> str:
    """Return a media type without its parameters."""
    return content_type.partition(b";")[0].strip().lower().decode("latin-1")


def without(fields: bytes, names: Iterable[str]) -> bytes:
    """Return the fields but for those with these names."""
    for name in names:
        mark = name.encode()
        if mark in fields.lower():
            fields = re.sub(rb"\r\n" + re.escape(mark) + rb":[^\r\n]*", b"", fields, flags=re.IGNORECASE)
    return fields


def _readable(line: bytes) -> bytes:
    """Return a field whose bytes are UTF-8: others are taken for Latin-1."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1").encode()
    return line
