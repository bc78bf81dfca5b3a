"""Generates HTTP load from a process of its own and prints one line of JSON with what it saw.

Raw asyncio streams on keep-alive connections: the generator must cost less than what it measures.
"""

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass, field

import uvloop


@dataclass(slots=True)
class Tally:
    """What all connections saw together."""

    requests: int = 0
    events: int = 0
    failures: int = 0
    latencies_s: list[float] = field(default_factory=list)


async def one_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message: bytes, tally: Tally) -> None:
    """Send a request, read its whole answer, count its events."""
    began = time.perf_counter()
    writer.write(message)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"transfer-encoding: chunked" in head:
        while (size := int(await reader.readuntil(b"\r\n"), 16)) > 0:
            chunk = await reader.readexactly(size + 2)
            tally.events += chunk.count(b"data: ")
        await reader.readexactly(2)
    else:
        at = head.index(b"content-length:") + 15
        await reader.readexactly(int(head[at : head.index(b"\r\n", at)]))
    tally.latencies_s.append(time.perf_counter() - began)
    tally.requests += 1
    tally.failures += not head.startswith(b"http/1.1 200")


async def connection(port: int, message: bytes, todo: list[int], tally: Tally) -> None:
    """Send requests one after the other until none is left to do; connect again when the server has closed."""
    number = 0
    while todo:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while todo:
                number = todo.pop()
                await one_request(reader, writer, message, tally)
        except asyncio.IncompleteReadError as error:
            if error.partial:  # in the middle of an answer; between two it is what llama.cpp does now and then
                raise
            todo.append(number)
        finally:
            writer.close()


async def run(port: int, body: bytes, connections: int, requests: int) -> dict[str, float]:
    """Send all requests over that many connections; return counts, seconds and latencies."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    message = head.encode() + b"content-length: %d\r\n\r\n%s" % (len(body), body)
    tally, todo = Tally(), list(range(requests))
    began = time.perf_counter()
    await asyncio.gather(*(connection(port, message, todo, tally) for _ in range(connections)))
    elapsed = time.perf_counter() - began
    ordered = sorted(tally.latencies_s)
    return {
        "requests": tally.requests,
        "events": tally.events,
        "failures": tally.failures,
        "seconds": elapsed,
        "p50_ms": ordered[len(ordered) // 2] * 1000,
        "p99_ms": ordered[len(ordered) * 99 // 100] * 1000,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--body", required=True)
    given = parser.parse_args()
    json.dump(uvloop.run(run(given.port, given.body.encode(), given.connections, given.requests)), sys.stdout)
