"""Paths below ``/upstream/`` reach the engine as they are, if they can be read in one way only."""

import asyncio

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from swapd.core.ids import ModelName
from swapd.proxy.failure import RefusedError
from swapd.proxy.upstream import is_canonical, split
from tests.proxy.harness import MODELS, FakeDirectory, http_engine, raw_client, running

RESOLVE = FakeDirectory(MODELS).resolve


@pytest.mark.parametrize(
    ("rest", "model", "path"),
    [
        ("m01/v1/models", "m01", "/v1/models"),
        ("m01/", "m01", "/"),
        ("tiny-one/props", "m01", "/props"),
        ("meta/llama/props", "meta/llama", "/props"),
        ("meta%2Fllama/props", "meta/llama", "/props"),
        ("meta/llama/v1/props", "meta/llama/v1", "/props"),
        ("meta/llama/v1", "meta/llama", "/v1"),
        ("meta/llama/v1/", "meta/llama/v1", "/"),
        ("m01/a:b@c/(x)~/%C3%BC/%20", "m01", "/a:b@c/(x)~/%C3%BC/%20"),
    ],
)
def test_the_longest_configured_name_wins_and_the_rest_is_the_path(rest: str, model: str, path: str) -> None:
    assert split(rest, RESOLVE) == (ModelName(model), path)


@pytest.mark.parametrize("rest", ["m01", "nobody/x", "meta/x", "/m01/x", "M01/x", "%zz/x", "a" * 5000 + "/m01/x"])
def test_an_unknown_name_is_a_404(rest: str) -> None:
    with pytest.raises(RefusedError) as refused:
        split(rest, RESOLVE)
    assert refused.value.failure.status == 404


@pytest.mark.parametrize(
    "path",
    [
        *("/../x", "/a/../b", "/a/..", "/.", "/./a", "/a/./b", "//", "//a", "/a//b", "/a//"),
        *("/%73lots", "/%2e%2e/x", "/a%2fb", "/a%2Fb", "/a%5cb", "/a\\b", "/%00", "/a%0ab", "/a%7f", "/a b", "/ü"),
        *("/a%", "/a%g0", "/a;b", "/a?b", "/a#b", "", "a", "/%7Ex", "/%2Dx", "/%5Fx", "/%41"),
    ],
)
def test_a_path_with_two_readings_is_not_canonical(path: str) -> None:
    assert not is_canonical(path)


@given(st.text(alphabet="ab./%2eEfF5cC\\;~ -_0", max_size=12))
def test_a_canonical_path_has_no_other_reading(path: str) -> None:
    from posixpath import normpath
    from urllib.parse import unquote

    if is_canonical(path):
        decoded = unquote(path)
        assert normpath(decoded) == (decoded.rstrip("/") or "/")
        assert decoded.count("/") == path.count("/")
        assert unquote(decoded) == decoded or "%25" in path


async def test_any_method_and_the_query_pass() -> None:
    seen: list[tuple[str, str]] = []

    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        seen.append((request.method, request.raw_path))
        return web.Response(text="ok")

    async with http_engine(engine) as port, running(engine_port=port) as node:
        for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "POST"):
            async with raw_client(node.port) as client:
                target = f"/upstream/meta/llama/lora%20x?a=//..&b={method}"
                await client.send(f"{method} {target} HTTP/1.1\r\nHost: n\r\n\r\n".encode())
                assert (await client.read_head()).startswith(b"HTTP/1.1 200"), method
                assert seen[-1] == (method, f"/lora%20x?a=//..&b={method}")
        await node.settled(6)


async def test_control_paths_of_the_engine_are_out_of_reach_and_start_nothing() -> None:
    async with running() as node:
        for path in ("slots", "slots/0", "%73lots", "v1/../slots", "v1/%2e%2e/slots", "/slots", ".//slots"):
            async with raw_client(node.port) as client:
                await client.send(
                    f"POST /upstream/m01/{path} HTTP/1.1\r\nHost: n\r\nContent-Length: 0\r\n\r\n".encode()
                )
                assert (await client.read_head()).split(b" ")[1] in {b"400", b"404"}, path
        await asyncio.sleep(0)
        assert node.core.events == []
