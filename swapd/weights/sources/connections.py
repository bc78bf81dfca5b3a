"""Opens HTTP connections: the standard library's, made to keep secrets on their host and to be cut by any thread."""

import contextlib
import http.client
import socket
import ssl
from functools import cache, partial
from typing import Any
from urllib.request import (
    BaseHandler,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    Request,
    build_opener,
)

from typing_extensions import override


def opener(lines: list[socket.socket]) -> OpenerDirector:
    """Make an opener that collects the sockets it opens: the last one belongs to the answer."""
    handlers: tuple[BaseHandler, ...] = (_SameHost(), _PlainHandler(lines), _TlsHandler(lines))
    return build_opener(*handlers)


def cut(lines: list[socket.socket]) -> None:
    """Cut connections; whoever waits for their bytes wakes up."""
    for line in tuple(lines):
        with contextlib.suppress(OSError):
            # past the layer of TLS, which would say goodbye first and must not be used by two threads
            socket.socket.shutdown(line, socket.SHUT_RDWR)


class _SameHost(HTTPRedirectHandler):
    """Lets private headers follow a redirect inside one host, and no further."""

    @override
    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        if not newurl.startswith(("http://", "https://")):
            return None  # which makes the redirect an error
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and (following.type, following.host) == (req.type, req.host):
            for name, value in req.unredirected_hdrs.items():
                if name != "Host":
                    following.add_unredirected_header(name, value)
        return following

    @override
    def http_error_302(self, req: Request, fp: Any, code: int, msg: str, headers: Any) -> Any:
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except ValueError as error:  # what it is redirected to is no address
            fp.close()
            raise http.client.HTTPException(f"it redirects to no address: {error}") from error

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class _Head:
    """Reads the lines of an answer's head, and knows whether the last one came."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.last = b""

    def readline(self, limit: int = -1) -> bytes:
        self.last = self._file.readline(limit)
        return self.last

    def close(self) -> None:
        self._file.close()


class _Answer(http.client.HTTPResponse):
    """An answer that is none if its head broke off: the library takes that for its end."""

    @override
    def begin(self) -> None:
        file: Any = self.fp
        head: Any = _Head(file)
        self.fp = head
        try:
            super().begin()
        finally:
            if self.fp is head:
                self.fp = file
        if not head.last:
            raise http.client.HTTPException("it broke off in the middle of its head")


class _Plain(http.client.HTTPConnection):
    response_class = _Answer

    def __init__(self, *args: Any, lines: list[socket.socket], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seen = lines

    @override
    def connect(self) -> None:
        super().connect()
        self._seen.append(self.sock)


class _Tls(http.client.HTTPSConnection):
    response_class = _Answer

    def __init__(self, *args: Any, lines: list[socket.socket], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seen = lines

    @override
    def connect(self) -> None:
        super().connect()
        self._seen.append(self.sock)


class _PlainHandler(HTTPHandler):
    def __init__(self, lines: list[socket.socket]) -> None:
        super().__init__()
        self._lines = lines

    @override
    def http_open(self, req: Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_Plain, lines=self._lines), req)


class _TlsHandler(HTTPSHandler):
    def __init__(self, lines: list[socket.socket]) -> None:
        super().__init__(context=_tls())
        self._lines = lines

    @override
    def https_open(self, req: Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_Tls, lines=self._lines), req, context=_tls())


@cache
def _tls() -> ssl.SSLContext:
    """Read the system's certificates once: that takes longer than many a request."""
    return ssl.create_default_context()
