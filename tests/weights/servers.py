"""Real HTTP servers on loopback that weights are fetched from, with the faults that real ones have."""

import asyncio
import hashlib
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

PIECE = 256 * 1024


@dataclass
class Blob:
    """A file on the server."""

    content: bytes
    etag: str = ""
    ranges: bool = True

    def __post_init__(self) -> None:
        self.etag = self.etag or f'"{hashlib.md5(self.content, usedforsecurity=False).hexdigest()}"'


@dataclass
class Server:
    """Serves blobs by path; what was asked for and what went out is counted."""

    url: str = ""
    blobs: dict[str, Blob] = field(default_factory=dict)
    #: path and Range header of each request
    asked: list[tuple[str, str]] = field(default_factory=list)
    sent: int = 0
    #: answers on their way, now and at most at the same time
    answering: int = 0
    most_answering: int = 0
    headers: list[dict[str, str]] = field(default_factory=list)
    #: answers to the next requests, before the file itself
    refusals: list[int] = field(default_factory=list)
    #: the connection of each answer is cut after so many bytes
    cut_after: list[int] = field(default_factory=list)
    #: bytes a second of each answer
    rate: float | None = None
    #: called after each piece
    on_sent: Callable[[], None] = lambda: None
    #: answers wait for this before their body
    gate: asyncio.Event | None = None
    tells_size: bool = True
    #: by how much the range that is told is wrong
    shift: int = 0
    #: status and address by path
    redirects: dict[str, tuple[int, str]] = field(default_factory=dict)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.asked.append((path, request.headers.get("Range", "")))
        self.headers.append(dict(request.headers))
        if self.refusals:
            return web.Response(status=self.refusals.pop(0))
        if path in self.redirects:
            status, address = self.redirects[path]
            return web.Response(status=status, headers={"Location": address})
        blob = self.blobs.get(path)
        if blob is None:
            return web.Response(status=404)
        return await self._body(request, blob)

    async def _body(self, request: web.Request, blob: Blob) -> web.StreamResponse:
        start, stop, size = 0, len(blob.content), len(blob.content)
        response = web.StreamResponse(headers={"ETag": blob.etag} if blob.etag != "none" else {})
        told = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if told and blob.ranges and request.headers.get("If-Range", blob.etag) == blob.etag:
            start, stop = int(told[1]), min(int(told[2]) + 1, size)
            if start >= size:
                return web.Response(status=416, headers={"Content-Range": f"bytes */{size}"})
            response.set_status(206)
            response.headers["Content-Range"] = f"bytes {start + self.shift}-{stop - 1}/{size}"
        if self.tells_size:
            response.content_length = stop - start
        probe = stop - start == 1
        cut = self.cut_after.pop(0) if self.cut_after and not probe else None
        await response.prepare(request)
        if self.gate is not None and not probe:
            await self.gate.wait()
        self.answering += 1
        self.most_answering = max(self.most_answering, self.answering)
        try:
            for at in range(start, stop, PIECE):
                piece = blob.content[at : min(at + PIECE, stop)]
                if cut is not None and at - start + len(piece) > cut:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                if self.rate is not None:
                    await asyncio.sleep(len(piece) / self.rate)
                await response.write(piece)
                self.sent += len(piece)
                self.on_sent()
        finally:
            self.answering -= 1
        return response


@asynccontextmanager
async def serving(server: Server | None = None, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    """Run a server."""
    server = server or Server()
    app = web.Application()
    app.router.add_get("/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


@dataclass
class Hub(Server):
    """Speaks what huggingface_hub asks: what is in a revision, and where its files are."""

    repository: str = "lab/model"
    revision: str = "a" * 40
    token: str = "hf_secret"
    #: files of the repository; those in `large` are kept as LFS objects on another host
    files: dict[str, bytes] = field(default_factory=dict)
    large: tuple[str, ...] = ()
    authorized: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.asked.append((path, request.headers.get("Range", "")))
        secret = request.headers.get("Authorization", "")
        if path.startswith("/api/") and self.repository not in path:
            return web.json_response({"error": "none"}, status=404, headers={"X-Error-Code": "RepoNotFound"})
        if path.startswith(f"/api/models/{self.repository}"):
            if secret != f"Bearer {self.token}":
                return web.json_response({"error": "no"}, status=401, headers={"X-Error-Code": "GatedRepo"})
            return web.json_response(self._info())
        if path.startswith("/cdn/"):
            assert not secret, "the token must not leave the hub"
            return await self._body(request, Blob(self.files[path.removeprefix("/cdn/")]))
        name = path.removeprefix(f"/{self.repository}/resolve/{self.revision}/")
        if name not in self.files:
            return web.Response(status=404)
        assert secret == f"Bearer {self.token}"
        self.authorized.append(name)
        if name in self.large:
            elsewhere = self.url.replace("127.0.0.1", "localhost")
            return web.Response(status=302, headers={"Location": f"{elsewhere}/cdn/{name}"})
        return await self._body(request, Blob(self.files[name]))

    def _info(self) -> dict[str, Any]:
        siblings = []
        for name, content in self.files.items():
            told: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_name(content)}
            if name in self.large:
                told["lfs"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest(), "pointerSize": 134}
            siblings.append(told)
        return {"id": self.repository, "sha": self.revision, "siblings": siblings, "private": False}


def git_name(content: bytes) -> str:
    """Return the name that git gives to a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
