"""The daemon as one object: a broken law of the core leaves evidence, no engine, and an exit status of its own."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import yaml

from swapd.agent.daemon import EXIT_BROKEN, EXIT_OK, Daemon
from swapd.agent.places import Places
from swapd.agent.signals import Signals
from swapd.config.load import load
from swapd.core.events import Event, UnloadOrdered
from swapd.core.ids import ModelName
from swapd.core.scheduler import Scheduler
from swapd.history.store import History
from tests.agent.test_requests import RESIDENT
from tests.fakes.scripted import scripted_model


def last_fact(state: Path) -> dict[str, Any]:
    """Return the last line of the one dump."""
    [dump] = state.glob("flight-*.jsonl")
    fact: dict[str, Any] = json.loads(dump.read_text().splitlines()[-1])
    return fact


@contextlib.asynccontextmanager
async def composed(tmp_path: Path) -> AsyncIterator[tuple[Daemon, Signals]]:
    config: dict[str, Any] = {
        "http": {"listen": "127.0.0.1:0"},
        "metrics": {"listen": "127.0.0.1:0"},
        "devices": {"virtual": {"count": 1, "memory": "2GiB"}},
        "models": {"a": scripted_model()},
    }
    path = tmp_path / "swapd.yaml"
    path.write_text(yaml.safe_dump(config))
    history = History(tmp_path / "state.db", report=pytest.fail)
    await history.start()
    signals = Signals()
    places = Places(state=tmp_path / "state.db", logs=tmp_path / "logs", admin=tmp_path / "admin.sock")
    daemon = Daemon(load(path), history, places, signals)
    await daemon.open()
    yield daemon, signals


async def test_it_serves_until_it_is_told_to_stop_and_leaves_in_order(tmp_path: Path) -> None:
    async with composed(tmp_path) as (daemon, signals):
        living = asyncio.ensure_future(daemon.live())
        result = await daemon._control.load("a")  # type: ignore[arg-type] - a plain string is a model's name
        assert result.ok
        assert [model.instance is not None for model in daemon._scheduler.view().models] == [True]
        signals.stop.set()
        assert await living == EXIT_OK
    assert daemon._scheduler.view().instances == ()


async def test_a_request_that_ends_with_the_daemon_is_on_record(tmp_path: Path) -> None:
    async with composed(tmp_path) as (daemon, signals):

        async def finish_without_its_client() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                daemon._requests.finished(RESIDENT)

        _ = daemon._tasks.start(finish_without_its_client(), name="finish")
        signals.stop.set()
        assert await daemon.live() == EXIT_OK
    [day] = (tmp_path / "arrivals").glob("*.csv")
    assert [line.split(",")[1:] for line in day.read_text().splitlines()[1:]] == [["m01", "1.000"]]


async def test_a_request_that_ended_before_its_model_was_removed_counts_for_no_unknown_one(tmp_path: Path) -> None:
    async with composed(tmp_path) as (daemon, signals):
        living = asyncio.ensure_future(daemon.live())
        daemon._requests.finished(msgspec.structs.replace(RESIDENT, model=ModelName("a")))
        path = tmp_path / "swapd.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"models": {"b": scripted_model()}}))
        assert (await daemon._control.reload()).ok
        page, _ = await daemon._metrics.page("")
        signals.stop.set()
        assert await living == EXIT_OK
    assert b"__unknown__" not in page


async def test_a_broken_law_dumps_the_last_facts_kills_the_engines_and_ends_with_its_own_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with composed(tmp_path) as (daemon, _):
        living = asyncio.ensure_future(daemon.live())
        await daemon._control.load("a")  # type: ignore[arg-type] - a plain string is a model's name
        [process] = [daemon._instances.describe(instance.instance) for instance in daemon._scheduler.view().instances]
        assert process is not None
        assert process.pid is not None
        sound = Scheduler.handle

        def broken(self: Scheduler, event: Event) -> object:
            assert not isinstance(event, UnloadOrdered), "a law is broken"
            return sound(self, event)

        monkeypatch.setattr(Scheduler, "handle", broken)
        order = asyncio.ensure_future(daemon._control.unload("a", None))  # type: ignore[arg-type] - as above
        assert await living == EXIT_BROKEN
        order.cancel()
    assert last_fact(tmp_path)["event"] == "UnloadOrdered"
    assert not psutil.pid_exists(process.pid)
