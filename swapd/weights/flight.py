"""One fetch from beginning to end: list, reserve, transfer, put together.

Rules:
* Room is reserved for all that has to come before the first byte is asked for.
* What another copy or an earlier try has is not asked for again. Two fetches that want the same file do not run at the
  same time; the second finds it here.
* A disk that is full stops the fetch, not more: it goes on where it was when there is room.
* A source that has changed meanwhile is listed again, and what came of the earlier version is not used, unless its
  checksum tells that it is whole; what has come damaged, or was removed meanwhile, is fetched once more.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from swapd.aio.backoff import Backoff
from swapd.aio.threads import Stop, on_own_thread
from swapd.core.ids import SECOND, Bytes, Duration, Instant, ModelName
from swapd.weights.bucket import Bucket
from swapd.weights.copies import Copy, Marker, Piece, assemble
from swapd.weights.inventory import Layout, wanted
from swapd.weights.room import Room, Waits
from swapd.weights.settings import CacheSettings, Progress, Weights
from swapd.weights.sources.base import ChangedError, Checksum, Listing, RemoteFile, Source, SourceError, select
from swapd.weights.sources.http import shown
from swapd.weights.sources.registry import source_for
from swapd.weights.space import Account, Booking
from swapd.weights.transfer import Arrived, CorruptError, Manner, Transfer

T = TypeVar("T")

_RETRY_CAP_S: Final = 30.0
_CHANGES: Final = 2
"""A source that changes more often during one fetch is not worth waiting for."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_LISTING_TIMEOUTS: Final = 4
"""A list is many questions at some sources: it may take so many times as long as one silence."""
_RATE_TICKS: Final = 5


