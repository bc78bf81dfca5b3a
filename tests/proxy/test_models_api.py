"""What swapd answers from memory, without starting anything."""

import aiohttp
import pytest
from aiohttp import web

import swapd
from swapd.core.reasons import State
from swapd.proxy.engine_metrics import engine_metrics_handler
from swapd.proxy.routes import EXACT, find
from tests.proxy.harness import http_engine, running


async def test_every_model_and_alias_is_listed_with_its_state() -> None:
    async with running() as node, aiohttp.ClientSession() as client:
        async with client.get(f"{node.url}/v1/models") as answer:
            listing = await answer.json()
            assert answer.headers["x-request-id"]
        assert listing["object"] == "list"
        assert [(entry["id"], entry["state"]) for entry in listing["data"]] == [
            ("m01", "ready"),
            ("tiny-one", "ready"),
            ("m02", "absent"),
            ("meta/llama", "absent"),
            ("meta/llama/v1", "absent"),
        ]
        assert listing["data"][1] == {
            "id": "tiny-one",
            "object": "model",
            "created": 1_700_000_000,
            "owned_by": "swapd",
            "state": "ready",
            "alias_of": "m01",
        }
        node.states["m02"] = State.LOADING
        async with client.get(f"{node.url}/v1/models/m02") as answer:
            assert (await answer.json())["state"] == "loading"
        assert node.core.events == []
        assert node.records == []


@pytest.mark.parametrize("name", ["m01", "tiny-one", "meta/llama", "meta%2Fllama", "meta/llama/v1"])
async def test_one_model_is_found_by_name_or_alias_with_slashes_or_without(name: str) -> None:
    async with (
        running() as node,
        aiohttp.ClientSession() as client,
        client.get(f"{node.url}/v1/models/{name}") as answer,
    ):
        assert answer.status == 200
        assert (await answer.json())["id"] == name.replace("%2F", "/")


async def test_ollamas_lists_and_the_health_of_the_port() -> None:
    async with running() as node, aiohttp.ClientSession() as client:
        async with client.get(f"{node.url}/api/tags") as answer:
            models = (await answer.json())["models"]
            assert [model["name"] for model in models] == ["m01", "tiny-one", "m02", "meta/llama", "meta/llama/v1"]
            assert models[0]["modified_at"].startswith("2023-11-14T")
        async with client.get(f"{node.url}/api/version") as answer:
            assert await answer.json() == {"version": swapd.__version__}
        async with client.get(f"{node.url}/health") as answer:
            assert await answer.json() == {"status": "ok"}
        async with client.head(f"{node.url}/health") as answer:
            assert answer.status == 200
            assert await answer.read() == b""


async def test_tritons_questions_are_answered_without_loading() -> None:
    async with running() as node, aiohttp.ClientSession() as client:
        for name, status in (("m01", 200), ("m02", 400), ("nobody", 404)):
            async with client.get(f"{node.url}/v2/models/{name}/ready") as answer:
                assert answer.status == status
        async with client.get(f"{node.url}/v2/models/meta%2Fllama/versions/1") as answer:
            assert (await answer.json())["name"] == "meta/llama"
        assert node.core.events == []


async def test_an_engines_own_metrics_are_passed_through_while_it_is_resident() -> None:
    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        assert request.raw_path == "/metrics"
        return web.Response(body=b"llama:x 1\n", headers={"Content-Type": "text/plain; version=0.0.4"})

    async with http_engine(engine) as port, running(engine_port=port) as node:
        app = web.Application()
        app.router.add_get("/metrics/models/{model:.+}", engine_metrics_handler(node.front._desk.services))
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics/models"
        async with aiohttp.ClientSession() as client:
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
        await runner.cleanup()
        assert node.core.events == []


async def test_a_metrics_page_that_cannot_be_read_is_a_502() -> None:
    async with running(engine_port=1) as node:
        handler = engine_metrics_handler(node.front._desk.services)
        app = web.Application()
        app.router.add_get("/metrics/models/{model:.+}", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics/models/m01"
        async with aiohttp.ClientSession() as client, client.get(url) as answer:
            assert answer.status == 502
            assert (await answer.json())["error"]["code"] == "upstream_failed"
        await runner.cleanup()


def test_every_route_of_the_table_is_found_by_its_path() -> None:
    for path, route in EXACT.items():
        match = find(path)
        assert match is not None
        assert match.route is route
        assert find(path + "/") is None
