"""A model server that costs next to nothing, so that what stands in front of it can be measured.

POST any path: a plain answer, or with `"stream": true` an SSE stream of `"chunks"` events, `"interval_ms"` apart
(0: as fast as they are read). GET /health: 200. Raw asyncio protocol, keep-alive, no framework.
"""

import argparse
import asyncio
import json
from typing import cast

import uvloop
from typing_extensions import override

EVENT = b'data: {"id":"b","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
DONE = b"data: [DONE]\n\n"
LAST = b"%x\r\n%s\r\n0\r\n\r\n" % (len(DONE), DONE)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ANSWER = json.dumps(
    {"id": "b", "object": "chat.completion", "choices": [{"message": {"role": "assistant", "content": "word " * 20}}]}
).encode()
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER)
HEALTH = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Connection(asyncio.Protocol):
    """One client connection; requests are answered one after the other."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.transport: asyncio.Transport | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.left = 0
        self.interval_s = 0.0
        self.writable = True

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self.timer:
            self.timer.cancel()
        self.left = 0
        self.transport = None

    @override
    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while True:
            head_end = self.buffer.find(b"\r\n\r\n")
            if head_end < 0:
                return
            head = bytes(self.buffer[:head_end]).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].partition(b"\r\n")[0]) if at >= 0 else 0
            end = head_end + 4 + length
            if len(self.buffer) < end:
                return
            body = bytes(self.buffer[head_end + 4 : end])
            del self.buffer[:end]
            self.answer(head, body)

    def answer(self, head: bytes, body: bytes) -> None:
        assert self.transport
        if head.startswith(b"get "):
            self.transport.write(HEALTH)
        elif b'"stream": true' in body:
            request = json.loads(body)
            self.left, self.interval_s = request["chunks"], request["interval_ms"] / 1000
            self.transport.write(STREAM_HEAD)
            self.next_chunk()
        else:
            self.transport.write(PLAIN)

    def next_chunk(self) -> None:
        while self.transport and self.left and self.writable:
            self.left -= 1
            self.transport.write(CHUNK)
            if self.interval_s and self.left:
                self.timer = asyncio.get_running_loop().call_later(self.interval_s, self.next_chunk)
                return
        if self.transport and not self.left:
            self.transport.write(LAST)

    @override
    def pause_writing(self) -> None:
        self.writable = False

    @override
    def resume_writing(self) -> None:
        self.writable = True
        if self.left and not self.interval_s:
            self.next_chunk()


async def serve(port: int) -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))
