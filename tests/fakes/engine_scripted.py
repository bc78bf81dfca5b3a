"""A model server that misbehaves as told: by switches for its life, by a script for its answers.

    python engine_scripted.py --port 8123 --name m01 --load-s 0.2 --ignore-term

How it answers is said by ``--script`` or, for one request, by the header ``x-fake``; both are words such as
``chunks=5 interval=0.1 die_after=2``:

* ``chunks=N``: tokens in the answer (default 4), ``endless``; ``interval=S``: pause before each piece
* ``delay=S``: before the first byte; ``silent``: no answer at all; ``reset``: connection broken before the headers
* ``die_after=N``: the process ends after N pieces; ``cut_after=N``: the connection alone
* ``status=N``: an error of that status; ``bytes=N``: a plain body of that size

``GET /__requests`` shows what has arrived and what became of it; ``GET /__ping`` is never logged.
"""

import argparse
import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

from engine_dialects import answer
from engine_http import Request, Server


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", default="fake")
    parser.add_argument("--load-s", type=float, default=0.0, help="time until healthy")
    parser.add_argument("--load-closed", action="store_true", help="the port opens only after the load")
    parser.add_argument("--load-talk", action="store_true", help="a log line every tenth of a second of the load")
    parser.add_argument("--health", choices=["ok", "503", "hang"], default="ok")
    parser.add_argument("--green-early", type=int, default=0, help="healthy, but answers so many requests with 500")
    parser.add_argument("--exit-after-s", type=float, help="exit by itself …")
    parser.add_argument("--exit-status", type=int, default=1, help="… with this status")
    parser.add_argument("--say", action="append", default=[], help="print a line at the start")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--term-s", type=float, default=0.0, help="time from SIGTERM to the end")
    parser.add_argument("--stray", action="store_true", help="a grandchild in a session of its own")
    parser.add_argument("--worker", action="store_true", help="a child that outlives its parent and ignores SIGTERM")
    parser.add_argument("--script", default="")
    return parser.parse_args()


class Engine:
    """The server and its quirks."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.started = time.monotonic()
        self.early = options.green_early
        self.server = Server(self.handle)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.started

    async def run(self) -> None:
        options = self.options
        loop = asyncio.get_running_loop()
        if options.ignore_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        else:
            loop.add_signal_handler(signal.SIGTERM, lambda: loop.call_later(options.term_s, os._exit, 0))
        if options.exit_after_s is not None:
            loop.call_later(options.exit_after_s, os._exit, options.exit_status)
        if options.load_closed:
            await asyncio.sleep(options.load_s)
        await self.server.listen(options.port)
        while options.load_talk and self.age_s < options.load_s:
            say(f"loading {self.age_s:.1f}")
            await asyncio.sleep(0.1)
        await asyncio.Event().wait()

    async def handle(self, request: Request) -> None:
        match request.path:
            case "/health":
                await self.health(request)
            case "/__ping":
                await request.reply(200)
            case "/__requests":
                await request.reply(200, [_shown(entry) for entry in self.server.requests])
            case "/metrics":
                text = f'fake_requests_total{{model="{self.options.name}"}} {len(self.server.requests)}\n'
                await request.reply(200, text.encode(), content_type="text/plain")
            case "/v1/models":
                await request.reply(200, {"object": "list", "data": [{"id": self.options.name, "object": "model"}]})
            case "/v1/realtime" | "/ws" if "upgrade" in request.headers:
                await request.websocket_echo()
            case _:
                await self.infer(request)

    async def health(self, request: Request) -> None:
        if self.options.health == "hang":
            await asyncio.Event().wait()
        loading = self.age_s < self.options.load_s and not self.options.load_closed
        green = self.options.health == "ok" and not loading
        await request.reply(200 if green else 503, {"status": "ok" if green else "loading"})

    async def infer(self, request: Request) -> None:
        script = _script(f"{self.options.script} {request.headers.get('x-fake', '')}")
        if "silent" in script:
            await asyncio.Event().wait()
        await asyncio.sleep(float(script.get("delay", 0)))
        if "reset" in script:
            request.reset()
            return
        if self.age_s < self.options.load_s or self.early:
            self.early = max(0, self.early - 1)
            await request.reply(500, {"error": "not yet"})
            return
        if "status" in script:
            await request.reply(int(script["status"]), {"error": {"message": "as scripted", "type": "fake"}})
            return
        if "bytes" in script:
            await request.reply(200, b"x" * int(script["bytes"]), content_type="application/octet-stream")
            return
        tokens = -1 if "endless" in script else int(script.get("chunks", 4))
        found = answer(self.options.name, request.path, request.json(), tokens) if request.method == "POST" else None
        if found is None:
            await request.reply(404, {"error": {"message": f"no route {request.path}", "type": "not_found"}})
        elif found.stream:
            pieces = self.paced(request, found.pieces, script)
            await request.stream(pieces, content_type=found.content_type)
        else:
            await request.reply(200, next(found.pieces), content_type=found.content_type)

    async def paced(self, request: Request, pieces: Iterator[bytes], script: dict[str, str]) -> AsyncIterator[bytes]:
        for piece in pieces:
            if str(request.sent) == script.get("die_after"):
                os._exit(int(script.get("exit", 3)))
            if str(request.sent) == script.get("cut_after"):
                request.reset()
                return
            await asyncio.sleep(float(script.get("interval", 0)))
            yield piece


def _script(words: str) -> dict[str, str]:
    return {name: value for name, _, value in (word.partition("=") for word in words.split())}


def _shown(request: Request) -> dict[str, object]:
    return {
        "method": request.method,
        "path": request.path,
        "query": request.query,
        "headers": dict(request.headers),
        "sha256": hashlib.sha256(request.body).hexdigest(),
        "body": request.body[:10_000].decode("utf-8", "replace"),
        "sent": request.sent,
        "aborted": request.aborted,
        "ended": request.ended,
    }


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def detached() -> None:
    """Leave a grandchild behind, in a session of its own, with nothing to tell whose it is but its environment."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "1000"])
        os._exit(0)
    os.wait()


def main() -> None:
    options = parse()
    for line in options.say:
        say(line)
    if options.stray:
        detached()
    if options.worker:
        subprocess.Popen(["sh", "-c", "trap '' TERM; exec sleep 1000"])
    asyncio.run(Engine(options).run())


if __name__ == "__main__":
    main()
