"""What happens when the client leaves: noticed at once, wherever it is, and ended once."""

import asyncio

import pytest

from swapd.core.ids import SECOND, Duration
from swapd.core.reasons import Outcome
from swapd.proxy.services import RouteOptions
from swapd.proxy.settings import ProxySettings
from tests.proxy.breaking import BODY, CHAT_PATH, SSE_HEAD, Watched, chunk, dies_after
from tests.proxy.harness import (
    DEADLINE_S,
    post_bytes,
    raw_client,
    raw_engine,
    read_request,
    running,
    until,
)


async def test_a_client_that_leaves_a_stream_closes_the_engines_connection() -> None:
    engine = Watched()
    async with raw_engine(engine) as port, running(engine_port=port) as node:
        async with raw_client(node.port) as client:
            await client.send(post_bytes(CHAT_PATH, BODY))
            await client.read_until(b"data: 1\n\n")
            client.leave()
        await until(lambda: engine.closed == 1)
        record = await node.settled(1)
        assert node.core.outcomes == [Outcome.CANCELLED]
        assert record.status == 200


@pytest.mark.parametrize("finish", [False, True])
async def test_all_that_a_client_got_before_it_left_a_stream_is_counted(*, finish: bool) -> None:
    events = [b"data: %d\n\n" % number for number in range(12)]
    step, left = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(SSE_HEAD)
        for event in events:
            await step.wait()
            step.clear()
            writer.write(chunk(event))
        await left.wait()
        writer.write(chunk(b'data: {"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n') + b"0\r\n\r\n")

    async with raw_engine(talk) as port, running(engine_port=port) as node:
        node.options["m01"] = RouteOptions(finish_on_abort=finish)
        async with raw_client(node.port) as client:
            await client.send(post_bytes(CHAT_PATH, BODY))
            for event in events:
                step.set()
                await client.read_until(event)
            client.leave()
        await until(lambda: node.unattended == 1 if finish else not node.core.open)
        left.set()
        record = await node.settled(1)
        assert record.bytes_out == len(b"".join(events))
        assert record.completion_tokens == (4 if finish else None)


@pytest.mark.parametrize("gently", [False, True])
async def test_a_client_that_leaves_the_queue_is_removed_at_once(*, gently: bool) -> None:
    async with running() as node:
        node.core.hold = True
        async with raw_client(node.port) as client:
            await client.send(post_bytes(CHAT_PATH, BODY))
            await until(lambda: node.core.waiting)
            client.writer.close() if gently else client.leave()
            record = await node.settled(1)
        assert node.core.outcomes == [Outcome.CANCELLED]
        assert (record.status, record.ttfb_s) == (0, None)


async def test_a_client_that_leaves_before_the_engine_answers_closes_the_engines_connection() -> None:
    asked = asyncio.Event()
    closed = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        asked.set()
        assert await reader.read() == b""
        closed.set()

    async with raw_engine(talk) as port, running(engine_port=port) as node:
        async with raw_client(node.port) as client:
            await client.send(post_bytes(CHAT_PATH, BODY))
            await asyncio.wait_for(asked.wait(), DEADLINE_S)
            client.leave()
        await asyncio.wait_for(closed.wait(), DEADLINE_S)
        await node.settled(1)
        assert node.core.outcomes == [Outcome.CANCELLED]


async def test_with_finish_an_abandoned_answer_is_read_to_its_end_and_counts_until_then() -> None:
    engine = Watched()
    async with raw_engine(engine) as port, running(engine_port=port) as node:
        node.options["m01"] = RouteOptions(finish_on_abort=True)
        async with raw_client(node.port) as client:
            await client.send(post_bytes(CHAT_PATH, BODY))
            await client.read_until(b"data: 1\n\n")
            client.leave()
        await until(lambda: node.unattended == 1)
        assert len(node.core.open) == 1
        engine.finish.set()
        record = await node.settled(1)
        assert (engine.ended, engine.closed) == (1, 0)
        assert node.core.outcomes == [Outcome.CANCELLED]
        assert (record.prompt_tokens, record.completion_tokens) == (3, 4)


