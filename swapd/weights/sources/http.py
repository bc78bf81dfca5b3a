"""Reads a file by HTTP, in ranges, on blocking sockets.

aiohttp would do its work on an event loop and copy each piece several times; a thread that reads from a socket into its
own buffer lets go of the interpreter while it waits and while the kernel copies. Redirects, proxies from the
environment and TLS are the standard library's.
"""

import contextlib
import http.client
import re
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request

from typing_extensions import override

from swapd.core.ids import Bytes
from swapd.weights.sources.base import ChangedError, Listing, RemoteFile, Source, SourceError, revision_of
from swapd.weights.sources.connections import cut, opener

_AGENT: Final = "swapd"
_CONTENT_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_LENGTH: Final = re.compile(r"\d{1,18}")
#: answers that may be others later
_PASSING: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_OK: Final = 200
_PARTIAL: Final = 206
_EMPTY: Final = 416
_LEAST_BYTES: Final = 64 * 1024
"""A connection that brings less in the time in which it must not be silent has broken off, too."""
_MOMENT_S: Final = 0.25
"""So long are bytes collected that come one by one."""
_MOST_PATIENCE_S: Final = 60.0


class HttpSource(Source):
    """``https://…`` or ``http://…``: one file."""

    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        self._url = url
        self._timeout_s = timeout_s

    @override
    def list(self) -> Listing:
        """Ask for the first byte: unlike HEAD, that is answered by every server and signed for by every signature."""
        answer = ask(self._url, {"Range": "bytes=0-0"}, timeout_s=self._timeout_s, allowed=(_EMPTY,))
        with contextlib.closing(answer):
            whole = _CONTENT_RANGE.fullmatch(answer.header("Content-Range"))
            told = whole[3] if whole else "0" if answer.status == _EMPTY else answer.header("Content-Length")
            if _LENGTH.fullmatch(told) is None:
                raise SourceError(f"{shown(self._url)} does not say how large it is", permanent=True)
            tag = answer.header("ETag") or answer.header("Last-Modified")
            name = unquote(urlsplit(self._url).path).rpartition("/")[2] or "weights"
            ranges = whole is not None
            file = RemoteFile(name, Bytes(int(told)), self._url, tag, ranges=ranges)
        return Listing(revision_of([file]), (file,))

    @override
    def open(self, file: RemoteFile, start: int, stop: int) -> "HttpStream":
        return open_range(file, start, stop, timeout_s=self._timeout_s)


class HttpStream:
    """The body of one answer; used by one thread, closed by any."""

    def __init__(
        self, response: http.client.HTTPResponse, lines: list[socket.socket], url: str, timeout_s: float
    ) -> None:
        self._response = response
        self._lines = lines
        self._url = url
        self._timeout_s = timeout_s
        self._left = response.length
        #: since the least number of bytes was reached last
        self._waited_s, self._came = 0.0, 0
        self.status = response.status

    def header(self, name: str) -> str:
        """Return a header's value, or an empty string."""
        return self._response.headers.get(name, "").strip()

    def readinto(self, buffer: memoryview) -> int:
        """Read the next bytes; 0 at the end."""
        began, count = time.monotonic(), 0
        try:
            while count < len(buffer):
                here = self._some(buffer[count:])
                count += here
                took = time.monotonic() - began
                if not here or took > _MOMENT_S:
                    break
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            # the last two: closed by another thread in the middle of the call
            raise SourceError(f"{shown(self._url)} broke off: {error}") from error
        self._watch(count, time.monotonic() - began)
        return count

    def _some(self, buffer: memoryview) -> int:
        """Read what has come of the body, at least a byte; 0 at its end. The library's ``readinto`` waits for all."""
        if self._left is None:
            data = self._response.read1(len(buffer))
            buffer[: len(data)] = data
            return len(data)
        if self._left == 0:
            return 0
        count = self._response.fp.readinto1(buffer[: self._left])
        self._left -= count
        return count

    def _watch(self, count: int, took_s: float) -> None:
        """Find out whether a source keeps a connection busy with next to nothing."""
        self._came += count
        self._waited_s += took_s
        if self._came >= _LEAST_BYTES:
            self._waited_s, self._came = 0.0, 0
        elif count and self._waited_s > self._timeout_s:
            raise SourceError(f"{shown(self._url)} sent {self._came} bytes in {self._waited_s:.0f} s")

    def close(self) -> None:
        """Cut the connection; a thread that waits for its bytes wakes up."""
        cut(self._lines)
        with contextlib.suppress(OSError, ValueError):
            self._response.close()


