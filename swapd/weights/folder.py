"""Keeps the account in agreement with the cache's folder: opens it, looks at it, watches it.

Rules:
* Nothing is touched before the folder is needed, and nothing is told of it before it was looked at.
* A look takes time, on a thread: one during which the account has changed is not believed.
* A copy that was found damaged is used no more, in later runs neither.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog

from swapd.aio.supervise import Tasks
from swapd.aio.threads import on_own_thread
from swapd.core.ids import SECOND
from swapd.weights.copies import Copy, condemn, settle_doubts
from swapd.weights.inventory import Layout, scan
from swapd.weights.room import Room
from swapd.weights.settings import CacheSettings
from swapd.weights.space import Account, Disk
from swapd.weights.watch import signs

_SCANS = 5
"""A folder that is changed by ourselves during so many looks is looked at again at the next sign."""

_EFFECT = "fetched again when it is wanted"

_log = structlog.get_logger(__name__)


class Folder:
    """The folder of the cache, on the event loop."""

    def __init__(
        self,
        account: Account,
        layout: Layout,
        room: Room,
        settings: CacheSettings,
        *,
        changed: Callable[[], None],
        tasks: Tasks,
    ) -> None:
        """Touch nothing yet; ``changed`` is called, from a task, when a look has changed the account."""
        self._account = account
        self._layout = layout
        self._room = room
        self._settings = settings
        self._changed = changed
        self._tasks = tasks
        self._opening = asyncio.Lock()
        #: grows with every change of the account, so that a look from before is not believed
        self._generation = 0
        self._doubts: set[str] = set()
        #: it is there, was looked at and is watched
        self.is_open = False
        self.disk = Disk(0, 0)

    def account_changed(self) -> None:
        """Believe no look that began before this."""
        self._generation += 1

    async def open(self) -> None:
        """Have the folder there, looked at and watched. Raises ``OSError``."""
        async with self._opening:
            await on_own_thread(self._layout.make, name="swapd-make")
            if self.is_open:
                return
            await on_own_thread(self._layout.tidy, name="swapd-tidy")
            self._room.sweep(await on_own_thread(self._layout.rubbish, name="swapd-rubbish"))
            await self.look()
            self.is_open = True
        self._changed()
        _ = self._tasks.start(self._watch(), name="watch the weight cache")

    def open_soon(self) -> None:
        """Open it in a task; if that fails, the next fetch tries again, and fails with the reason."""
        _ = self._tasks.start(self._open_soon(), name="open the weight cache")

    async def _open_soon(self) -> None:
        try:
            await self.open()
        except OSError as error:
            _log.warning("cache_not_opened", path=str(self._layout.path), error=str(error))

    async def _watch(self) -> None:
        period_s = self._settings.look_period / SECOND
        async for _ in signs(self._layout.path, self._layout.own, period_s=period_s):
            try:
                await self.look()
            except OSError as error:
                _log.warning("cache_not_read", path=str(self._layout.path), error=str(error))

    async def look(self) -> None:
        """Look at the folder and take over what is other than in the account."""
        with suppress(FileNotFoundError):  # the whole folder was removed: then nothing is there
            self.disk = await self._room.disk()
        for _ in range(_SCANS):
            generation = self._generation
            found = await on_own_thread(lambda: scan(self._layout), name="swapd-scan")
            if generation == self._generation and not any(booking.assembling for booking in self._account.bookings):
                break
        else:
            return
        account = self._account
        leaving = {one.path.name for one in account.leaving}
        copies = {name: copy for name, copy in found.copies.items() if name not in leaving}
        changed = copies != account.copies
        self._tell_lost(copies)
        account.copies = copies
        account.partials = {name: size for name, size in found.partials.items() if name not in leaving}
        account.foreign = found.foreign
        account.damaged = {name for name, copy in copies.items() if copy.condemned or name in account.damaged}
        for copy in copies.values():
            if copy.doubted and not copy.condemned and copy.folder not in self._doubts:
                self._doubts.add(copy.folder)
                _ = self._tasks.start(self._settle(copy), name="read changed weights through")
        if changed:
            self._changed()

    def _tell_lost(self, found: Mapping[str, Copy]) -> None:
        """Log which copies can be used no more, as others than this daemon have removed or changed them."""
        for name, before in self._account.copies.items():
            models = self._account.models_of(before)
            if not models or self._account.broken(before):
                continue
            copy = found.get(name)
            if copy is None:
                _log.warning("copy_lost", copy=name, models=models, detail="its folder was removed", effect=_EFFECT)
            elif not copy.whole and not copy.doubted:
                files = ", ".join(sorted(before.sound.keys() - copy.sound.keys()))
                detail = f"files were removed or have another size: {files}"
                _log.warning("copy_lost", copy=name, models=models, detail=detail, effect=_EFFECT)

    async def _settle(self, copy: Copy) -> None:
        """Find out whether files with another time have the right content."""
        try:
            settled = await on_own_thread(lambda: settle_doubts(copy), name="swapd-settle")
            if self._account.copies.get(copy.folder) == copy:
                self._account.copies[copy.folder] = settled
                if changed := ", ".join(sorted(set(copy.doubted) - settled.sound.keys())):
                    self.condemn(settled, f"files were changed: {changed}")
                self._changed()
        except OSError as error:
            _log.warning("copy_not_read", copy=copy.folder, error=str(error))
        finally:
            self._doubts.discard(copy.folder)

    def condemn(self, copy: Copy, detail: str) -> None:
        """Use a copy no more; it leaves when room is needed. Its loss is the caller's to tell; ``detail`` is logged."""
        models = self._account.models_of(copy)
        _log.warning("copy_damaged", copy=copy.folder, models=models, detail=detail, effect=_EFFECT)
        self._account.damaged.add(copy.folder)
        self.account_changed()
        _ = self._tasks.start(self._mark(copy), name="mark a damaged copy")

    async def _mark(self, copy: Copy) -> None:
        try:
            await on_own_thread(lambda: condemn(copy), name="swapd-condemn")
        except OSError as error:
            _log.warning("copy_not_marked", copy=copy.folder, error=str(error))
