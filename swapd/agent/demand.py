"""Takes stock of demand once a minute: tells history what was asked for, and the core what a week of it comes to.

Requests are counted by the core as they come; here only totals are read, so that a request pays nothing for it. What a
crash can lose is the last minute. Stock is also taken when an hour of the wall clock ends, so that none spans two.
"""

import asyncio
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Final

from swapd.aio.turns import at_once, in_turns
from swapd.core.accounts import HOUR_S
from swapd.core.events import DemandKnown, Event, WeekKnown
from swapd.core.ids import Instant
from swapd.core.view import NodeView
from swapd.history.store import History

EVERY_S: Final = 60.0
WEIGHED_EVERY: Final = 10
"""Stocktakings between two weighings of the week; the end of an hour is one as well."""
_LATE_S: Final = 0.01
"""After the end of an hour, so that a timer that is early by a hair does not make an hour of its own."""


class Stocktaking:
    """Counts the demand of one daemon."""

    def __init__(
        self,
        history: History,
        *,
        post: Callable[[Event], None],
        now: Callable[[], Instant],
        view: Callable[[], Generator[None, None, NodeView]],
        record: Callable[[], DemandKnown],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``view`` builds the node's snapshot in small steps; ``record`` says what the next run is to be told."""
        self._history = history
        self._post = post
        self._now = now
        self._view = view
        self._record = record
        self._wall = wall
        self._begun = False
        self._count = 0
        self._hour = 0
        #: what the last record was about
        self._told: list[tuple[object, ...]] = []

    def begin(self) -> None:
        """Tell the core what earlier runs have left, and begin to count."""
        self._begun = True
        self._history.begin_hours(self._now())
        self._hour = int(self._wall() // HOUR_S)
        left = self._history.demand()
        if left is not None:
            known, away = left
            self._post(replace(known, at=self._now(), away=away))
        self._weigh(at_once(self._view()))

    async def run(self) -> None:
        """Take stock for ever."""
        while True:
            await asyncio.sleep(self.pause_s())
            self.take(await in_turns(self._view()))

    def pause_s(self) -> float:
        """Return how long until stock is to be taken next."""
        return min(EVERY_S, HOUR_S - self._wall() % HOUR_S + _LATE_S)

    def take(self, view: NodeView) -> None:
        """Take stock of the node as it is shown."""
        models = [model for model in view.models if model.configured]
        self._history.observe_demand({model.model: model.totals for model in models}, self._now())
        self._count += 1
        hour = int(self._wall() // HOUR_S)
        if hour != self._hour or self._count % WEIGHED_EVERY == 0:
            self._hour = hour
            self._weigh(view)
        told: list[tuple[object, ...]] = [
            (model.model, model.totals, model.verdict, model.pinned_by) for model in models
        ]
        if told != self._told:
            self._told = told
            self._history.record_demand(self._record())

    def end(self) -> None:
        """Take stock for the last time."""
        if self._begun:
            self.take(at_once(self._view()))

    def _weigh(self, view: NodeView) -> None:
        names = [model.model for model in view.models if model.configured]
        self._post(WeekKnown(at=self._now(), weeks=self._history.weeks(names)))
