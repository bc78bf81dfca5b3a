"""Decides which copies leave the disk to make room for another: pure, on what it is given.

Rules:
* The worth of a copy is what losing it is expected to cost: how often it is asked for times how long it takes to fetch
  again, by byte that its leaving gives back. The least worth leaves first; of equals the one not used for longest.
* A file that several copies have is given back when the last of them leaves.
* If all that may leave is not enough, nothing leaves. Whoever turns out not to be needed stays.

What may leave is decided by the caller: nothing here knows instances, pins or open files.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from swapd.weights.copies import Inode


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that may leave the disk."""

    #: unique; decides between equals at last
    name: str
    #: what it has on the disk: size by inode
    blobs: Mapping[Inode, int]
    #: requests (decayed count) times the seconds to fetch it again
    cost: float
    #: time of its last request; -1: never
    last_used: int = -1


def worth(candidate: Candidate) -> float:
    """Return the expected cost of losing a candidate, by byte."""
    return candidate.cost / max(1, sum(candidate.blobs.values()))


def choose(candidates: Sequence[Candidate], needed: int, *, kept: Collection[Inode] = ()) -> tuple[str, ...]:
    """Return the names that leave so that ``needed`` bytes are given back, least worth first; none: it cannot be done.

    ``kept``: inodes that others have as well, who stay.
    """
    if needed <= 0:
        return ()
    order = sorted(candidates, key=lambda candidate: (worth(candidate), candidate.last_used, candidate.name))
    victims: list[Candidate] = []
    for candidate in order:
        victims.append(candidate)
        if _freed(victims, order, kept) >= needed:
            break
    else:
        return ()
    for victim in reversed(victims[:-1]):
        fewer = [other for other in victims if other is not victim]
        if _freed(fewer, order, kept) >= needed:
            victims = fewer
    return tuple(victim.name for victim in victims)


def _freed(victims: Sequence[Candidate], everybody: Sequence[Candidate], kept: Collection[Inode]) -> int:
    """Return the bytes that nobody has any more."""
    names = {victim.name for victim in victims}
    held = {inode for other in everybody if other.name not in names for inode in other.blobs}
    gone = {inode: size for victim in victims for inode, size in victim.blobs.items()}
    return sum(size for inode, size in gone.items() if inode not in held and inode not in kept)
