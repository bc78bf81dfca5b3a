"""Keeps load times, measured footprints, demand and counters across restarts, and never stands in the daemon's way.

Rules:
* The file is touched on one own thread only, each call under a deadline. Nothing here blocks the event loop.
* No trouble with the file reaches the caller: it is reported in one sentence when it begins and when it ends. A
  damaged file is moved aside and a new one begun; otherwise what is to be written waits in memory, the newest of a
  kind only, and the next write tries again.
* Instance ids are reserved in blocks before they are used. When the file cannot be read, they start from the wall
  clock, far above every counted one, so that they are not reused either.
"""

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from swapd.aio.one_thread import OneThread, ThreadBusyError
from swapd.aio.supervise import Tasks
from swapd.core.accounts import Costs
from swapd.core.catalog import Source
from swapd.core.events import DemandKnown
from swapd.core.ids import Bytes, Duration, InstanceId, Instant, ModelName, seconds
from swapd.core.reasons import Stage
from swapd.core.tiers import Tier, Week
from swapd.history import demand
from swapd.history.database import (
    RECENT_LOADS,
    DamagedError,
    Database,
    LoadTimes,
    Measured,
    NewerSchemaError,
    connect,
    describe,
    is_damaged,
    move_aside,
)
from swapd.history.hours import Hours, Rows

INSTANCE_BLOCK: Final = 1000
"""Instance ids reserved at a time."""
_CALL_S: Final = 5.0
"""Deadline of one call, and of the end; twice the lock's timeout and then some."""
_LONG_AWAY_S: Final = 30 * 86_400.0
"""Nothing that fades is left of what is older."""
_TROUBLES = (sqlite3.Error, OSError, NewerSchemaError, DamagedError, TimeoutError, ThreadBusyError)


@dataclass(slots=True)
class _Remembered:
    """What was found in the file."""

    first_instance: int
    load_times: LoadTimes = field(default_factory=dict)
    footprints: dict[ModelName, Measured] = field(default_factory=dict)
    most_gpus: int = 0
    hours: Rows = field(default_factory=dict)
    tiers: dict[ModelName, Tier] = field(default_factory=dict)
    record: tuple[DemandKnown, float] | None = None


_Write = Callable[[Database], None]


