"""Makes room on the disk: promises it to fetches, and removes what may leave for them.

Whoever may leave is looked at twice: in the account, and in the process table, where somebody may have its files open.
Between the two others run, so the account is asked again before anything is removed.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import structlog

from swapd.aio.supervise import Tasks
from swapd.aio.threads import on_own_thread
from swapd.core.ids import SECOND, Bytes, Instant
from swapd.weights import partial
from swapd.weights.copies import Copy, remove_tree
from swapd.weights.eviction import choose, freed
from swapd.weights.facts import Evicted, Fact
from swapd.weights.inventory import Layout
from swapd.weights.open_files import in_use
from swapd.weights.settings import CacheSettings
from swapd.weights.space import Account, Booking, Disk, Leaving, Shortage, read_disk

_log = structlog.get_logger(__name__)


class Waits(Protocol):
    """Is told why a fetch waits for room."""

    def __call__(self, detail: str, lacking: int = 0) -> None:
        """``lacking``: bytes, when all have left that may; an empty ``detail``: it waits no more."""


class TooLargeError(Exception):
    """It would not fit into an empty cache; one sentence."""


class Room:
    """Gives out the room on the disk; on the event loop."""

    def __init__(
        self,
        account: Account,
        layout: Layout,
        settings: CacheSettings,
        *,
        post: Callable[[Fact], None],
        now: Callable[[], Instant],
        lost: Callable[[], None],
        tasks: Tasks,
    ) -> None:
        """``lost`` is called, from a task, when a copy has left the account and when the disk has its bytes back."""
        self._account = account
        self._layout = layout
        self._settings = settings
        self._post = post
        self._now = now
        self._lost = lost
        self._tasks = tasks
        self._evicting = asyncio.Lock()
        self._changed = asyncio.Event()
        self._closed = False
        self.evicted_copies = 0
        self.evicted_bytes = 0

    def changed(self) -> None:
        """Let the waiting fetches look again: something left, or may leave now."""
        self._changed.set()

    async def disk(self) -> Disk:
        """Ask the file system. Raises ``OSError``."""
        return await on_own_thread(lambda: read_disk(str(self._layout.path)), name="swapd-disk")

    async def reserve(self, booking: Booking, *, waits: Waits) -> None:
        """Promise room once there is some; ``waits`` is told why not yet. Raises ``OSError``, ``TooLargeError``."""
        while True:
            self._changed.clear()
            disk = await self.disk()
            shortage = self._account.shortage(booking.size, disk)
            if shortage.worst <= 0:
                self._account.bookings.append(booking)
                waits("")
                return
            most = self._account.most(disk)
            if booking.size > most:
                raise TooLargeError(
                    f"it takes {_shown(booking.size)} on the disk, and the cache never has more than {_shown(most)}"
                )
            lacking = await self._make_room(shortage.worst)
            if lacking:
                waits(self._why(shortage, disk), lacking)
                await self._wait()

    async def restore(self, *, waits: Waits) -> None:
        """Wait until a disk that has refused to take more has room for what is promised. Raises ``OSError``."""
        while True:
            self._changed.clear()
            disk = await self.disk()
            # the disk has just said that it is full, whatever it says of its free bytes
            shortage = self._account.shortage(0, disk)
            if shortage.worst <= 0:
                waits("the disk says that it is full, although more should be free")
                await self._wait()
                waits("")
                return
            lacking = await self._make_room(shortage.worst)
            if lacking:
                waits(self._why(shortage, disk), lacking)
                await self._wait()

    async def trim(self) -> None:
        """Keep to limits that have become narrower, as far as copies may leave. Raises ``OSError``."""
        disk = await self.disk()
        await self._make_room(self._account.shortage(0, disk).worst, partly=True)

    async def remove(self, copy: Copy) -> int:
        """Remove a copy; return the bytes that the disk got back. The account has lost it before the first await."""
        leaving = self._drop(copy)
        self._lost()
        await self._erased([leaving])
        return leaving.size

    def sweep(self, rubbish: Mapping[Path, int]) -> None:
        """Go on with what an earlier run was removing; until it is gone it counts."""
        for path, size in rubbish.items():
            _ = self._tasks.start(self._erase(self._leave(path, size)), name="remove weights from the disk")

    async def clear(self, weights: str) -> None:
        """Remove the copies of weights that cannot be used, unless somebody has them open."""
        for copy in tuple(self._account.copies.values()):
            if copy.marker.weights == weights and self._account.broken(copy) and self._account.may_leave(copy):
                used = await self.used_by_somebody(copy)
                if not used and self._account.copies.get(copy.folder) == copy and self._account.may_leave(copy):
                    await self.remove(copy)

    def close(self) -> None:
        """Remove nothing any more: the next run does."""
        self._closed = True

    def clear_away(self, partials: tuple[str, ...], folder: str) -> asyncio.Task[None] | None:
        """Remove the partials that a copy was made of; until that is done it stays, for its bytes would."""
        if self._closed:
            return None
        self._account.borrow(folder)
        return self._tasks.start(self._cleared_away(partials, folder), name="remove partials")

    async def _cleared_away(self, partials: tuple[str, ...], folder: str) -> None:
        def clear() -> None:
            for name in partials:
                partial.discard(self._layout.partials / name)

        try:
            await on_own_thread(clear, name="swapd-clear")
        except OSError as error:
            _log.warning("partials_not_removed", copy=folder, error=str(error))
        finally:
            self._account.give_back(folder)
        self._lost()

    async def remove_partials(self, identities: Iterable[str]) -> None:
        """Remove partials that are of no use any more, those that a fetch fills excepted."""
        partials = self._account.partials
        filling = {name for booking in self._account.bookings for name in booking.partials}
        known = [name for name in identities if name in partials and name not in filling]
        await self._erased([self._leave(self._layout.partials / name, partials.pop(name)) for name in known])

    async def used_by_somebody(self, copy: Copy) -> bool:
        """Whether another process has one of its files open."""
        inodes = frozenset(copy.blobs)
        names = frozenset(Path(name).name for name in copy.sound)
        return await on_own_thread(lambda: in_use(inodes, names=names), name="swapd-open-files")

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._settings.space_period / SECOND):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _make_room(self, shortage: int, *, partly: bool = False) -> int:
        """Let leave who may, at the least cost; return by how much all of them would be too few.

        Then nobody left, or all of them if ``partly``.
        """
        async with self._evicting:
            busy: set[str] = set()
            while True:
                able, kept = self._account.candidates(without=busy)
                most = freed(able, kept=kept)
                victims = choose(able, min(shortage, most) if partly else shortage, kept=kept)
                if not victims:
                    return shortage - most
                found = await self._open(victims)
                busy |= found
                if not found and self._still(victims):
                    break
            await self._evict(victims)
            return 0

    async def _open(self, victims: tuple[str, ...]) -> set[str]:
        found = set()
        for name in victims:
            copy = self._account.copies.get(name)
            if copy is not None and await self.used_by_somebody(copy):
                _log.info("copy_in_use", copy=name)
                found.add(name)
        return found

    def _still(self, victims: tuple[str, ...]) -> bool:
        """Whether all of them may still leave, after others have run."""
        able = {candidate.name for candidate in self._account.candidates()[0]}
        return able.issuperset(victims)

    async def _evict(self, victims: tuple[str, ...]) -> None:
        """Take the victims out of the account in one step, then off the disk."""
        leaving: list[Leaving] = []
        facts: list[Fact] = []
        for name in victims:
            copy = self._account.copies.get(name)
            if copy is None:
                leaving.append(self._leave(self._layout.partials / name, self._account.partials.pop(name)))
                continue
            models = self._account.models_of(copy)
            leaving.append(self._drop(copy))
            freed = leaving[-1].size
            facts.append(Evicted(self._now(), models, Bytes(freed)))
            self.evicted_copies += 1
            self.evicted_bytes += freed
            _log.info("copy_evicted", copy=name, models=models, freed_bytes=freed)
        self._lost()  # who is told of the first may order something about the last: all are gone by now
        for fact in facts:
            self._post(fact)
        await self._erased(leaving)

    def _drop(self, copy: Copy) -> Leaving:
        """Take a copy out of the account."""
        others = {
            inode for other in self._account.copies.values() if other.folder != copy.folder for inode in other.blobs
        }
        freed = sum(size for inode, size in copy.blobs.items() if inode not in others)
        del self._account.copies[copy.folder]
        self._account.damaged.discard(copy.folder)
        return self._leave(copy.path, freed)

    def _leave(self, path: Path, size: int) -> Leaving:
        leaving = Leaving(path, size)
        self._account.leaving.append(leaving)
        return leaving

    async def _erased(self, leaving: list[Leaving]) -> None:
        """Wait until the disk has what is leaving back; that goes on when the one who waits is cancelled."""
        removals = [self._tasks.start(self._erase(one), name="remove weights from the disk") for one in leaving]
        if removals:
            await asyncio.wait(removals)

    async def _erase(self, leaving: Leaving) -> None:
        """Remove from the disk what the account has lost; what cannot be removed goes on counting."""
        target = self._layout.trash / f"{secrets.token_hex(8)}-{leaving.path.name}"
        if await on_own_thread(lambda: _erased(leaving.path, target), name="swapd-remove"):
            self._account.leaving.remove(leaving)
        elif leaving.path.parent == self._layout.partials:
            self._account.leaving.remove(leaving)  # a fetch has begun to fill it
            self._account.partials[leaving.path.name] = leaving.size
        else:
            _log.warning("not_removed", path=str(leaving.path))
        self._lost()

    def _why(self, shortage: Shortage, disk: Disk) -> str:
        most = f"limit of {_shown(self._account.limit(disk))}"
        bound = most if shortage.by_limit >= shortage.by_disk else "part of the disk to keep free"
        lacking = _shown(shortage.worst)
        return f"the {bound} leaves {lacking} too little; all that is there is pinned, in use or not the cache's"


def _erased(path: Path, target: Path) -> bool:
    """Move a folder out of sight in one step, then remove it; ``False``: something of it is left."""
    try:
        if path.parent.name == "partial":
            return partial.discard(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    remove_tree(target)
    return not target.exists()


def _shown(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 10**8 else f"{size / 1e6:.1f} MB"
