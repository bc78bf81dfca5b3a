"""What changes in the cache's folder is heard of, also when the folder itself is another one."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from swapd.weights import watch
from tests.weights.caches import DEADLINE_S


async def test_a_folder_made_anew_is_watched_though_it_has_the_number_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_inode", lambda _: 7)
    monkeypatch.setattr(watch, "_QUIET_MS", 50)
    monkeypatch.setattr(watch, "_STEP_MS", 10)
    folder = tmp_path / "cache"
    folder.mkdir()
    async with asyncio.timeout(DEADLINE_S), aclosing(watch.signs(folder, folder / ".swapd", period_s=1e6)) as heard:
        assert await anext(heard) is None, "at the start"
        assert await anext(heard) is None, "once it is watched"
        folder.rmdir()
        folder.mkdir()
        assert await anext(heard) is None, "the old one has gone"
        assert await anext(heard) is None, "before the new one is watched"
        assert await anext(heard) is None, "once it is watched"
        (folder / "m").touch()
        assert await anext(heard) is None, "what is new in it"
