"""A configuration file is applied when valid, and leaves no trace but a report when not."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from swapd.agent import reload
from swapd.agent.reload import Reloader
from swapd.config.load import Loaded, load
from swapd.config.schema import Settings
from swapd.core.catalog import Catalog
from swapd.core.ids import Instant, ModelName, seconds

CONFIG = """
devices: {{virtual: {{count: {devices}, memory: 2GiB}}}}
models:
  {name}: {{command: [sleep, "{{port}}"], memory: 1GiB}}
"""


class Kept:
    """What the reloader put in force and reported."""

    def __init__(self) -> None:
        self.models: list[set[ModelName]] = []
        self.outcomes: list[bool] = []

    def applied(self, settings: Settings, catalog: Catalog) -> None:
        assert set(settings.models) == set(catalog.models)
        self.models.append(set(catalog.models))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str = "a", devices: int = 2) -> Path:
        path = tmp_path / "swapd.yaml"
        path.write_text(CONFIG.format(name=name, devices=devices))
        return path

    return write


def _reloader(loaded: Loaded, kept: Kept) -> Reloader:
    return Reloader(loaded, now=lambda: Instant(5), applied=kept.applied, outcome=kept.outcomes.append)


async def test_a_valid_file_is_applied_and_what_needs_a_restart_is_named(write: Callable[..., Path]) -> None:
    kept = Kept()
    reloader = _reloader(load(write()), kept)
    write(name="b", devices=3)
    result = await reloader.reload()
    assert result.ok
    assert "1 added, 1 removed, 0 changed" in result.detail
    assert "devices" in result.detail
    assert kept.models == [{"b"}]
    assert kept.outcomes == [True]
    assert any("devices" in key for key in reloader.restart_needed)


async def test_what_waits_for_a_restart_is_told_until_the_file_agrees_with_the_running_daemon(
    write: Callable[..., Path],
) -> None:
    reloader = _reloader(load(write()), Kept())
    waiting = []
    for name, devices in (("a", 3), ("b", 3), ("b", 2)):
        write(name=name, devices=devices)
        await reloader.reload()
        waiting.append(reloader.restart_needed)
    await reloader.aclose()
    assert waiting == [("devices.virtual.count",), ("devices.virtual.count",), ()]


async def test_a_pipe_in_the_place_of_the_file_is_refused_at_once(write: Callable[..., Path]) -> None:
    path = write()
    reloader = _reloader(load(path), Kept())
    path.unlink()
    os.mkfifo(path)
    result = await reloader.reload()
    assert "regular file" in result.detail


async def test_a_file_that_is_wrong_and_then_right_again_is_reported_both_times(write: Callable[..., Path]) -> None:
    kept = Kept()
    path = write()
    reloader = _reloader(load(path), kept)
    path.write_text("modles: {}")
    refused = await reloader.reload()
    assert not refused.ok
    assert f"{path}:1" in refused.detail
    assert reloader.error == refused.detail
    assert kept.models == []
    write()
    assert (await reloader.reload()).ok
    assert reloader.error == ""
    assert kept.outcomes == [False, True]


async def test_a_file_that_cannot_be_read_in_time_is_refused(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept()
    reloader = _reloader(load(write()), kept)
    monkeypatch.setattr(reload, "_READ_LIMIT_S", 0.0)
    result = await reloader.reload()
    assert "could not be read" in result.detail
    assert kept.models == []


async def test_an_unforeseen_error_is_a_refusal_like_any_other(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept()
    reloader = _reloader(load(write()), kept)
    monkeypatch.setattr(reload, "load", lambda _: 1 / 0)
    result = await reloader.reload()
    assert "ZeroDivisionError" in result.detail
    assert kept.outcomes == [False]


async def test_a_reload_that_finds_nothing_new_says_since_when_the_file_is_in_force(write: Callable[..., Path]) -> None:
    times = iter(map(seconds, (10, 12, 15, 15)))
    kept = Kept()
    reloader = Reloader(
        load(write()), now=lambda: Instant(next(times)), applied=kept.applied, outcome=kept.outcomes.append
    )
    assert (await reloader.reload()).detail == "nothing has changed since it was applied 2.0 s ago"
    assert (await reloader.reload()).detail == "nothing has changed since it was applied 3.0 s ago"


async def test_two_reloads_at_once_apply_one_after_the_other(write: Callable[..., Path]) -> None:
    kept = Kept()
    reloader = _reloader(load(write()), kept)
    results = await asyncio.gather(reloader.reload(), reloader.reload())
    assert all(result.ok for result in results)
    assert len(kept.models) == 2
