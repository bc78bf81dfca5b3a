"""Sends one small HTTP/1.1 request on a connection of its own and reads a bounded answer.

Enough for probes every few milliseconds and for warm-ups: no pool, no redirects, no TLS. Every failure of transport
or protocol is an ``UnreachableError``; a time limit is the caller's (``asyncio.timeout``).
"""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_HEAD_LIMIT = 65_536
_BODY_LIMIT = 65_536


class UnreachableError(Exception):
    """No answer: refused, reset, closed early, or not HTTP."""


class NotAskedError(UnreachableError):
    """The question was never put: this process is out of descriptors or memory, which says nothing of the server."""


_OWN_TROUBLE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer; ``body`` is cut at 64 KiB."""

    status: int
    body: bytes


async def request(host: str, port: int, *, method: str, path: str, body: bytes = b"") -> Reply:
    """Send a request and return the answer; raises ``UnreachableError``. A body is JSON."""
    async with _connection(host, port) as (reader, writer):
        try:
            writer.write(_head(host, port, method=method, path=path, body=body) + body)
            await writer.drain()
            return await _reply(reader)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            # the reader keeps the error that ended it, whose traceback would keep the reader
            raise UnreachableError(str(error) or type(error).__name__) from error.with_traceback(None)


async def accepts(host: str, port: int) -> bool:
    """Whether something listens there; raises ``TimeoutError`` only by the caller's limit."""
    try:
        async with _connection(host, port):
            return True
    except NotAskedError:
        return True  # to be asked again
    except UnreachableError:
        return False


@asynccontextmanager
async def _connection(host: str, port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    try:
        reader, writer = await asyncio.open_connection(host, port, limit=_HEAD_LIMIT)
    except OSError as error:
        kind = NotAskedError if error.errno in _OWN_TROUBLE else UnreachableError
        raise kind(str(error)) from error
    try:
        yield reader, writer
    finally:
        # nothing left unsent matters: drop it without waiting for the peer
        writer.transport.abort()


def _head(host: str, port: int, *, method: str, path: str, body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", "Accept: */*", "Connection: close"]
    if body or method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode()


async def _reply(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    version, status, *_ = first.split(" ", 2)
    if not version.startswith("HTTP/1."):
        raise ValueError("the answer is not HTTP")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = await _chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(min(int(headers["content-length"]), _BODY_LIMIT))
    else:
        body = await _until_end(reader)
    return Reply(int(status), body)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while len(body) < _BODY_LIMIT:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        if size == 0:
            break
        piece = await reader.readexactly(min(size, _BODY_LIMIT))
        body += piece
        if len(piece) == size:
            await reader.readexactly(2)
    return body[:_BODY_LIMIT]


async def _until_end(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while len(body) < _BODY_LIMIT and (piece := await reader.read(_BODY_LIMIT - len(body))):
        body += piece
    return body
