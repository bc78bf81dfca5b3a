"""A model server that starts fast and answers slowly: what the soak tests swap thousands of times.

POST: echoes the model it serves, plain or as a stream of 20 events, 10 ms apart. Standard library only.
"""

import asyncio
import json
import sys

EVENTS = 20
INTERVAL_S = 0.01


async def serve_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer requests on one connection until the client leaves."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].partition(b"\r\n")[0]) if at >= 0 else 0
            body = await reader.readexactly(length)
            if length and json.loads(body).get("stream"):
                await stream(writer)
            else:
                text = json.dumps({"served_by": NAME}).encode()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(text)
                )
                writer.write(text)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def stream(writer: asyncio.StreamWriter) -> None:
    """Send server-sent events with chunked framing."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(EVENTS):
        event = b'data: {"served_by": "%s"}\n\n' % NAME.encode()
        writer.write(b"%x\r\n%s\r\n" % (len(event), event))
        await writer.drain()
        await asyncio.sleep(INTERVAL_S)
    writer.write(b"0\r\n\r\n")


async def main(port: int) -> None:
    """Serve until killed."""
    async with await asyncio.start_server(serve_connection, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    NAME = sys.argv[2]
    asyncio.run(main(int(sys.argv[1])))
