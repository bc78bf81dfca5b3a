"""Engines that break off or stream until they are told to end."""

import asyncio

from tests.proxy.harness import Talk, read_request

BODY = b'{"model":"m01","stream":true}'
CHAT_PATH = "/v1/chat/completions"
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def dies_after(answer: bytes, *, reset: bool = False) -> Talk:
    """Return an engine that sends ``answer`` and is gone."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(answer)
        await writer.drain()
        if reset:
            writer.transport.abort()

    return talk


class Watched:
    """An engine that streams until its client closes."""

    def __init__(self) -> None:
        self.requests = 0
        self.closed = 0
        self.ended = 0
        self.finish = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        self.requests += 1
        writer.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await writer.drain()
        gone = asyncio.ensure_future(reader.read())
        done = asyncio.ensure_future(self.finish.wait())
        try:
            await asyncio.wait((gone, done), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                self.closed += 1
                return
            writer.write(chunk(b'data: {"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n') + b"0\r\n\r\n")
            await writer.drain()
            self.ended += 1
        finally:
            for task in (gone, done):
                task.cancel()
            await asyncio.wait((gone, done))
