"""Runs what depends on the event loop's own ways on both loops: plain asyncio and uvloop."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

_ON_BOTH = (
    *("test_breaks.py", "test_departures.py", "test_flow.py", "test_heads.py", "test_interim.py", "test_relay.py"),
    *("test_time_limit.py", "test_websocket.py"),
)

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, LoopFactory]:
    plain: Mapping[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}
    return {**plain, "uvloop": uvloop.new_event_loop} if item.path.name in _ON_BOTH else plain
