"""Carries out the core's orders about weights, and answers for all that lies in the cache's folder.

Orders are synchronous and report nothing themselves; the facts follow through ``post``. What is needed, held or pinned
is told by ``heed``; nothing here decides it.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from swapd.aio.supervise import Tasks
from swapd.aio.threads import Stop, on_own_thread
from swapd.core.events import FetchFailed, WeightsCached, WeightsFetched, WeightsVerified, WeightsWarmed
from swapd.core.ids import Bytes, Duration, Instant, ModelName
from swapd.core.reasons import FetchFailure
from swapd.weights.ahead import ReadAhead, in_memory
from swapd.weights.bucket import Bucket
from swapd.weights.copies import Copy, check_file, weight_files
from swapd.weights.facts import Fact, Removed
from swapd.weights.fetches import Fetches
from swapd.weights.flight import ContentLocks, Tools
from swapd.weights.folder import Folder
from swapd.weights.inventory import Layout
from swapd.weights.page_cache import Warmth
from swapd.weights.room import Room
from swapd.weights.settings import CacheSettings, CacheStats, CopyView, Limits, Progress, Standing, Weights
from swapd.weights.space import Account

_log = structlog.get_logger(__name__)


class WeightCache:
    """The weight cache of the node; made and used on one event loop."""

    def __init__(self, *, settings: CacheSettings, post: Callable[[Fact], None], now: Callable[[], Instant]) -> None:
        self._settings = settings
        self._post = post
        self._now = now
        self._tasks = Tasks()
        self._account = account = Account(Limits(settings.max_size, settings.keep_free))
        layout = Layout(settings.path)
        self._room = room = Room(account, layout, settings, post=post, now=now, lost=self._changed, tasks=self._tasks)
        self._folder = Folder(account, layout, room, settings, changed=self._changed, tasks=self._tasks)
        tools = Tools(
            settings=settings,
            account=account,
            layout=layout,
            room=room,
            bucket=Bucket(settings.bandwidth, now=time.monotonic),
            locks=ContentLocks(),
            now=now,
            ready=self._folder.open,
            gained=self._changed,
        )
        self._fetches = Fetches(tools, post=post, later=self._later, tasks=self._tasks)
        self._ahead = ReadAhead(settings, tell=self._warmed, tasks=self._tasks)
        self._told: Mapping[ModelName, Bytes] | None = None
        #: what earlier runs have measured was told
        self._looked = False
        self._local: Mapping[ModelName, Path] = {}
        self._started = False

    async def start(self) -> None:
        """Look at what is there, tell it, and watch the folder, which is created. Raises ``OSError``.

        As long as no model has a source, nothing is touched; the folder is opened when one has.
        """
        self._started = True
        if self._account.models:
            await self._folder.open()
        self._tell()

    # What the core tells:

    def serve(self, models: Mapping[ModelName, Weights], *, local: Mapping[ModelName, Path] | None = None) -> None:
        """Take the models that have a source; fetches for others, or from another source, end.

        ``local``: models whose weights are files or folders of this node outside the cache. They can be warmed and
        asked for ``in_memory``; nothing else is done with them.
        """
        for model, weights in self._account.models.items():
            if models.get(model) != weights:
                self._fetches.cancel(model)
        self._account.models = dict(models)
        self._local = dict(local or {})
        self._touched()
        if models and self._started and not self._folder.is_open:
            self._folder.open_soon()

    def heed(self, standings: Mapping[ModelName, Standing]) -> None:
        """Take what the core says of each model; one that is left out is wanted by nobody now."""
        self._account.standings = dict(standings)
        self._room.changed()

    def keep_to(self, limits: Limits) -> None:
        """Take new limits, after what ``heed`` was told: what exceeds them leaves, unless it has to stay."""
        if limits != self._account.limits:
            self._account.limits = limits
            self._room.changed()
            if self._folder.is_open:
                _ = self._tasks.start(self._trim(), name="keep to new limits")

    # Orders, each answered by one fact:

    def fetch(self, model: ModelName, *, ahead: bool = False) -> None:
        """Bring a model's weights here; ``ahead``: nobody waits yet, others go first.

        Answer: WeightsFetched, FetchFailed.
        """
        weights = self._account.models.get(model)
        if weights is None:
            detail = f"{model} names no source of its weights"
            self._later(lambda: FetchFailed(self._now(), model, FetchFailure.REFUSED, detail))
        elif self._account.usable(weights) is not None:
            self._later(lambda: WeightsFetched(self._now(), model, Bytes(0), Duration(0)))
        else:
            self._fetches.order(model, weights, ahead=ahead)

    def cancel_fetch(self, model: ModelName) -> None:
        """Nobody wants it any more: the fetch is answered with FetchFailed; what has come stays."""
        self._fetches.cancel(model)

    def refetch(self, model: ModelName) -> None:
        """Give up the copy of a model, which an engine could not load, and fetch it anew. Answer: as for a fetch."""
        weights, copy = self._account.models.get(model), self._copy(model)
        if copy is not None:
            self._folder.condemn(copy, "its engine could not load it")
            self._touched()
        if weights is None:
            self.fetch(model)
        else:
            self._fetches.order(model, weights, ahead=False, fresh=True)

    def warm(self, model: ModelName) -> None:
        """Read a model's files into the page cache, as far as memory allows; orders join. Answer: WeightsWarmed."""
        self._ahead.order(model, self._files(model))

    def stop_warming(self, model: ModelName) -> None:
        """End the reading; it is answered as it stands then."""
        self._ahead.stop(model)

    def verify(self, model: ModelName) -> None:
        """Read a copy through and compare it with its checksums. Answer: WeightsVerified."""
        copy = self._copy(model)
        if copy is None:
            detail = f"the copy of {model} is damaged" if self._copies(model) else f"{model} is not cached"
            self._later(lambda: WeightsVerified(self._now(), model, intact=False, detail=detail))
        else:
            _ = self._tasks.start(self._verify(model, copy), name="verify weights")

    def remove(self, model: ModelName) -> None:
        """Remove all copies of a model from the disk, damaged ones too, unless one has to stay. Answer: Removed."""
        _ = self._tasks.start(self._remove(model), name="remove weights")

    # Questions:

    def path(self, model: ModelName) -> Path | None:
        """Return what an engine is to load: a file, or a folder; ``None``: not cached."""
        copy = self._copy(model)
        return copy.engine_path() if copy is not None else None

    def progress(self, model: ModelName) -> Progress | None:
        """Return how far the fetch of a model has come; ``None``: it does not run."""
        return self._fetches.progress().get(model)

    def copies(self) -> tuple[CopyView, ...]:
        """Return all copies that lie in the folder, by name."""
        return tuple(
            CopyView(
                copy.path,
                copy.marker.source,
                copy.marker.revision,
                len(copy.marker.files),
                copy.size,
                self._account.models_of(copy),
                self._account.broken(copy),
            )
            for _, copy in sorted(self._account.copies.items())
        )

    def stats(self) -> CacheStats:
        """Return what metrics show."""
        return CacheStats(
            used=Bytes(self._account.used()),
            limit=Bytes(self._account.limit(self._folder.disk)),
            foreign=Bytes(self._account.foreign),
            fetches_running=self._fetches.running,
            fetches_queued=self._fetches.queued,
            fetched_bytes=self._fetches.fetched_bytes,
            evicted_copies=self._room.evicted_copies,
            evicted_bytes=self._room.evicted_bytes,
        )

    async def in_memory(self, model: ModelName) -> Bytes:
        """Return how much of a model's files is in the page cache; 0 if it has none here. Raises ``OSError``."""
        return await in_memory(self._files(model))

    async def aclose(self) -> None:
        """End everything; what has come of a fetch stays for the next run."""
        self._fetches.close()
        self._room.close()
        self._ahead.close()
        await self._tasks.aclose()

    # Inside:

    def _copy(self, model: ModelName) -> Copy | None:
        weights = self._account.models.get(model)
        return self._account.usable(weights) if weights is not None else None

    def _copies(self, model: ModelName) -> list[Copy]:
        """Return all copies of a model, the one that is used, damaged and former ones."""
        return [copy for copy in self._account.copies.values() if model in self._account.models_of(copy)]

    def _files(self, model: ModelName) -> Callable[[], list[Path]]:
        """Return what lists the files of a model; that blocks, and raises ``OSError``."""
        copy, local = self._copy(model), self._local.get(model)
        if copy is not None:
            return lambda: [copy.path / file.name for file in copy.marker.files]
        return lambda: weight_files(local) if local is not None else []

    def _later(self, fact: Callable[[], Fact]) -> None:
        """Post a fact once the order that caused it is over: the core may be in the middle of a decision.

        It is made then, because others may have been told meanwhile, and none is older than the one before.
        """
        asyncio.get_running_loop().call_soon(lambda: self._post(fact()))

    def _changed(self) -> None:
        """Note that the account has changed, and tell it; not for orders."""
        self._folder.account_changed()
        self._room.changed()
        self._tell()

    def _touched(self) -> None:
        """Note that an order has changed the account; it is told when the order is over."""
        self._folder.account_changed()
        self._room.changed()
        asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        """Tell which models are cached, if it is not what was told last."""
        if not self._started or (self._account.models and not self._folder.is_open):
            return  # nobody has looked yet
        cached = {}
        for model, weights in sorted(self._account.models.items()):
            copy = self._account.usable(weights)
            if copy is not None:
                cached[model] = copy.size
        earlier = self._account.measured() if self._folder.is_open and not self._looked else ()
        self._looked = self._folder.is_open  # what comes from now on is measured by the fetches themselves
        if cached != self._told or earlier:
            self._told = cached
            self._post(WeightsCached(self._now(), cached, earlier))

    async def _trim(self) -> None:
        try:
            await self._room.trim()
        except OSError as error:
            _log.warning("cache_not_read", path=str(self._settings.path), error=str(error))

    async def _verify(self, model: ModelName, copy: Copy) -> None:
        stop = Stop()

        def check() -> str:
            for file in copy.marker.files:
                stop.check()
                if detail := check_file(copy.path, file):
                    return detail
            return ""

        self._account.borrow(copy.folder)
        try:
            detail = await on_own_thread(check, name="swapd-verify", stop=stop)
        finally:
            self._account.give_back(copy.folder)
            self._room.changed()
        if detail and self._account.copies.get(copy.folder) == copy:
            self._folder.condemn(copy, detail)
            self._changed()
        self._post(WeightsVerified(self._now(), model, intact=not detail, detail=detail))

    async def _remove(self, model: ModelName) -> None:
        copies = self._copies(model)
        detail, freed = "" if copies else f"{model} is not cached", 0
        for copy in copies:
            obstacle = await self._obstacle(model, copy)
            if not obstacle and self._account.copies.get(copy.folder) == copy:
                freed += await self._room.remove(copy)
            detail = detail or obstacle
        self._post(Removed(self._now(), model, Bytes(freed), detail))

    async def _obstacle(self, model: ModelName, copy: Copy) -> str:
        if await self._room.used_by_somebody(copy):
            return f"a process has files of {model} open"
        if self._account.may_leave(copy):
            return ""
        holders = self._account.holders(copy)
        if not holders or model in holders:
            return f"{model} is in use or pinned"
        return f"the copy of {model} is that of {holders[0]} too, which is in use or pinned"

    def _warmed(self, model: ModelName, warmth: Warmth) -> None:
        self._post(WeightsWarmed(self._now(), model, Bytes(warmth.read), Bytes(warmth.present), warmth.whole))
