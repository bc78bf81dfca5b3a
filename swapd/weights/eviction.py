"""Decides which copies leave the disk to make room for another: pure, on what it is given.

Rules:
* The worth of a copy is what losing it is expected to cost: how often it is asked for times how long it takes to fetch
  again, by byte that it takes. The least worth leaves first; of equals the one not used for longest. The last one
  needed may be any that is enough: it is the one whose loss costs least.
* A file that several copies have is given back when the last of them leaves.
* If all that may leave is not enough, nothing leaves. Whoever turns out not to be needed stays.

What may leave is decided by the caller: nothing here knows instances, pins or open files.
"""

from collections import Counter
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
    holders = Counter(inode for candidate in candidates for inode in candidate.blobs)
    holders.update(kept)

    def enough(victims: Sequence[Candidate]) -> bool:
        return _freed(victims, holders) >= needed

    victims: list[Candidate] = []
    for place, candidate in enumerate(order):
        if enough([*victims, candidate]):
            last = [other for other in order[place:] if other is candidate or other.cost < candidate.cost]
            victims.append(min((other for other in last if enough([*victims, other])), key=lambda other: other.cost))
            break
        victims.append(candidate)
    else:
        return ()
    for victim in reversed(victims[:-1]):
        fewer = [other for other in victims if other is not victim]
        if enough(fewer):
            victims = fewer
    return tuple(victim.name for victim in victims)


def freed(candidates: Sequence[Candidate], *, kept: Collection[Inode] = ()) -> int:
    """Return the bytes that are given back when all of these leave; ``kept``: inodes that others have."""
    holders = Counter(inode for candidate in candidates for inode in candidate.blobs)
    holders.update(kept)
    return _freed(candidates, holders)


def _freed(victims: Sequence[Candidate], holders: Counter[Inode]) -> int:
    """Return the bytes that nobody has any more."""
    left = Counter(inode for victim in victims for inode in victim.blobs)
    sizes = {inode: size for victim in victims for inode, size in victim.blobs.items()}
    return sum(size for inode, size in sizes.items() if left[inode] == holders[inode])
