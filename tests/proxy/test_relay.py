"""What passes the front door, and how: bytes, headers, framing."""

import json

import aiohttp
from aiohttp import web

from tests.proxy.harness import CHAT, http_engine, running


async def test_a_request_reaches_the_engine_with_the_same_bytes_and_its_answer_comes_back() -> None:
    seen: list[tuple[str, str, bytes]] = []

    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        seen.append((request.method, request.raw_path, await request.content.read()))
        return web.json_response({"ok": True}, headers={"x-engine": "yes"})

    body = b'{ "messages":[],   "model" : "m01" }'
    async with http_engine(engine) as port, running(engine_port=port) as node, aiohttp.ClientSession() as client:
        async with client.post(f"{node.url}/v1/chat/completions?x=%20a", data=body) as answer:
            assert answer.status == 200
            assert await answer.json() == {"ok": True}
            assert answer.headers["x-engine"] == "yes"
            assert answer.headers["x-request-id"]
        record = await node.settled(1)
    assert seen == [("POST", "/v1/chat/completions?x=%20a", body)]
    assert record.model == "m01"
    assert record.status == 200
    assert record.bytes_in == len(body)


async def test_own_errors_carry_a_body() -> None:
    async with running() as node, aiohttp.ClientSession() as client:
        async with client.post(f"{node.url}/v1/chat/completions", data=b"{") as answer:
            assert answer.status == 400, await answer.text()
            assert (await answer.json())["error"]["type"] == "invalid_request_error"
        async with client.post(f"{node.url}/v1/chat/completions", data=json.dumps(CHAT | {"model": "x"})) as answer:
            assert answer.status == 404, await answer.text()
        async with client.get(f"{node.url}/v1/models") as answer:
            assert answer.status == 200, await answer.text()