class History:
    """The history of this node; made and used on one event loop."""

    def __init__(
        self,
        path: Path,
        *,
        report: Callable[[str], None],
        wall: Callable[[], float] = time.time,
        opened: Callable[[Path], sqlite3.Connection] = connect,
    ) -> None:
        """``report`` is told each trouble, and its end, in one sentence; on the loop thread."""
        self._path = path
        self._report = report
        self._wall = wall
        self._opened = opened
        self._thread = OneThread("swapd-history")
        self._tasks = Tasks()
        self._writer: asyncio.Task[None] | None = None
        self._unwritten: dict[Hashable, _Write] = {}  # by what it replaces; the next one first
        self._loads: Counter[tuple[ModelName, Source]] = Counter()
        self._database: Database | None = None  # belongs to the thread
        self._trouble = ""
        self._known = _Remembered(1)
        self._reserved_below = 1
        self._hours = Hours({}, {}, at=Instant(0), wall_s=wall())

    async def start(self) -> None:
        """Open the file and read it; returns within seconds whatever its state."""
        try:
            aside, self._known = await self._thread.call(self._open_and_read, timeout=_CALL_S)
        except _TROUBLES as error:
            self._failed(error)
            self._known = _Remembered(self._wall_instance())
        else:
            if aside is not None:
                self._report(
                    f"the history file {self._path} was damaged; it is now {aside.name}, and a new one is begun"
                )
        self._reserved_below = self._known.first_instance + INSTANCE_BLOCK

    def load_times(self) -> Mapping[tuple[ModelName, Source], tuple[Duration, ...]]:
        """Return the last five load times per model and source, oldest first."""
        return dict(self._known.load_times)

    def first_instance(self) -> InstanceId:
        """Return the lowest instance id that this run may use."""
        return InstanceId(self._known.first_instance)

    def footprints(self, revisions: Mapping[ModelName, str]) -> Mapping[ModelName, Bytes]:
        """Return what each model was last found to take, bytes per GPU, if it was found with this revision."""
        return {
            model: known.measured
            for model, known in self._known.footprints.items()
            if revisions.get(model) == known.revision
        }

    def most_gpus(self) -> int:
        """Return the most GPUs that were ever seen on this node; 0: none so far."""
        return self._known.most_gpus

    def instance_used(self, instance: InstanceId) -> None:
        """Note that an id was given out; the next block is reserved when half of this one is used."""
        if instance + INSTANCE_BLOCK // 2 >= self._reserved_below:
            self._reserved_below = instance + INSTANCE_BLOCK
            below = self._reserved_below
            self._write("instances", lambda database: database.reserve_instances(below))

    def record_load(
        self, model: ModelName, source: Source, load_time: Duration, stages: Mapping[Stage, Duration]
    ) -> None:
        """Keep one finished load; written behind the caller's back."""
        key = (model, source)
        times = self._known.load_times
        times[key] = (*times.get(key, ()), load_time)[-RECENT_LOADS:]
        ended_at_s = int(self._wall())
        kept = dict(stages)
        self._loads[key] += 1
        self._write(
            ("load", key, self._loads[key] % RECENT_LOADS),
            lambda database: database.record_load(
                model, source, load_time=load_time, ended_at_s=ended_at_s, stages=kept
            ),
        )

    def record_footprint(self, model: ModelName, measured: Measured) -> None:
        """Keep what a model was found to take; written behind the caller's back."""
        self._known.footprints[model] = measured
        at_s = int(self._wall())
        self._write(
            ("footprint", model), lambda database: database.record_footprint(model, measured, measured_at_s=at_s)
        )

    def gpus_seen(self, count: int) -> None:
        """Remember a number of GPUs if it is the most ever seen."""
        if count > self._known.most_gpus:
            self._known.most_gpus = count
            self._write("GPUs", lambda database: database.gpus_seen(count))

    def begin_hours(self, at: Instant) -> None:
        """Begin to count demand by the hour; to be called once, when the totals are 0."""
        self._hours = Hours(self._known.hours, self._known.tiers, at=at, wall_s=self._wall())

    def observe_demand(self, totals: Mapping[ModelName, Costs], at: Instant) -> None:
        """Take in each model's totals since the daemon's start; written behind the caller's back."""
        hour, rows = self._hours.hour, self._hours.observe(totals, at=at, wall_s=self._wall())
        self._write(("hour", hour), lambda database: demand.write_hour(database.connection, hour, rows))
        for dropped in self._hours.drop():
            self._write(("hour", dropped), partial(_forget_hour, dropped))

    def weeks(self, models: Iterable[ModelName]) -> Mapping[ModelName, Week]:
        """Return what the last 168 hours say of these models; settled tiers are kept for the next time."""
        before = self._hours.tiers()
        weeks = self._hours.weeks(models)
        settled = self._hours.tiers()
        if settled != before:
            self._write("tiers", lambda database: demand.write_tiers(database.connection, settled))
        return weeks

    def demand(self) -> tuple[DemandKnown, Duration] | None:
        """Return what an earlier run has recorded last, and how long ago; ``None``: nothing, or not understood.

        A record from the future (the clock was set back) is taken as just made.
        """
        if self._known.record is None:
            return None
        known, recorded_at_s = self._known.record
        return known, seconds(max(0.0, min(self._wall() - recorded_at_s, _LONG_AWAY_S)))

    def record_demand(self, known: DemandKnown) -> None:
        """Keep what the next run is to be told; written behind the caller's back."""
        at_s = self._wall()
        self._write("record", lambda database: demand.write_record(database.connection, known, at_s))

    async def aclose(self) -> None:
        """Write what waits, within seconds, and close the file."""
        try:
            async with asyncio.timeout(_CALL_S):
                # each write has its turn, also behind those that the file refuses
                for _ in range(1 + len(self._unwritten)):
                    await asyncio.wait((self._start_writer(),))
                await self._thread.call(self._close, timeout=None)
        except _TROUBLES as error:
            self._failed(error)
        await self._tasks.aclose()
        await self._thread.aclose(timeout=1.0)

    def _write(self, replaces: Hashable, write: _Write) -> None:
        self._unwritten.pop(replaces, None)
        self._unwritten[replaces] = write
        _ = self._start_writer()

    def _start_writer(self) -> asyncio.Task[None]:
        if self._writer is None or self._writer.done():
            self._writer = self._tasks.start(self._write_all(), name="history: write")
        return self._writer

    async def _write_all(self) -> None:
        while self._unwritten:
            replaces = next(iter(self._unwritten))
            write = self._unwritten.pop(replaces)
            try:
                await self._thread.call(partial(self._on_file, write), timeout=_CALL_S)
            except _TROUBLES as error:
                # behind the others, so that one which the file refuses does not keep them from it
                self._unwritten.setdefault(replaces, write)
                self._failed(error)
                return
            if self._trouble:
                self._trouble = ""
                self._report(f"the history file {self._path} is written again")

    def _failed(self, error: BaseException) -> None:
        slow = isinstance(error, TimeoutError | ThreadBusyError)
        what = "it answers too slowly" if slow else describe(error)
        if what != self._trouble:
            self._trouble = what
            self._report(f"the history file {self._path} is not written: {what}; new figures stay in memory")

    def _wall_instance(self) -> int:
        return int(self._wall()) * INSTANCE_BLOCK

    # On the thread:

    def _on_file(self, write: _Write) -> None:
        write(self._open())

    def _open(self) -> Database:
        if self._database is None:
            self._database = Database.open(self._path, opened=self._opened)
        return self._database

    def _open_and_read(self) -> tuple[Path | None, _Remembered]:
        """Open, read and reserve the first block; a damaged file is moved aside and the whole tried once more."""
        try:
            return None, self._read(fallback=1)
        except (sqlite3.Error, DamagedError) as error:
            if not is_damaged(error):
                raise
        self._close()
        aside = move_aside(self._path, int(self._wall()))
        return aside, self._read(fallback=self._wall_instance())

    def _read(self, fallback: int) -> _Remembered:
        database = self._open()
        first = database.next_instance() or fallback
        database.reserve_instances(first + INSTANCE_BLOCK)
        return _Remembered(
            first,
            database.load_times(),
            database.footprints(),
            database.most_gpus(),
            demand.hours(database.connection),
            demand.tiers(database.connection),
            demand.read_record(database.connection),
        )

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _forget_hour(hour: int, database: Database) -> None:
    demand.forget_hour(database.connection, hour)