async def test_with_finish_also_an_answer_that_has_not_begun_is_read_to_its_end() -> None:
    go = asyncio.Event()
    ended = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await go.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        ended.set()

    async with raw_engine(talk) as port, running(engine_port=port) as node:
        node.options["m01"] = RouteOptions(finish_on_abort=True)
        async with raw_client(node.port) as client:
            await client.send(post_bytes(CHAT_PATH, BODY))
            await until(lambda: node.core.open)
            client.leave()
        await until(lambda: node.unattended == 1)
        assert len(node.core.open) == 1
        go.set()
        await node.settled(1)
        assert ended.is_set()


async def test_with_finish_the_reading_is_bounded_in_time_and_by_a_cut() -> None:
    engine = Watched()
    settings = ProxySettings(finish_timeout=Duration(SECOND // 20))
    async with raw_engine(engine) as port, running(settings, engine_port=port) as node:
        node.options["m01"] = RouteOptions(finish_on_abort=True)
        await _abandon(node.port)
        await node.settled(1)
        node.reconfigure(ProxySettings())
        await _abandon(node.port)
        await until(lambda: node.unattended == 1)
        node.core.cut_all()
        await node.settled(2)
        assert node.core.outcomes == [Outcome.CANCELLED, Outcome.CUT]
        await until(lambda: engine.closed == 2)


async def _abandon(port: int) -> None:
    async with raw_client(port) as client:
        await client.send(post_bytes(CHAT_PATH, BODY))
        await client.read_until(b"data: 1\n\n")
        client.leave()


async def test_clients_that_vanish_at_any_moment_leave_nothing() -> None:
    engine = Watched()

    async def come_and_go(node_port: int, stage: int) -> None:
        async with raw_client(node_port) as client:
            request = post_bytes(CHAT_PATH, BODY)
            await client.send(request[: 20 + stage * 17] if stage < 5 else request)
            if stage > 7:
                await client.read_until(b"data: 1\n\n")
            client.leave()

    async with raw_engine(engine) as port, running(engine_port=port) as node:
        for round_ in range(5):
            node.core.hold = round_ % 2 == 0
            await asyncio.gather(*(come_and_go(node.port, stage) for stage in range(8 if node.core.hold else 11)))
        node.core.hold = False
        engine.finish.set()
        async with raw_client(node.port) as client:
            await client.send(post_bytes(CHAT_PATH, BODY))
            await client.read_until(b"0\r\n\r\n")
        await until(lambda: engine.closed + engine.ended == engine.requests)
        await until(lambda: not node.core.open and not node.front.gate.open_requests)
        await until(lambda: node.front.buffered_bytes == 0)
        assert set(node.core.outcomes) <= {Outcome.CANCELLED, Outcome.SERVED}


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n\r\n", SSE_HEAD + chunk(b"data: 1\n\n")])
async def test_with_finish_an_answer_that_fails_without_its_client_ends_the_request(answer: bytes) -> None:
    asked = asyncio.Event()
    go = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        asked.set()
        await go.wait()
        writer.write(answer)

    async with raw_engine(talk) as port, running(engine_port=port) as node:
        node.options["m01"] = RouteOptions(finish_on_abort=True)
        async with raw_client(node.port) as client:
            await client.send(post_bytes(CHAT_PATH, BODY))
            await asyncio.wait_for(asked.wait(), DEADLINE_S)
            client.leave()
        await until(lambda: node.unattended == 1)
        go.set()
        await node.settled(1)
        assert node.core.outcomes == [Outcome.CANCELLED]


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n\r\n"])
async def test_with_finish_a_failed_attempt_is_told_as_without(answer: bytes) -> None:
    engine = dies_after(answer)
    async with raw_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        node.options["m01"] = RouteOptions(finish_on_abort=True)
        await client.send(post_bytes(CHAT_PATH, BODY))
        assert (await client.read_head()).startswith(b"HTTP/1.1 502")
        await node.settled(1)


async def test_with_finish_nothing_is_finished_once_the_daemon_closes() -> None:
    engine = Watched()
    async with raw_engine(engine) as port, running(engine_port=port) as node:
        node.options["m01"] = RouteOptions(finish_on_abort=True)
        async with raw_client(node.port) as client:
            await client.send(post_bytes(CHAT_PATH, BODY))
            await client.read_until(b"data: 1\n\n")
            await node.tasks.aclose()
            client.leave()
        await node.settled(1)
        assert node.core.outcomes == [Outcome.CANCELLED]
        await until(lambda: engine.closed == 1)
