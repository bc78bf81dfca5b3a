"""A bug, wherever it hits a request, ends that request visibly: nobody waits for ever, and nothing is left of it."""

import asyncio
from typing import Any, cast

import pytest

from swapd.proxy.front.engine import EngineConnection
from swapd.proxy.services import Endpoint
from swapd.proxy.usage import UsageReader
from tests.proxy.breaking import BODY, CHAT_PATH, dies_after
from tests.proxy.harness import INSTANCE, post_bytes, raw_client, raw_engine, running, until

UNTIL_CLOSE = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{}"


def raises(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError


async def test_when_the_request_is_sent_on_a_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineConnection, "send", raises)
    async with raw_engine(dies_after(b"")) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        assert (await client.read_all()).startswith(b"HTTP/1.1 500 ")
        await node.settled(1)
        await until(lambda: node.front.engine_connections == 0, "the end of the connection")


async def test_when_the_engine_ends_its_answer_by_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UsageReader, "finish", raises)
    engine = dies_after(UNTIL_CLOSE)
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        assert (await client.read_all()).startswith(b"HTTP/1.1 200 ")
        await node.settled(1)


async def test_when_a_request_that_has_waited_is_granted() -> None:
    async with running() as node, raw_client(node.port) as client:
        node.endpoints[INSTANCE] = cast("Endpoint", "no endpoint")
        node.core.hold = True
        await client.send(post_bytes(CHAT_PATH, BODY))
        await until(lambda: node.core.waiting)
        node.core.grant_all()
        assert (await client.read_all()).startswith(b"HTTP/1.1 500 ")
        await node.settled(1)
        await asyncio.sleep(0)
        assert len(node.tasks) == 0
