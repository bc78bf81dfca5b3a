"""Runs what opens a front door on both of its paths, and all of it on both loops."""

import asyncio
import inspect
from collections.abc import Callable, Mapping

import pytest
import uvloop

from tests.proxy import harness

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, LoopFactory]:
    del item
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    opens_a_door = getattr(metafunc.module, "running", None) is harness.running
    if opens_a_door and inspect.iscoroutinefunction(metafunc.function):
        metafunc.parametrize("fast_path", [True, False], ids=["fast", "slow"], indirect=True)


@pytest.fixture(autouse=True)
def fast_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Tell on which path the front door serves requests of plain form."""
    fast: bool = getattr(request, "param", True)
    monkeypatch.setattr(harness, "FAST_PATH", fast)
    return fast
