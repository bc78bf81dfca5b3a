"""A small HTTP/1.1 and WebSocket server on asyncio streams: the ground that the fake engines stand on.

Standard library only, so that a fake starts in a few hundredths of a second.
"""

import asyncio
import base64
import hashlib
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 500: "Internal Server Error", 503: "Service Unavailable"}
WEBSOCKET_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@dataclass(slots=True)
class Request:
    """One request, and what became of it."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    #: pieces of the answer that were sent
    sent: int = 0
    #: the client left before the end
    aborted: bool = False
    ended: bool = False

    def json(self) -> dict[str, Any]:
        """Return the body's object; empty for anything else."""
        with suppress(ValueError):
            value = json.loads(self.body)
            if isinstance(value, dict):
                return value
        return {}

    def reset(self) -> None:
        """Break the connection off."""
        self.writer.transport.abort()

    async def reply(self, status: int, body: object = b"", *, content_type: str = "application/json") -> None:
        """Answer in one piece; anything but bytes becomes JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._head(status, {"Content-Type": content_type, "Content-Length": str(len(raw))})
        self.writer.write(raw)
        await self.writer.drain()
        self.sent += 1

    async def stream(self, pieces: AsyncIterator[bytes], *, content_type: str) -> None:
        """Answer in chunks."""
        self._head(200, {"Content-Type": content_type, "Transfer-Encoding": "chunked"})
        async for piece in pieces:
            self.writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await self.writer.drain()
            self.sent += 1
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def websocket_echo(self) -> None:
        """Accept the upgrade and send every text and binary message back until the client closes."""
        key = self.headers.get("sec-websocket-key", "") + WEBSOCKET_GUID
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
        self.writer.write("\r\n".join([*lines, f"Sec-WebSocket-Accept: {accept}", "", ""]).encode())
        while True:
            kind, payload = await self._frame()
            self.writer.write(_frame_head(kind if kind != 9 else 10, len(payload)) + payload)
            await self.writer.drain()
            self.sent += 1
            if kind == 8:
                break
        self.writer.close()

    async def _frame(self) -> tuple[int, bytes]:
        first, second = await self.reader.readexactly(2)
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack(">H", await self.reader.readexactly(2))
        elif length == 127:
            (length,) = struct.unpack(">Q", await self.reader.readexactly(8))
        mask = await self.reader.readexactly(4)
        data = await self.reader.readexactly(length)
        return first & 0x0F, bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))

    def _head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}", *(f"{n}: {v}" for n, v in headers.items())]
        self.writer.write("\r\n".join([*lines, "", ""]).encode())


def _frame_head(kind: int, length: int) -> bytes:
    if length < 126:
        return struct.pack(">BB", 0x80 | kind, length)
    return (
        struct.pack(">BBH", 0x80 | kind, 126, length)
        if length < 65_536
        else struct.pack(">BBQ", 0x80 | kind, 127, length)
    )


Handler = Callable[[Request], Awaitable[None]]


@dataclass(slots=True)
class Server:
    """Serves requests with a handler, several connections at a time, and keeps a log of them."""

    handler: Handler
    requests: list[Request] = field(default_factory=list)

    async def listen(self, port: int, *, host: str = "127.0.0.1") -> asyncio.Server:
        """Open the port."""
        return await asyncio.start_server(self._connection, host, port, backlog=1024)

    @property
    def open_requests(self) -> int:
        """Requests that have no complete answer."""
        return sum(not request.ended for request in self.requests)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while (request := await _read(reader, writer)) is not None:
                if not request.path.startswith("/__"):
                    self.requests.append(request)
                await self._serve(request)
                if request.aborted or request.headers.get("connection", "").lower() == "close" or writer.is_closing():
                    break
        writer.close()

    async def _serve(self, request: Request) -> None:
        work = asyncio.ensure_future(self.handler(request))
        watcher = None
        if "upgrade" not in request.headers:
            watcher = asyncio.ensure_future(_closed(request.reader))
        await asyncio.wait([work, *([watcher] if watcher else [])], return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            request.aborted = True
            work.cancel()
        if watcher is not None:
            watcher.cancel()
        with suppress(asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            await work
        request.ended = True


async def _closed(reader: asyncio.StreamReader) -> None:
    # nothing is read ahead of the next request: only the end of the connection is looked for
    while not reader.at_eof() and reader.exception() is None:
        await asyncio.sleep(0.01)


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = b""
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    elif "chunked" in headers.get("transfer-encoding", ""):
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    path, _, query = target.partition("?")
    return Request(method, path, query, headers, body, reader, writer)
