"""Keeps the account of the cache's disk: what is there, what is promised, what may leave.

Rules:
* Bytes are booked before the first one is fetched, and stay booked until they belong to a copy: the sum is within the
  limits at every instant. What leaves counts until the disk has it back.
* The account lives on the event loop and is changed in one step between two awaits; the disk is asked on a thread.
* It decides nothing: who may leave is in the standings that it was told, the order is ``eviction.choose``.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from swapd.core.ids import SECOND, Bytes, Duration, ModelName
from swapd.weights.copies import Copy, Inode
from swapd.weights.eviction import Candidate
from swapd.weights.inventory import wanted
from swapd.weights.settings import Limits, Standing, Weights

_AUTO_SHARE: Final = 0.8
"""Of the disk, when no size is configured."""
_GUESSED_BYTES_PER_SECOND: Final = 100 * 10**6
"""How fast a source is until one fetch was measured: a gigabit and a little."""


@dataclass(frozen=True, slots=True)
class Disk:
    """What the file system of the cache says."""

    total: int
    free: int


def read_disk(path: str) -> Disk:
    """Ask the file system. Blocks. Raises ``OSError``."""
    told = os.statvfs(path)
    return Disk(told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize)


class Shortage(NamedTuple):
    """By how many bytes each limit is exceeded; 0 or less: it is kept."""

    by_limit: int
    by_disk: int

    @property
    def worst(self) -> int:
        """Return what has to leave."""
        return max(self)


@dataclass(slots=True, eq=False)
class Booking:
    """Room promised to one fetch."""

    #: what its files will take on the disk
    size: int
    #: names of the partials that it fills
    partials: frozenset[str]
    #: how much of it is on the disk already
    written: Callable[[], int]
    #: its copy may be at its place already: a look at the folder would count it twice
    assembling: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Leaving:
    """Something that is being removed."""

    path: Path
    #: bytes that the disk gets back
    size: int


@dataclass(slots=True)
class Account:
    """What is on the disk, and what is known of the models; on the event loop."""

    limits: Limits
    copies: dict[str, Copy] = field(default_factory=dict)
    partials: dict[str, int] = field(default_factory=dict)
    foreign: int = 0
    #: what is being removed
    leaving: list[Leaving] = field(default_factory=list)
    bookings: list[Booking] = field(default_factory=list)
    models: Mapping[ModelName, Weights] = field(default_factory=dict)
    standings: Mapping[ModelName, Standing] = field(default_factory=dict)
    #: copies that were found damaged by a check, by folder
    damaged: set[str] = field(default_factory=set)
    #: folders that must stay for a moment: they are being read, linked from or checked
    borrowed: dict[str, int] = field(default_factory=dict)

    def used(self) -> int:
        """Return the bytes on the disk or promised."""
        blobs: dict[Inode, int] = {}
        for copy in self.copies.values():
            blobs.update(copy.blobs)
        filling = {name for booking in self.bookings for name in booking.partials}
        idle = sum(size for name, size in self.partials.items() if name not in filling)
        promised = sum(booking.size for booking in self.bookings)
        return sum(blobs.values()) + idle + promised + sum(leaving.size for leaving in self.leaving) + self.foreign

    def limit(self, disk: Disk) -> int:
        """Return how much the cache may take of this disk."""
        return self.limits.max_size if self.limits.max_size is not None else int(disk.total * _AUTO_SHARE)

    def most(self, disk: Disk) -> int:
        """Return how much it may take of a disk that nobody else uses."""
        return min(self.limit(disk), disk.total - self._kept_free(disk))

    def _kept_free(self, disk: Disk) -> int:
        return round(disk.total * self.limits.keep_free)

    def shortage(self, needed: int, disk: Disk) -> Shortage:
        """Return by how much ``needed`` bytes more would exceed the limits."""
        to_come = sum(max(0, booking.size - booking.written()) for booking in self.bookings)
        by_limit = self.used() + needed - self.limit(disk)
        by_disk = to_come + needed - (disk.free - self._kept_free(disk))
        return Shortage(by_limit, by_disk)

    def borrow(self, folder: str) -> None:
        """Keep a copy for a moment."""
        self.borrowed[folder] = self.borrowed.get(folder, 0) + 1

    def give_back(self, folder: str) -> None:
        """End what ``borrow`` began."""
        self.borrowed[folder] -= 1
        if not self.borrowed[folder]:
            del self.borrowed[folder]

    def models_of(self, copy: Copy) -> tuple[ModelName, ...]:
        """Return the models that a copy is for, by name."""
        return tuple(sorted(name for name, weights in self.models.items() if wanted(weights) == copy.marker.weights))

    def broken(self, copy: Copy) -> bool:
        """Whether a copy cannot be used: files are missing, or were found damaged."""
        return copy.folder in self.damaged or not copy.whole

    def usable(self, weights: Weights) -> Copy | None:
        """Return the copy that serves weights: whole, intact, the one fetched last."""
        name = wanted(weights)
        found = [copy for copy in self.copies.values() if copy.marker.weights == name]
        whole = [copy for copy in found if not self.broken(copy)]
        return max(whole, key=lambda copy: (copy.came_ns, copy.folder), default=None)

    def measured(self) -> tuple[tuple[Bytes, Duration], ...]:
        """Return how much came for each copy, and how long that took, the latest one last."""
        copies = sorted(self.copies.values(), key=lambda copy: (copy.came_ns, copy.folder))
        return tuple((copy.marker.fetched, Duration(copy.marker.took_ns)) for copy in copies if copy.marker.fetched)

    def may_leave(self, copy: Copy) -> bool:
        """Whether nobody said that a copy has to stay; one that cannot be used stays for nobody."""
        if copy.folder in self.borrowed:
            return False
        return self.broken(copy) or not self.holders(copy)

    def holders(self, copy: Copy) -> tuple[ModelName, ...]:
        """Return the models for whose sake a copy has to stay, by name."""
        standings = ((model, self.standings.get(model, Standing())) for model in self.models_of(copy))
        return tuple(model for model, standing in standings if standing.held or standing.pinned)

    def candidates(self, *, without: Iterable[str] = ()) -> tuple[list[Candidate], set[Inode]]:
        """Return what may leave, partials of no fetch included, and the inodes that others keep."""
        kept: set[Inode] = set()
        able: list[Candidate] = []
        avoided = set(without)
        for folder, copy in self.copies.items():
            if folder in avoided or not self.may_leave(copy):
                kept.update(copy.blobs)
            else:
                able.append(self._candidate(copy))
        filling = {name for booking in self.bookings for name in booking.partials}
        for number, (name, size) in enumerate(sorted(self.partials.items())):
            if name not in filling and name not in avoided and size:
                able.append(Candidate(name, {(-1, number): size}, cost=0.0, last_used=-2))
        return able, kept

    def _candidate(self, copy: Copy) -> Candidate:
        models = self.models_of(copy)
        standings = [self.standings.get(model, Standing()) for model in models]
        current = bool(models) and self.usable(self.models[models[0]]) == copy
        cost = sum(standing.frequency * self._refetch_s(copy, standing) for standing in standings) if current else 0.0
        used = max((standing.last_used for standing in standings if standing.last_used is not None), default=-1)
        return Candidate(copy.folder, copy.blobs, cost, used if current else -1)

    def _refetch_s(self, copy: Copy, standing: Standing) -> float:
        if standing.refetch is not None:
            return standing.refetch / SECOND
        marker = copy.marker
        rate = marker.fetched * SECOND / marker.took_ns if marker.took_ns and marker.fetched else 0.0
        return copy.size / (rate or _GUESSED_BYTES_PER_SECOND)
