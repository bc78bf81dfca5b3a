"""The pool counts its connections rightly, whatever becomes of their making."""

import asyncio

import pytest

from swapd.core.ids import SECOND, Duration
from swapd.proxy.front.pool import EnginePool
from swapd.proxy.services import Endpoint
from tests.proxy.harness import INSTANCE, raw_engine, running, until


async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Be an engine that is never asked."""
    del writer
    await reader.read()


async def test_a_connection_that_is_given_up_at_any_moment_of_its_making_is_not_counted() -> None:
    async with raw_engine(listens) as port:
        pool = EnginePool(Endpoint("127.0.0.1", port), Duration(5 * SECOND))
        cancelled = 0
        for turns in range(12):
            making = asyncio.ensure_future(pool.connect())
            for _ in range(turns):
                await asyncio.sleep(0)
            making.cancel()
            try:
                (await making).close()
            except asyncio.CancelledError:
                cancelled += 1
        assert cancelled
        await until(lambda: pool.open == 0, "the end of every connection")


async def test_a_connection_that_is_refused_is_not_counted() -> None:
    async with raw_engine(listens) as port:
        pass
    pool = EnginePool(Endpoint("127.0.0.1", port), Duration(5 * SECOND))
    with pytest.raises(OSError, match=r"refused|Connect"):
        await pool.connect()
    assert pool.open == 0


async def test_a_connection_that_is_being_made_is_counted_so_that_its_pool_is_kept() -> None:
    async with raw_engine(listens) as port:
        pool = EnginePool(Endpoint("127.0.0.1", port), Duration(5 * SECOND))
        making = asyncio.ensure_future(pool.connect())
        await asyncio.sleep(0)
        assert pool.open == 1
        connection = await making
        assert pool.open == 1
        connection.close()
        await until(lambda: pool.open == 0, "the end of the connection")


async def test_a_pool_that_is_about_to_open_its_first_connection_is_kept() -> None:
    async with raw_engine(listens) as port, running(engine_port=port) as node:
        server = node.front._server
        pool = server.pool(INSTANCE)
        server._sweep_front()
        assert server.pool(INSTANCE) is pool
        del node.endpoints[INSTANCE]
        server._sweep_front()
        assert server.pool(INSTANCE) is None
