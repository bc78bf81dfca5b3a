"""Writes the heads of answers as bytes: those of engines, and whole answers of swapd's own."""

import functools
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from time import time
from typing import Final

from swapd.core.commands import Grant
from swapd.proxy.forward import EVENT_STREAM, STREAMS, start_headers
from swapd.proxy.front.answers import AnswerHead, media_type, without

_CLOSE: Final = b"\r\nConnection: close"
_PHRASES: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


class Date:
    """The current time as a header line, written anew once a second."""

    __slots__ = ("_line", "_second")

    def __init__(self) -> None:
        self._second = -1
        self._line = b""

    def line(self) -> bytes:
        """Return the line, with the line end before it."""
        second = int(time())
        if second != self._second:
            self._second = second
            self._line = b"\r\nDate: " + formatdate(second, usegmt=True).encode()
        return self._line


@functools.lru_cache(maxsize=64)
def is_stream(content_type: bytes) -> bool:
    """Tell whether an answer of this type comes in events or lines that are to be shown as they come."""
    return media_type(content_type) in STREAMS


def engine_head(
    head: AnswerHead, request_id: bytes, *, date: Date, grant: Grant | None, bodiless: bool, keep_alive: bool
) -> bytes:
    """Return the head of an engine's answer for the client.

    A body without a known length goes out in chunks, also where the engine marks its end by closing.
    """
    told = {} if grant is None or not (grant.waited or grant.cold_start) else start_headers(grant)
    if told or bodiless or not keep_alive:
        before, after = _around_id(head, told, bodiless=bodiless, keep_alive=keep_alive)
    else:
        # the common case: the same for every request that gets this answer
        before, after = head.plain or plain(head)
    return b"%b%b%b%b\r\n\r\n" % (before, request_id, after, b"" if head.has_date else date.line())


def plain(head: AnswerHead) -> tuple[bytes, bytes]:
    """Return what stands before and after the id of a request of which nothing special is to be told."""
    head.plain = _around_id(head, {}, bodiless=False, keep_alive=True)
    return head.plain


def _around_id(head: AnswerHead, told: Mapping[str, str], *, bodiless: bool, keep_alive: bool) -> tuple[bytes, bytes]:
    """Return what stands before and after the request's id; ``told``: how its start went."""
    fields = without(head.fields, told)
    after = b"".join(f"\r\n{name}: {value}".encode() for name, value in told.items())
    if is_stream(head.content_type):
        fields = without(fields, ("x-accel-buffering",))
        after += b"\r\nx-accel-buffering: no"
    if head.status == 204:
        fields = without(fields, ("content-length",))
    elif head.length is None and not bodiless and head.has_body:
        after += b"\r\nTransfer-Encoding: chunked"
    if not head.has_server:
        after += b"\r\nServer: swapd"
    if not keep_alive:
        after += _CLOSE
    return b"HTTP/1.1 %d %b%b\r\nx-request-id: " % (head.status, head.reason, fields), after


def stream_head(request_id: bytes, *, date: Date, keep_alive: bool) -> bytes:
    """Return the head of an event stream that begins before there is an answer."""
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nCache-Control: no-cache\r\nServer: swapd\r\nx-accel-buffering: no"
        b"\r\nx-request-id: %b\r\nTransfer-Encoding: chunked%b%b\r\n\r\n"
        % (EVENT_STREAM.encode(), request_id, date.line(), b"" if keep_alive else _CLOSE)
    )


def own(status: int, headers: Mapping[str, str], body: bytes, *, date: Date, bodiless: bool, keep_alive: bool) -> bytes:
    """Return a whole answer of swapd's own, in JSON; ``bodiless`` for one to HEAD."""
    head = b"HTTP/1.1 %d %b" % (status, _PHRASES.get(status, b""))
    fields = b"".join(f"\r\n{name}: {value}".encode() for name, value in headers.items())
    kind = b"\r\nContent-Type: application/json\r\nContent-Length: %d" % len(body)
    close = b"" if keep_alive else _CLOSE
    return head + fields + kind + date.line() + close + b"\r\n\r\n" + (b"" if bodiless else body)
