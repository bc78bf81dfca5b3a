"""The yardstick anybody can run: a small proxy on aiohttp's server and client, which reads the name of the model."""

import argparse
import asyncio
import json

import aiohttp
import uvloop
from aiohttp import web


async def serve(port: int, engine: int) -> None:
    """Serve until killed."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False) as session:

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            body = await request.read()
            assert json.loads(body)["model"]
            url = f"http://127.0.0.1:{engine}{request.path_qs}"
            headers = {"content-type": request.headers["content-type"]}
            async with session.request(request.method, url, data=body, headers=headers) as answer:
                names = [name for name in ("content-type", "content-length") if name in answer.headers]
                kept = {name: answer.headers[name] for name in names}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response

        runner = web.ServerRunner(web.Server(handle, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4096).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", type=int, required=True)
    given = parser.parse_args()
    uvloop.run(serve(given.port, given.engine))
