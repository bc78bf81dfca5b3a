"""Stands in for vLLM, which this machine cannot run, and copies those of its habits that were measured on the real one.

    python engine_vllm.py /cache/model --host 127.0.0.1 --port 8123 --served-model-name m01 m01-chat

* The port opens only after the load; SIGTERM during the load is lost, a later one works.
* The tree is API server, engine core, worker, all in the launcher's group; killing the API server alone leaves the
  other two alive. They hold the file ``--held``, if given, as the real ones hold GPU memory.
* After the death of the engine core requests get 500, ``/health`` 503, and the API server exits with status 0.
* SIGTERM with a request open: with ``--shutdown-timeout 0`` (the default) the server waits for the client to leave,
  and the request is never answered; with more it lets the request finish within that time.
* A wrong model name is answered with 404, ``NotFoundError``, param ``model``.
* ``/load`` says 0 unless ``--enable-server-load-tracking`` is given. A bad path exits with status 1.
* Asleep (``VLLM_SERVER_DEV_MODE=1``): ``/health`` stays 200 and requests hang until the wake-up. ``/sleep`` reads only
  its query, aborts running requests by default (200, ``finish_reason`` ``abort``), and waits for them with
  ``mode=wait``; a partial wake-up says ``sleeping``; a tag that is not asleep makes the call do nothing, with 200.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs

from engine_dialects import answer
from engine_http import Request, Server

TAGS = ("weights", "kv_cache")
CORE = "core"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("model", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", nargs="+", required=True)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--shutdown-timeout", type=float, default=0.0)
    parser.add_argument("--enable-server-load-tracking", action="store_true")
    parser.add_argument("--disable-uvicorn-access-log", action="store_true")
    parser.add_argument("--load-s", type=float, default=0.1)
    parser.add_argument("--token-s", type=float, default=0.0, help="time for one token")
    parser.add_argument("--held", type=Path, help="file that the engine core holds open")
    return parser.parse_args()


class AbortedError(Exception):
    """A sleep cut the request."""


class Vllm:
    """The API server."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.server = Server(self.handle)
        self.asleep: set[str] = set()
        self.awake = asyncio.Event()
        self.awake.set()
        self.cut = asyncio.Event()
        self.running = 0
        self.core: subprocess.Popen[bytes] | None = None

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: None)  # lost while it loads
        say("Starting to load model")
        self.core = subprocess.Popen([sys.executable, __file__, CORE, str(self.options.held or os.devnull)])  # noqa: ASYNC220
        await asyncio.sleep(self.options.load_s)
        say("Loading weights took 0.1 seconds")
        await self.server.listen(self.options.port, host=self.options.host)
        leave = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, leave.set)
        say("Application startup complete.")
        dead = asyncio.ensure_future(asyncio.to_thread(self.core.wait))
        done, _ = await asyncio.wait([dead, asyncio.ensure_future(leave.wait())], return_when=asyncio.FIRST_COMPLETED)
        if dead in done:
            say("EngineCore encountered an issue")
            await asyncio.sleep(0.3)
        else:
            await self.shut_down()
            self.core.kill()
        os._exit(0)

    async def shut_down(self) -> None:
        if self.options.shutdown_timeout > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.options.shutdown_timeout):
                    await self.until_idle()
        else:
            self.awake.clear()  # running requests never get on
            await self.until_idle()

    async def until_idle(self) -> None:
        while self.running:
            await asyncio.sleep(0.01)

    async def handle(self, request: Request) -> None:
        match request.path:
            case "/health" | "/ping":
                alive = self.core is not None and self.core.poll() is None
                await request.reply(200 if alive else 503)
            case "/version":
                await request.reply(200, {"version": "0.32.0"})
            case "/load":
                tracked = self.options.enable_server_load_tracking
                await request.reply(200, {"server_load": self.running if tracked else 0})
            case "/v1/models":
                await request.reply(
                    200, {"object": "list", "data": [{"id": n} for n in self.options.served_model_name]}
                )
            case "/metrics":
                gauge = f'vllm:num_requests_running{{engine="0"}} {float(self.running)}\n'
                await request.reply(200, gauge.encode(), content_type="text/plain")
            case "/sleep" | "/wake_up" | "/is_sleeping" if os.environ.get("VLLM_SERVER_DEV_MODE") == "1":
                await self.control(request)
            case _:
                self.running += 1
                try:
                    await self.infer(request)
                finally:
                    self.running -= 1

    async def control(self, request: Request) -> None:
        query = parse_qs(request.query)
        if request.path == "/is_sleeping":
            await request.reply(200, {"is_sleeping": bool(self.asleep)})
        elif request.path == "/sleep":
            level, mode = query.get("level", ["1"])[0], query.get("mode", ["abort"])[0]
            if level not in {"0", "1", "2"} or mode not in {"abort", "wait", "keep"}:
                await request.reply(400, {"error": "level or mode"})
                return
            if mode == "wait":
                await self.until_idle()
            if mode == "abort":
                self.cut.set()
                await self.until_idle()
                self.cut.clear()
            self.asleep = set(TAGS)
            self.awake.clear()
            await request.reply(200, {"status": "sleeping", "level": int(level)})
        else:
            tags = set(query.get("tags", TAGS))
            if tags <= self.asleep:
                self.asleep -= tags
            if not self.asleep:
                self.awake.set()
            await request.reply(200, {"status": "sleeping" if self.asleep else "awake"})

    async def infer(self, request: Request) -> None:
        body = request.json()
        names = self.options.served_model_name
        found = answer(names[0], request.path, body, int(body.get("max_tokens", 4)))
        if request.method != "POST" or found is None:
            await request.reply(404, {"detail": "Not Found"})
            return
        if body.get("model", names[0]) not in names:
            text = f"The model `{body['model']}` does not exist. It is one of {names}."
            await request.reply(
                404, {"error": {"message": text, "type": "NotFoundError", "param": "model", "code": 404}}
            )
            return
        if self.core is not None and self.core.poll() is not None:
            await request.reply(
                500, {"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError"}}
            )
            return
        if found.stream:
            await request.stream(self.generated(found.pieces), content_type=found.content_type)
            return
        try:
            for _ in range(int(body.get("max_tokens", 4))):
                await self.step()
        except AbortedError:
            await request.reply(200, {"choices": [{"finish_reason": "abort", "message": {"content": ""}}]})
            return
        await request.reply(200, next(found.pieces), content_type=found.content_type)

    async def generated(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        for piece in pieces:
            with suppress(AbortedError):
                await self.step()
            yield piece

    async def step(self) -> None:
        await self.awake.wait()
        await asyncio.sleep(self.options.token_s)
        if self.cut.is_set():
            raise AbortedError


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def engine_core(held: str) -> None:
    """Be the engine core and, forked off, its worker, which notices the core's death and leaves.

    Neither minds SIGTERM, and the core does not notice that the API server is gone.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with Path(held).open("rb"):
        core = os.getpid()
        if os.fork():
            signal.pause()
        while os.getppid() == core:
            signal.sigtimedwait([], 0.05)


def main() -> None:
    if sys.argv[1] == CORE:
        engine_core(sys.argv[2])
        return
    options = parse()
    if not options.model.exists():
        say(f"OSError: {options.model} is no local folder. Engine core initialization failed.")
        sys.exit(1)
    asyncio.run(Vllm(options).run())


if __name__ == "__main__":
    main()
