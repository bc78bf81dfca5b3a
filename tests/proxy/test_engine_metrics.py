"""An engine's own metrics page is passed on whole or not at all, and nothing is started for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from swapd.proxy.engine_metrics import engine_metrics_handler
from tests.proxy.harness import Node, http_engine, raw_engine, running

LIMIT = 8 << 20


@asynccontextmanager
async def metrics_port(node: Node) -> AsyncIterator[str]:
    """Serve the node's metrics pages; yields their URL, to which a name is appended."""
    app = web.Application()
    app.router.add_get("/metrics/models/{model:.+}", engine_metrics_handler(node.front._desk.services))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics/models"
    finally:
        await runner.cleanup()


async def page_of(engine_port: int) -> tuple[int, bytes]:
    """Return status and body of the page of a model whose engine listens on the port."""
    async with (
        running(engine_port=engine_port) as node,
        metrics_port(node) as url,
        aiohttp.ClientSession() as client,
        client.get(f"{url}/m01") as answer,
    ):
        return answer.status, await answer.read()


async def test_the_page_is_passed_through_while_the_model_is_resident() -> None:
    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        assert request.raw_path == "/metrics"
        return web.Response(body=b"llama:x 1\n", headers={"Content-Type": "text/plain; version=0.0.4"})

    async with (
        http_engine(engine) as port,
        running(engine_port=port) as node,
        metrics_port(node) as url,
        aiohttp.ClientSession() as client,
    ):
        async with client.get(f"{url}/tiny-one") as answer:
            assert (answer.status, await answer.read()) == (200, b"llama:x 1\n")
            assert answer.headers["content-type"] == "text/plain; version=0.0.4"
        for name, code in (("m02", "not_resident"), ("meta/llama", "not_resident"), ("x", "model_not_found")):
            async with client.get(f"{url}/{name}") as answer:
                assert answer.status == 404
                assert (await answer.json())["error"]["code"] == code
        node.endpoints.clear()
        async with client.get(f"{url}/m01") as answer:
            assert answer.status == 404
        assert node.core.events == []


@pytest.mark.parametrize("size", [0, 4 << 20, LIMIT])
async def test_a_page_that_arrives_in_many_pieces_is_passed_on_whole(size: int) -> None:
    async def engine(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=b"#" * size)

    async with http_engine(engine) as port:
        assert await page_of(port) == (200, b"#" * size)


async def test_a_page_above_the_limit_is_a_502_with_a_sentence() -> None:
    async def engine(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=b"#" * (LIMIT + 1))

    async with http_engine(engine) as port:
        status, body = await page_of(port)
    assert status == 502
    assert b"larger than 8 MiB." in body


async def test_a_page_that_breaks_off_is_a_502() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nllama:x 1\n")
        await writer.drain()

    async with raw_engine(talk) as port:
        status, body = await page_of(port)
    assert status == 502
    assert b"cannot be read" in body


async def test_a_page_elsewhere_is_not_fetched() -> None:
    paths: list[str] = []

    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        paths.append(request.raw_path)
        return web.Response(status=302, headers={"Location": "/elsewhere"})

    async with http_engine(engine) as port:
        status, body = await page_of(port)
    assert (status, paths) == (502, ["/metrics"])
    assert b"status 302" in body


async def test_an_engine_that_cannot_be_reached_is_a_502() -> None:
    status, body = await page_of(1)
    assert status == 502
    assert b"upstream_failed" in body