def open_range(
    file: RemoteFile, start: int, stop: int, *, timeout_s: float, private: Mapping[str, str] | None = None
) -> HttpStream:
    """Ask for a range of a file that is still the same. Raises ``SourceError``, ``ChangedError``."""
    headers = {}
    if file.ranges:
        headers["Range"] = f"bytes={start}-{stop - 1}"
        if file.tag and not file.tag.startswith("W/"):
            headers["If-Range"] = file.tag  # another version is answered in full
    answer = ask(file.where, headers, timeout_s=timeout_s, private=private, allowed=(_EMPTY,))
    try:
        _expect(answer, file, start)
    except SourceError:
        answer.close()
        raise
    return answer


def _expect(answer: HttpStream, file: RemoteFile, start: int) -> None:
    tag = answer.header("ETag") or answer.header("Last-Modified")
    changed = ChangedError(f"{shown(file.where)} has changed while it was fetched")
    if file.tag and tag != file.tag:
        raise changed
    if answer.status == _PARTIAL:
        told = _CONTENT_RANGE.fullmatch(answer.header("Content-Range"))
        if told is None or int(told[1]) != start:
            raise SourceError(f"{shown(file.where)} answered with another range than was asked for")
        if int(told[3]) != file.size:
            raise changed
    elif answer.status == _OK and answer.header("Content-Length") not in ("", str(file.size)):
        raise changed
    elif answer.status == _OK and file.ranges:
        raise ChangedError(f"{shown(file.where)} answered with the whole file instead of a range")
    elif answer.status != _OK or start != 0:
        raise changed


def ask(
    url: str,
    headers: Mapping[str, str],
    *,
    timeout_s: float,
    private: Mapping[str, str] | None = None,
    allowed: tuple[int, ...] = (),
) -> HttpStream:
    """Send a GET; ``private`` headers stay with the URL's own host. Raises ``SourceError``."""
    lines: list[socket.socket] = []
    told = {"User-Agent": _AGENT, "Accept-Encoding": "identity", **headers}
    request = Request(_without_credentials(url), headers=told)  # noqa: S310 - only http comes here, see the registry
    for name, value in (*_credentials(url).items(), *(private or {}).items()):
        request.add_unredirected_header(name, value)
    late = threading.Timer(2 * timeout_s, cut, (lines,))  # a head that comes byte by byte is never silent
    late.daemon = True
    late.start()
    try:
        response = opener(lines).open(request, timeout=timeout_s)
    except HTTPError as error:
        if error.code in allowed and isinstance(error.fp, http.client.HTTPResponse):
            return HttpStream(error.fp, lines, url, timeout_s)
        error.close()
        passing = error.code in _PASSING
        after_s = patience_s(error.headers.get("Retry-After"), error.headers.get("Date"))
        sentence = f"{shown(url)} answered {error.code} {error.reason}"
        raise SourceError(sentence, permanent=not passing, after_s=after_s) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise SourceError(f"{shown(url)} cannot be reached: {reason}") from error
    finally:
        late.cancel()
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        response.close()
        raise SourceError(f"{shown(url)} answered in the encoding {encoding}, unasked", permanent=True)
    return HttpStream(response, lines, url, timeout_s)


def patience_s(told: str | None, date: str | None) -> float:
    """Return how long a busy source wants to be left alone, within reason; 0: it does not say.

    ``told``: its header ``Retry-After``; ``date``: its own clock, from the same answer.
    """
    try:
        if _LENGTH.fullmatch(told or ""):
            seconds = float(told or "")
        else:
            seconds = (parsedate_to_datetime(told or "") - parsedate_to_datetime(date or "")).total_seconds()
    except (TypeError, ValueError):
        return 0.0
    return min(max(0.0, seconds), _MOST_PATIENCE_S)


def shown(url: str) -> str:
    """Return a URL without what must not stand in a log: credentials and the query, which may be a signature."""
    if url.startswith("hf://"):
        return url  # its @ is before a revision
    parts = urlsplit(_without_credentials(url))
    return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, parts.query, ""))


def _credentials(url: str) -> dict[str, str]:
    told = urlsplit(url).netloc.rpartition("@")[0]
    return {"Authorization": f"Basic {b64encode(unquote(told).encode()).decode()}"} if told else {}
