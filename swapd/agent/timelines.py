"""Keeps the timelines of the last loads, in memory: a few of each model, and not more than so many in all.

The core tells when a load has ended. When the first byte of an answer went out to somebody who had waited for it is
known from the record of that request, once it has ended; of several requests the earliest byte counts.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from swapd.admin.timeline import Timeline
from swapd.core.commands import LoadFinished
from swapd.core.ids import Duration, InstanceId, Instant, ModelName
from swapd.core.reasons import LoadResult

PER_MODEL: Final = 20
IN_ALL: Final = 500


class _Kept(NamedTuple):
    #: when the load ended, by the daemon's clock
    at: Instant
    timeline: Timeline


class Timelines:
    """The last loads of this daemon."""

    def __init__(self, *, now: Callable[[], Instant], wall: Callable[[], float]) -> None:
        self._now = now
        self._wall = wall
        self._kept: list[_Kept] = []

    def finished(self, load: LoadFinished) -> None:
        """Keep a load that has just ended; the oldest one too many is forgotten."""
        same = [index for index, kept in enumerate(self._kept) if kept.timeline.load.model == load.model]
        if len(same) >= PER_MODEL:
            del self._kept[same[0]]
        elif len(self._kept) >= IN_ALL:
            del self._kept[0]
        self._kept.append(_Kept(self._now(), Timeline(load, self._wall())))

    def first_byte(self, instance: InstanceId, *, ago: Duration) -> None:
        """Take it that so long ago an answer began, to a request that had waited for this instance."""
        for index in reversed(range(len(self._kept))):
            ended, timeline = self._kept[index]
            if timeline.load.instance == instance and timeline.load.result is LoadResult.READY:
                after = Duration(max(0, self._now() - ago - ended))
                if timeline.first_byte is None or after < timeline.first_byte:
                    self._kept[index] = _Kept(ended, replace(timeline, first_byte=after))
                return

    def of(self, model: ModelName | None) -> tuple[Timeline, ...]:
        """Return the loads of a model, or all of them, in the order in which they ended."""
        return tuple(kept.timeline for kept in self._kept if model is None or kept.timeline.load.model == model)
