"""Cuts what a transfer lacks into stretches, and hands them out.

Rules:
* From the front, so that the checksum can follow closely behind: what has just come is still in memory.
* Several connections share one large file as well as many small ones.
* A connection goes on into the next stretch if nobody has it: one that is alone brings a file by one request.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from swapd.weights.checks import MIB
from swapd.weights.partial import Partial

_LEAST: Final = 16 * MIB
_MOST: Final = 256 * MIB
_COUNT: Final = 32
"""A file is cut into about as many, within the limits."""
_MOST_ASKED: Final = 1024 * MIB
"""More is not asked for at once: a new request may find a better way to the source."""


@dataclass(slots=True)
class Stretch:
    """A part of a file that one connection brings."""

    partial: Partial
    start: int
    #: moves when its connection goes on into the next one
    stop: int


class Stretches:
    """What nobody brings yet; its caller sees to it that threads take turns."""

    def __init__(self) -> None:
        self._left: deque[Stretch] = deque()

    def __len__(self) -> int:
        """Return how many are left."""
        return len(self._left)

    def add(self, partial: Partial) -> None:
        """Add what is missing of a file."""
        self._left.extend(_cut(partial))

    def take(self) -> Stretch | None:
        """Take the first one."""
        return self._left.popleft() if self._left else None

    def give_back(self, stretch: Stretch) -> None:
        """Let others bring what has not come of one."""
        gap = stretch.partial.missing(stretch.start, stretch.stop)
        if gap is not None:
            stretch.start = gap[0]
            self._left.appendleft(stretch)

    def reach(self, stretch: Stretch) -> int:
        """Return up to where a connection could go on if it stayed alone."""
        reach = stretch.stop
        for behind in self._left:
            if not _follows(behind, stretch.partial, reach) or behind.stop - stretch.start > _MOST_ASKED:
                break
            reach = behind.stop
        return reach

    def go_on(self, stretch: Stretch, reach: int) -> bool:
        """Let a stretch take in the one behind it, if that is the next to be taken and ends by ``reach``."""
        if not self._left or not _follows(self._left[0], stretch.partial, stretch.stop):
            return False
        if self._left[0].stop > reach:
            return False
        stretch.stop = self._left.popleft().stop
        return True


def resumable(partial: Partial) -> bool:
    """Whether a file can be had in parts that are known to belong together."""
    return partial.file.ranges and partial.file.recognisable


def _follows(behind: Stretch, partial: Partial, at: int) -> bool:
    return behind.partial is partial and behind.start == at


def _cut(partial: Partial) -> Iterator[Stretch]:
    """Cut what is missing; a file that cannot be had in parts is one piece."""
    file = partial.file
    if not resumable(partial):
        if partial.missing(0, file.size) is not None:
            yield Stretch(partial, 0, file.size)
        return
    length = max(_LEAST, min(_MOST, file.size // _COUNT))
    length -= length % partial.block
    at = 0
    while at < file.size and (gap := partial.missing(at, file.size)) is not None:
        start, stop = gap
        for begin in range(start, stop, length):
            yield Stretch(partial, begin, min(begin + length, stop))
        at = -(-stop // partial.block) * partial.block
