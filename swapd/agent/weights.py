"""Carries the core's orders to the weight cache, and what the cache tells back to the core; decides nothing.

A cache that cannot be opened does not end the daemon: models whose weights lie elsewhere are refused with the reason,
all others are served, and every fetch that the core orders tries again.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar, assert_never

import structlog

from swapd.admin.cache import CacheInfo, CopyInfo
from swapd.aio.supervise import Tasks
from swapd.config.paths import cache_dir
from swapd.config.schema import Settings
from swapd.core.commands import (
    CancelFetch,
    FetchWeights,
    KeepWeights,
    RefetchWeights,
    StopWarming,
    VerifyWeights,
    WarmWeights,
)
from swapd.core.events import (
    Event,
    FetchFailed,
    FetchProgressed,
    FetchWaits,
    WeightsCached,
    WeightsVerified,
)
from swapd.core.ids import Bytes, Instant, ModelName
from swapd.core.view import WeightStanding
from swapd.metrics.now import CacheNow
from swapd.weights.cache import WeightCache
from swapd.weights.facts import Evicted, Fact, Removed
from swapd.weights.settings import CacheSettings, Limits, Standing, Weights

T = TypeVar("T")

WeightOrder = KeepWeights | FetchWeights | RefetchWeights | CancelFetch | WarmWeights | StopWarming | VerifyWeights
"""What the core may order of the weight cache."""

REFRESH_S: Final = 30.0
"""How often the cache is told anew what losing a copy would cost: that changes by itself as time goes on."""

_OPEN_S: Final = 10.0
"""How long the first look at the cache may keep the daemon from serving."""

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("swapd")


def cache_settings(settings: Settings) -> CacheSettings:
    """Return what the room of the weights needs."""
    cache = settings.cache
    return CacheSettings(
        path=cache_dir(settings),
        max_size=cache.max_size,
        keep_free=cache.keep_free,
        max_parallel_fetches=cache.max_parallel_fetches,
        bandwidth=cache.bandwidth,
    )


class WeightDesk:
    """The weight cache as the rest of the daemon sees it."""

    def __init__(
        self,
        settings: CacheSettings,
        *,
        post: Callable[[Event], None],
        now: Callable[[], Instant],
        standings: Callable[[], Mapping[ModelName, WeightStanding]],
        sized: Callable[[Mapping[ModelName, Bytes]], None],
    ) -> None:
        """``standings`` asks the core; ``sized`` is told the sizes of copies before the core hears of them."""
        self._post = post
        self._standings = standings
        self._sized = sized
        self._cache = WeightCache(settings=settings, post=self._told, now=now)
        self._path = settings.path
        self._now = now
        self._served: Mapping[ModelName, Weights] = {}
        #: what the room has told last: size of the copy by model
        self._cached: Mapping[ModelName, Bytes] = {}
        #: why fetches wait for room, as told last
        self._waits: dict[ModelName, str] = {}
        self._looks: dict[ModelName, list[asyncio.Future[WeightsVerified]]] = {}
        self._removals: dict[ModelName, list[asyncio.Future[Removed]]] = {}

    def serve(self, settings: Settings) -> None:
        """Take the models of a configuration, before the core does.

        The core must not take the copy of a model's former source for one of its new source: such a model counts as not
        cached until the room has said what there is, after the core has taken the configuration, too.
        """
        before, known = self._served, self._cached
        sources = ((ModelName(name), model.source) for name, model in settings.models.items())
        self._served = {
            name: Weights(source.source, include=source.include, sha256=source.sha256)
            for name, source in sources
            if source is not None
        }
        local = {
            ModelName(name): model.local_weights
            for name, model in settings.models.items()
            if model.local_weights is not None
        }
        self._cache.serve(self._served, local=local)
        kept = {model: size for model, size in known.items() if before.get(model) == self._served.get(model)}
        if kept != known:
            self._post(WeightsCached(self._now(), kept))
        limits = Limits(settings.cache.max_size, settings.cache.keep_free)
        asyncio.get_running_loop().call_soon(self._served_by_core, limits)

    async def start(self, tasks: Tasks) -> None:
        """Look at what is there, and keep the cache informed from now on.

        A disk that does not answer is not waited for: fetches are, until it does.
        """
        _ = tasks.start(self._refresh(), name="weight standings")
        _ = await asyncio.wait((tasks.start(self._open(), name="open the weight cache"),), timeout=_OPEN_S)

    async def _open(self) -> None:
        try:
            await self._cache.start()
        except OSError as error:
            reason = error.strerror or str(error)
            effect = "models with a weights.source are refused until it can be opened; all others are served"
            _log.error("cache_not_opened", path=str(self._path), detail=reason, effect=effect)

    async def aclose(self) -> None:
        """End all fetches; what has come stays for the next run."""
        await self._cache.aclose()

    # What the core orders:

    def carry_out(self, order: WeightOrder) -> None:
        """Hand an order to the room."""
        match order:
            case KeepWeights():
                self.heed()
            case FetchWeights():
                self.heed()  # it is about to need room
                self._cache.fetch(order.model, ahead=order.ahead)
            case RefetchWeights():
                self._cache.refetch(order.model)
            case CancelFetch():
                self._cache.cancel_fetch(order.model)
            case WarmWeights():
                self._cache.warm(order.model)
            case StopWarming():
                self._cache.stop_warming(order.model)
            case VerifyWeights():
                self._cache.verify(order.model)
            case _:
                assert_never(order)

    def heed(self) -> None:
        """Tell the cache what the core thinks of each model now."""
        if not self._served:
            return
        self._cache.heed(
            {
                model: Standing(
                    held=told.held,
                    pinned=told.pinned,
                    frequency=told.frequency,
                    refetch=told.refetch,
                    last_used=told.last_used,
                )
                for model, told in self._standings().items()
            }
        )

    # What an operator orders:

    async def verify(self, model: ModelName) -> WeightsVerified:
        """Compare a copy with its checksums."""
        answer: asyncio.Future[WeightsVerified] = asyncio.get_running_loop().create_future()
        self._looks.setdefault(model, []).append(answer)
        self._cache.verify(model)
        return await answer

    async def remove(self, model: ModelName) -> Removed:
        """Remove a copy, unless it has to stay."""
        self.heed()
        answer: asyncio.Future[Removed] = asyncio.get_running_loop().create_future()
        self._removals.setdefault(model, []).append(answer)
        self._cache.remove(model)
        return await answer

    # What there is:

    def path(self, model: ModelName) -> Path | None:
        """Return the file or folder that an engine is to load; ``None``: the model has no copy."""
        return self._cache.path(model)

    def info(self) -> CacheInfo | None:
        """Return how the cache stands, for operators; ``None``: no model needs one."""
        if not self._served:
            return None
        stats = self._cache.stats()
        copies = tuple(
            CopyInfo(
                path=str(copy.path),
                source=copy.source,
                revision=copy.revision,
                files=copy.files,
                size=copy.size,
                models=copy.models,
                damaged=copy.damaged,
            )
            for copy in self._cache.copies()
        )
        return CacheInfo(str(self._path), stats.used, stats.limit, stats.foreign, copies)

    def figures(self) -> CacheNow | None:
        """Return how the cache stands, for metrics; ``None``: no model needs one."""
        if not self._served:
            return None
        stats = self._cache.stats()
        return CacheNow(
            used=stats.used,
            limit=stats.limit,
            foreign=stats.foreign,
            copies=len(self._cache.copies()),
            fetches_running=stats.fetches_running,
            fetches_queued=stats.fetches_queued,
            fetched_bytes=stats.fetched_bytes,
            evicted_copies=stats.evicted_copies,
            evicted_bytes=stats.evicted_bytes,
        )

    # Inside:

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            self.heed()

    def _served_by_core(self, limits: Limits) -> None:
        """Go on after the core has taken a configuration: only then does it know what is pinned and needed."""
        if self._cached:
            self._post(WeightsCached(self._now(), self._cached))
        self.heed()
        self._cache.keep_to(limits)

    def _note(self, fact: Event) -> None:
        """Write into the log why a fetch waits, not each time that it still does."""
        if isinstance(fact, FetchWaits):
            if self._waits.get(fact.model) != fact.detail:
                _log.warning("fetch_waits", model=fact.model, detail=fact.detail)
            self._waits[fact.model] = fact.detail
        elif isinstance(fact, FetchProgressed | FetchFailed):
            self._waits.pop(fact.model, None)

    def _told(self, fact: Fact) -> None:
        match fact:
            case WeightsCached():
                self._cached = fact.cached
                self._sized(fact.cached)
                self._post(replace(fact, at=self._now()))  # the core may have been told of the sizes since
            case Removed():
                _answer(self._removals.pop(fact.model, []), fact)
            case Evicted():
                pass  # the core has been told that the copy is gone, and the room's figures count it
            case _:
                self._note(fact)
                self._post(fact)
                if isinstance(fact, WeightsVerified):
                    _answer(self._looks.pop(fact.model, []), fact)


def _answer(waiting: list[asyncio.Future[T]], fact: T) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(fact)