class ContentLocks:
    """Lets one fetch at a time bring each content."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}

    async def enter(self, stack: AsyncExitStack, identities: set[str]) -> None:
        """Take the locks, in one order for everybody; the stack gives them back."""
        for identity in sorted(identities):
            await stack.enter_async_context(self._locks.setdefault(identity, asyncio.Lock()))

    def tidy(self) -> None:
        """Forget the locks that nobody has or waits for."""
        self._locks = {identity: lock for identity, lock in self._locks.items() if lock.locked()}


@dataclass(frozen=True, slots=True)
class Tools:
    """What every fetch uses."""

    settings: CacheSettings
    account: Account
    layout: Layout
    room: Room
    bucket: Bucket
    locks: ContentLocks
    now: Callable[[], Instant]
    #: waits until the folder is there and was looked at; raises ``OSError``
    ready: Callable[[], Awaitable[None]]
    #: called when a copy has come into the account, or a partial stays behind
    gained: Callable[[], None]


@dataclass(slots=True, eq=False)
class Flight:
    """A fetch of some weights for the models that want them."""

    weights: Weights
    tools: Tools
    #: nobody waits for it yet
    ahead: bool
    #: is told why the fetch has to wait for room
    waits: Waits
    #: waits until it may run: it has given up its turn if it had to wait for room
    turn: Callable[[], Awaitable[None]]
    #: nothing of other copies is used: one of them is damaged
    fresh: bool = False
    models: list[ModelName] = field(default_factory=list)
    total: int = 0
    came: int = 0
    #: for how long it has waited for room
    waited: Duration = Duration(0)
    #: bytes that other copies have
    _lent: int = 0
    #: bytes on the disk before this transfer
    _present: int = 0
    _transfer: Transfer | None = None
    _assembled: Copy | None = None
    #: what removes the partials after that
    _clearing: asyncio.Task[None] | None = None
    #: threads that write
    _writing: int = 0
    #: what is to be done when the last of them has ended
    _unsettled: Callable[[], None] | None = None
    _ticks: deque[tuple[Instant, int]] = field(default_factory=lambda: deque(maxlen=_RATE_TICKS))

    async def run(self) -> None:
        """Fetch. Raises ``SourceError``, ``CorruptError``, ``TooLargeError``, ``OSError``."""
        await self.tools.ready()
        if not self.fresh and self.tools.account.usable(self.weights) is not None:
            return  # nobody had looked when it was ordered
        timeout_s = self.tools.settings.source_timeout / SECOND
        source = await on_own_thread(lambda: source_for(self.weights.source, timeout_s=timeout_s), name="swapd-source")
        changes = 0
        corrupt = removed = False
        before: Listing | None = None
        while True:
            listing = await self._list(source)
            if before is not None:
                await self._drop_outdated(before, listing)
            before = listing
            try:
                await self._bring(source, listing)
            except ChangedError:
                changes += 1
                if changes > _CHANGES:
                    raise
            except CorruptError:
                if corrupt:
                    raise
                corrupt = True
            except FileNotFoundError:  # what was here of it was removed by somebody else
                if removed:
                    raise
                removed = True
                await self.tools.ready()
            else:
                return

    def tick(self) -> None:
        """Remember how far it has come by now: the rate is reckoned over the last few of these."""
        self._ticks.append((self.tools.now(), self._came_by_now()))

    def _came_by_now(self) -> int:
        return self.came + (self._transfer.came if self._transfer is not None else 0)

    def progress(self) -> Progress:
        """Return how far it has come."""
        came, now = self._came_by_now(), self.tools.now()
        begun, before = self._ticks[0] if self._ticks else (now, came)
        rate = (came - before) * SECOND / (now - begun) if now > begun else 0.0
        # what an earlier try left counts from the beginning: it is being read through
        done = min(self.total, self._lent + max(self._present, self._written()))
        return Progress(Bytes(done), Bytes(self.total), rate)

    async def _list(self, source: Source) -> Listing:
        """Ask the source what it has of what is wanted, with as many tries as configured."""
        settings, tries = self.tools.settings, 0
        pauses, name = _pauses(settings), shown(self.weights.source)
        while True:
            try:
                async with asyncio.timeout(_LISTING_TIMEOUTS * settings.source_timeout / SECOND):
                    listing = await on_own_thread(source.list, name="swapd-list")
                return replace(listing, files=self._promised(select(listing.files, self.weights.include, source=name)))
            except TimeoutError:
                error = SourceError(f"{name} takes too long to say what it has")
            except SourceError as caught:
                error = caught
            tries += 1
            if error.permanent or tries > settings.retries:
                raise error
            await asyncio.sleep(max(error.after_s, pauses.delay(tries - 1)))

    def _promised(self, files: tuple[RemoteFile, ...]) -> tuple[RemoteFile, ...]:
        """Add the configured checksum."""
        if self.weights.sha256 is None:
            return files
        if len(files) > 1:
            names = ", ".join(file.name for file in files[:3])
            raise SourceError(
                f"sha256 is of one file, and {shown(self.weights.source)} has {len(files)} ({names}, …)", permanent=True
            )
        return (replace(files[0], checksum=Checksum("sha256", self.weights.sha256.lower())),)

    async def _bring(self, source: Source, listing: Listing) -> None:
        account, layout, files = self.tools.account, self.tools.layout, listing.files
        async with AsyncExitStack() as stack:
            await self.tools.locks.enter(stack, {file.identity for file in files})
            stack.callback(self.tools.locks.tidy)
            pieces, lenders = self._here(files)
            lacking = {file.identity: file for file in files if file.identity not in pieces}
            booking = Booking(sum(file.size for file in lacking.values()), frozenset(lacking), self._written)
            self.total = sum(file.size for file in files)
            self._lent = self.total - booking.size
            for lender in lenders:
                account.borrow(lender)
                stack.callback(partial(account.give_back, lender))
            stack.callback(partial(self._settle, booking, lacking))
            self._present = sum(account.partials.get(identity, 0) for identity in lacking)
            await self._wait(self.tools.room.reserve(booking, waits=self.waits))
            self._ticks.clear()
            self.tick()  # so that the first word of its progress has a rate
            came, began, waited = self.came, self.tools.now(), self.waited
            for arrived in await self._transferred(source, lacking):
                pieces[arrived.file.identity] = Piece(arrived.file, arrived.path, arrived.block, arrived.crcs)
            if not self._certain(listing, lacking) and await self._list(source) != listing:
                raise ChangedError(f"{shown(self.weights.source)} has changed while it was fetched")
            marker = Marker(
                wanted(self.weights),
                shown(self.weights.source),
                listing.revision,
                (),
                Bytes(self.came - came),
                self.tools.now() - began - (self.waited - waited),
            )
            place = layout.place(self.weights, listing.revision)
            made = [replace(pieces[file.identity], file=file) for file in files]
            staging = layout.staging / place.name
            booking.assembling = True
            await self._thread(lambda: self._assemble(place, staging, made, marker), name="swapd-assemble")
        if self._clearing is not None:
            await asyncio.wait((self._clearing,))  # goes on when this is cancelled

    @staticmethod
    def _certain(listing: Listing, lacking: Mapping[str, RemoteFile]) -> bool:
        """Whether what has come is of one version; else a file may have been written over while it was read."""
        if listing.lasting:
            return True
        return len(listing.files) == 1 and all(file.checksum is not None for file in lacking.values())

    async def _drop_outdated(self, before: Listing, listing: Listing) -> None:
        """Remove what has come of versions that are gone: some of it may be of the next one."""
        outdated = {file.identity for file in before.files if file.checksum is None}
        outdated -= {file.identity for file in listing.files}
        await self.tools.room.remove_partials(outdated)

    def _here(self, files: tuple[RemoteFile, ...]) -> tuple[dict[str, Piece], set[str]]:
        """Return what other copies have of these files, and the folders of those."""
        pieces: dict[str, Piece] = {}
        lenders: set[str] = set()
        if self.fresh:
            return pieces, lenders
        asked = {file.identity: file for file in files}
        for folder, copy in self.tools.account.copies.items():
            if folder in self.tools.account.damaged:
                continue
            for marked in copy.marker.files:
                file = asked.get(marked.identity)
                if file is not None and marked.name in copy.sound and marked.identity not in pieces:
                    pieces[marked.identity] = Piece(file, copy.path / marked.name, marked.block, marked.crcs)
                    lenders.add(folder)
        return pieces, lenders

    async def _transferred(self, source: Source, lacking: Mapping[str, RemoteFile]) -> tuple[Arrived, ...]:
        """Bring the files, over as many full disks as it takes."""
        settings, partials = self.tools.settings, self.tools.layout.partials
        manner = Manner(settings.connections, settings.retries, _pauses(settings), self.tools.bucket)
        files = [(file, partials / identity) for identity, file in lacking.items()]
        while True:
            stop = Stop()
            self._transfer = Transfer(source, files, manner=manner, stop=stop)
            try:
                return await self._thread(self._transfer.run, name="swapd-fetch", stop=stop)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
            finally:
                self.came += self._transfer.came
                self._present = self._transfer.present + self._transfer.came
                self._transfer = None
            await self._wait(self.tools.room.restore(waits=self.waits))

    async def _wait(self, room: Awaitable[None]) -> None:
        """Wait for room, and for its turn if it has lost it meanwhile."""
        began = self.tools.now()
        await room
        await self.turn()
        self.waited = Duration(self.waited + self.tools.now() - began)

    def _written(self) -> int:
        transfer = self._transfer
        return self._present if transfer is None else transfer.present + transfer.came

    async def _thread(self, function: Callable[[], T], *, name: str, stop: Stop | None = None) -> T:
        """Run something that writes to the disk."""
        self._writing += 1
        return await on_own_thread(function, name=name, stop=stop, ended=self._written_all)

    def _written_all(self) -> None:
        self._writing -= 1
        if not self._writing and self._unsettled is not None:
            self._unsettled()

    def _assemble(self, place: Path, staging: Path, pieces: list[Piece], marker: Marker) -> None:
        """Put the copy together; on a thread, whose result counts even if nobody waits for it any more."""
        self._assembled = assemble(place, staging, pieces, marker)

    def _settle(self, booking: Booking, lacking: Mapping[str, RemoteFile]) -> None:
        """End the booking, in one step: its bytes belong to the copy, or to partials until these are measured.

        While a thread that nobody waits for any more still writes, they stay booked.
        """
        if self._writing:
            self._unsettled = partial(self._settle, booking, lacking)
            return
        account = self.tools.account
        if booking not in account.bookings:
            return
        account.bookings.remove(booking)
        if self._assembled is not None:
            account.copies[self._assembled.folder] = self._assembled
            for identity in lacking:
                account.partials.pop(identity, None)  # the copy has its bytes
            self._clearing = self.tools.room.clear_away(tuple(lacking), self._assembled.folder)
        else:
            account.partials.update({identity: file.size for identity, file in lacking.items()})
        self.tools.gained()


def _pauses(settings: CacheSettings) -> Backoff:
    return Backoff(settings.retry_first / SECOND, max(_RETRY_CAP_S, settings.retry_first / SECOND))
