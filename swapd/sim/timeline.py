"""Keeps what is going to happen in order of time; at equal times in the order it was scheduled."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from swapd.core.events import Event
from swapd.core.ids import Instant, ModelName
from swapd.sim.driver import Incident
from swapd.sim.reader import ReadingBegins


@dataclass(frozen=True, slots=True)
class CopyDeleted:
    """Somebody deletes the copy of a model's weights by hand."""

    at: Instant
    model: ModelName


Happening = Event | Incident | ReadingBegins | CopyDeleted


@dataclass(slots=True)
class Scheduled:
    """One thing on its way; ``dropped`` once it cannot happen any more."""

    event: Happening
    dropped: bool = False


@dataclass(slots=True)
class Timeline:
    """What lies ahead."""

    _heap: list[tuple[Instant, int, Scheduled]] = field(default_factory=list)
    _count: int = 0

    def schedule(self, event: Happening) -> Scheduled:
        """Let something happen at its time."""
        entry = Scheduled(event)
        self._count += 1
        heapq.heappush(self._heap, (event.at, self._count, entry))
        return entry

    def first(self) -> Instant | None:
        """Return when the next thing happens."""
        while self._heap and self._heap[0][2].dropped:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self) -> Happening:
        """Return what happens next, and forget it; ``first`` was asked just before and named a time."""
        return heapq.heappop(self._heap)[2].event


def drop(entries: Iterable[Scheduled]) -> None:
    """Let none of these happen."""
    for entry in entries:
        entry.dropped = True
