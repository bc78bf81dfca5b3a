"""Keeps the last few decisions about a thing as sentences that answer why it is where it is.

A story is a ring: old lines fall out, so it never grows. A line that repeats the last one is not written again.
"""

from collections import deque
from typing import Final

from swapd.core.ids import Instant

LINES: Final = 16


class Story:
    """The latest decisions about one model, instance or node, oldest first."""

    __slots__ = ("_lines",)

    def __init__(self, limit: int = LINES) -> None:
        self._lines: deque[tuple[Instant, str]] = deque(maxlen=limit)

    def add(self, at: Instant, line: str) -> None:
        """Write one sentence."""
        if not self._lines or self._lines[-1][1] != line:
            self._lines.append((at, line))

    def lines(self) -> tuple[tuple[Instant, str], ...]:
        """Return all lines: (when, sentence)."""
        return tuple(self._lines)
