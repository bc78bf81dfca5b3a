"""Runs a weight cache for a test and waits for its facts."""

import asyncio
import functools
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from swapd.core.events import FetchFailed, WeightsCached, WeightsFetched
from swapd.core.ids import Instant, ModelName, seconds
from swapd.weights import CacheSettings, WeightCache, Weights
from swapd.weights.facts import Fact

DEADLINE_S = 60.0
MIB = 2**20
F = TypeVar("F", bound=Fact)
M = ModelName("m")
N = ModelName("n")


@functools.cache
def noise(size: int, seed: int = 1) -> bytes:
    """Return bytes that no two places have in common, the same ones every time."""
    return random.Random(seed).randbytes(size)


class Running:
    """A cache and what it has told."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self._path = path
        self.facts: list[Fact] = []
        self.on_fact: Callable[[Fact], None] = lambda fact: None
        self._told = asyncio.Event()
        fast = {"retry_first": seconds(0.01), "spare_memory": 0, "space_period": seconds(0.05), "keep_free": 0.0}
        self.cache = WeightCache(
            settings=CacheSettings(path=path, **{**fast, **settings}),
            post=self._post,
            now=lambda: Instant(time.monotonic_ns()),
        )

    def _post(self, fact: Fact) -> None:
        self.facts.append(fact)
        self.on_fact(fact)
        self._told.set()

    async def until(self, kind: type[F], model: ModelName | None = None, *, since: int = 0) -> F:
        """Wait for a fact of a kind about a model; `since`: index of the first fact that counts."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for fact in self.facts[since:]:
                    if isinstance(fact, kind) and model in (None, getattr(fact, "model", None)):
                        return fact
                self._told.clear()
                await self._told.wait()

    async def fetch(self, model: ModelName = M, **how: Any) -> WeightsFetched | FetchFailed:
        """Order a fetch and return its answer."""
        since = len(self.facts)
        self.cache.fetch(model, **how)
        return await self.answer(model, since=since)

    async def answer(self, model: ModelName = M, *, since: int = 0) -> WeightsFetched | FetchFailed:
        return await self.until(WeightsFetched | FetchFailed, model, since=since)  # type: ignore[arg-type]

    async def settled(self) -> None:
        """Wait until nothing is left beside the copies."""
        own = self._path / ".swapd"
        async with asyncio.timeout(DEADLINE_S):
            while any(os.listdir(own / part) for part in ("partial", "staging", "trash")):  # noqa: PTH208
                await asyncio.sleep(0.005)

    @property
    def cached(self) -> dict[ModelName, int]:
        """Return what was told last to be cached."""
        return dict(next(fact.cached for fact in reversed(self.facts) if isinstance(fact, WeightsCached)))

    async def until_cached(self, expected: dict[ModelName, int]) -> None:
        """Wait until this is told to be cached."""
        async with asyncio.timeout(DEADLINE_S):
            while self.cached != expected:
                self._told.clear()
                await self._told.wait()


@asynccontextmanager
async def running(
    path: Path, models: dict[ModelName, Weights] | None = None, **settings: Any
) -> AsyncIterator[Running]:
    made = Running(path, **settings)
    made.cache.serve(models or {})
    await made.cache.start()
    try:
        yield made
    finally:
        await made.cache.aclose()
