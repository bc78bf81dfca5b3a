"""What swapd answers from memory, without starting anything."""

from typing import Any

import aiohttp
import pytest

import swapd
from swapd.aio.turns import at_once
from swapd.core.catalog import Source
from swapd.core.ids import Bytes, Instant, seconds
from swapd.core.reasons import State
from swapd.proxy.models_api import answer_in_steps
from swapd.proxy.routes import EXACT, find
from tests.fakes.node_views import instance_view
from tests.proxy.harness import raw_client, running, until


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
            "swapd": {"state": "resident", "max_wait_s": 300.0, "cold_start_s": {}},
            "alias_of": "m01",
        }
        node.states["m02"] = State.LOADING
        async with client.get(f"{node.url}/v1/models/m02") as answer:
            assert (await answer.json())["state"] == "loading"
        assert node.core.events == []
        assert node.records == []


@pytest.mark.parametrize(
    ("row", "state", "whereabouts"),
    [
        ({}, "absent", "absent"),
        ({"cached_bytes": Bytes(5)}, "cached", "cached"),
        ({"cached_bytes": Bytes(5), "cooling_until": Instant(1)}, "failed", "cached"),
        ({"cached_bytes": Bytes(5), "instance": instance_view("m02")}, "ready", "resident"),
        ({"instance": instance_view("m02", state=State.DRAINING)}, "draining", "resident"),
        ({"instance": instance_view("m02", state=State.ASLEEP)}, "asleep", "asleep"),
        ({"instance": instance_view("m02", state=State.LOADING)}, "loading", "absent"),
        ({"cached_bytes": Bytes(5), "instance": instance_view("m02", state=State.RESERVED)}, "reserved", "cached"),
    ],
)
async def test_where_the_weights_are_is_told_beside_the_state(
    row: dict[str, Any], state: str, whereabouts: str
) -> None:
    async with running() as node, aiohttp.ClientSession() as client:
        node.rows["m02"] = row
        async with client.get(f"{node.url}/v1/models/m02") as answer:
            told = await answer.json()
        assert (told["state"], told["swapd"]["state"]) == (state, whereabouts)


async def test_the_promise_and_the_measured_cold_starts_are_told_per_source() -> None:
    async with running() as node, aiohttp.ClientSession() as client:
        times = {Source.CACHE: seconds(4.25), Source.REMOTE: seconds(61.2)}
        node.rows["m02"] = {"max_wait": seconds(90), "load_times": times}
        async with client.get(f"{node.url}/v1/models/m02") as answer:
            told = (await answer.json())["swapd"]
        assert told == {"state": "absent", "max_wait_s": 90.0, "cold_start_s": {"cache": 4.25, "remote": 61.2}}


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


@pytest.mark.parametrize("path", ["/v1/models", "/api/tags"])
async def test_a_list_is_built_in_a_step_for_each_entry(path: str) -> None:
    async with running() as node:
        match = find(path)
        assert match is not None
        services = node.front._desk.services
        steps = answer_in_steps(services, match)
        assert [step for _, step in zip(range(5), steps, strict=False)] == [None] * 5
        with pytest.raises(StopIteration) as done:
            next(steps)
        assert done.value.value == at_once(answer_in_steps(services, match))


@pytest.mark.parametrize("body", [b"", b"x" * 200_000])
async def test_what_is_asked_behind_a_list_is_answered_behind_it(body: bytes) -> None:
    async with running() as node, raw_client(node.port) as client:
        ask = b"GET /v1/models HTTP/1.1\r\nHost: node\r\nContent-Length: %d\r\n\r\n" % len(body)
        await client.send((ask + body) * 3 + b"GET /health HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        got = await client.read_all()
        assert [part[:1] for part in got.split(b'{"object":"list"')[1:]] == [b","] * 3
        assert got.endswith(b'{"status":"ok"}')


async def test_a_client_that_does_not_wait_for_a_list_leaves_nothing() -> None:
    async with running() as node:
        for _ in range(20):
            async with raw_client(node.port) as client:
                await client.send(b"GET /v1/models HTTP/1.1\r\nHost: node\r\n\r\n")
        await until(lambda: not len(node.tasks))
        assert not node.failures


async def test_a_list_that_fails_is_an_internal_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as node, raw_client(node.port) as client:

        def broken(_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(type(node.front._desk.services.directory), "models", broken)
        await client.send(b"GET /v1/models HTTP/1.1\r\nHost: node\r\n\r\n")
        assert (await client.read_all()).startswith(b"HTTP/1.1 500")


async def test_tritons_questions_are_answered_without_loading() -> None:
    async with running() as node, aiohttp.ClientSession() as client:
        for name, status in (("m01", 200), ("m02", 400), ("nobody", 404)):
            async with client.get(f"{node.url}/v2/models/{name}/ready") as answer:
                assert answer.status == status
        async with client.get(f"{node.url}/v2/models/meta%2Fllama/versions/1") as answer:
            assert (await answer.json())["name"] == "meta/llama"
        assert node.core.events == []


def test_every_route_of_the_table_is_found_by_its_path() -> None:
    for path, route in EXACT.items():
        match = find(path)
        assert match is not None
        assert match.route is route
        assert find(path + "/") is None
