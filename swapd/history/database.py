"""Reads and writes the history file: SQLite, synchronous, for one thread.

Nothing here is reported or retried; the errors are ``sqlite3.Error`` and ``OSError``, told apart by ``describe`` and
``is_damaged``. A file that SQLite cannot read is moved aside whole, with its journal, and never deleted.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

from swapd.core.catalog import Source
from swapd.core.ids import Bytes, Duration, ModelName
from swapd.core.reasons import Stage
from swapd.history import demand

SCHEMA_VERSION: Final = 3
KEPT_LOADS: Final = 50
"""Rows kept per model and source."""
KEPT_FOOTPRINTS: Final = 20
"""Rows kept per model."""
RECENT_LOADS: Final = 5
"""Load times handed out per model and source: what the median is made of."""
BUSY_TIMEOUT_S: Final = 1.0
"""How long one call waits for another process's lock."""

LoadTimes = dict[tuple[ModelName, Source], tuple[Duration, ...]]


class Measured(NamedTuple):
    """What a model was found to take."""

    #: of the model's configuration it was measured with
    revision: str
    #: bytes per GPU, as configured and as measured
    declared: Bytes
    measured: Bytes


_LOADS = """
CREATE TABLE load (
    id INTEGER PRIMARY KEY,        -- ascending in time
    model TEXT NOT NULL,
    source TEXT NOT NULL,          -- cache | page_cache | remote | wake
    load_time_ns INTEGER NOT NULL, -- from the start of the engine to ready; of remote ones with the fetch
    ended_at_s INTEGER NOT NULL,   -- unix time
    stages TEXT NOT NULL           -- JSON object: stage -> nanoseconds
);
CREATE INDEX load_by_model ON load (model, source, id);
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""
_FOOTPRINTS = """
CREATE TABLE footprint (
    id INTEGER PRIMARY KEY,          -- ascending in time
    model TEXT NOT NULL,
    revision TEXT NOT NULL,          -- of the model's configuration
    declared_bytes INTEGER NOT NULL, -- per GPU, as configured
    measured_bytes INTEGER NOT NULL, -- per GPU, as the driver told
    measured_at_s INTEGER NOT NULL   -- unix time
);
CREATE INDEX footprint_by_model ON footprint (model, id);
"""
_STEPS: Final = (_LOADS, _FOOTPRINTS, demand.SCHEMA)
"""Step n takes a file of version n to version n + 1; a new file takes all of them."""


class NewerSchemaError(Exception):
    """The file was written by a later version of swapd."""


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection that any one thread at a time may use."""
    return sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)


class DamagedError(Exception):
    """SQLite finds its own file inconsistent."""


class Database:
    """One open history file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @property
    def connection(self) -> sqlite3.Connection:
        """For the functions of ``demand``."""
        return self._connection

    @classmethod
    def open(cls, path: Path, *, opened: Callable[[Path], sqlite3.Connection] = connect) -> Self:
        """Open or create the file. Raises sqlite3.Error, OSError, NewerSchemaError, DamagedError."""
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        connection = opened(path)
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    def load_times(self) -> LoadTimes:
        """Return the last load times of each model and source, oldest first."""
        rows = self._connection.execute(
            "SELECT model, source, load_time_ns FROM ("
            " SELECT *, row_number() OVER (PARTITION BY model, source ORDER BY id DESC) AS age FROM load"
            ") WHERE age <= ? ORDER BY id",
            (RECENT_LOADS,),
        )
        known = frozenset(Source)
        times: LoadTimes = {}
        for model, source, load_time_ns in rows:
            if source in known:
                key = (ModelName(model), Source(source))
                times[key] = (*times.get(key, ()), Duration(load_time_ns))
        return times

    def record_load(
        self,
        model: ModelName,
        source: Source,
        *,
        load_time: Duration,
        ended_at_s: int,
        stages: Mapping[Stage, Duration],
    ) -> None:
        """Add one load, unless it is there, and forget the oldest of this model and source."""
        text = json.dumps({stage.value: duration for stage, duration in stages.items()})
        with self._connection:  # commits, or rolls back on an error
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(
                "INSERT INTO load (model, source, load_time_ns, ended_at_s, stages) SELECT ?1, ?2, ?3, ?4, ?5"
                " WHERE NOT EXISTS (SELECT * FROM load WHERE model = ?1 AND source = ?2"
                " AND load_time_ns = ?3 AND ended_at_s = ?4)",
                (model, source.value, load_time, ended_at_s, text),
            )
            self._connection.execute(
                "DELETE FROM load WHERE model = ? AND source = ? AND id NOT IN"
                " (SELECT id FROM load WHERE model = ? AND source = ? ORDER BY id DESC LIMIT ?)",
                (model, source.value, model, source.value, KEPT_LOADS),
            )

    def footprints(self) -> dict[ModelName, Measured]:
        """Return what each model was last found to take."""
        rows = self._connection.execute(
            "SELECT model, revision, declared_bytes, measured_bytes FROM footprint"
            " WHERE id IN (SELECT max(id) FROM footprint GROUP BY model)"
        )
        return {
            ModelName(model): Measured(revision, Bytes(declared), Bytes(measured))
            for model, revision, declared, measured in rows
        }

    def record_footprint(self, model: ModelName, measured: Measured, *, measured_at_s: int) -> None:
        """Add one measurement and forget the oldest of this model."""
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(
                "INSERT INTO footprint (model, revision, declared_bytes, measured_bytes, measured_at_s)"
                " VALUES (?, ?, ?, ?, ?)",
                (model, *measured, measured_at_s),
            )
            self._connection.execute(
                "DELETE FROM footprint WHERE model = ? AND id NOT IN"
                " (SELECT id FROM footprint WHERE model = ? ORDER BY id DESC LIMIT ?)",
                (model, model, KEPT_FOOTPRINTS),
            )

    def next_instance(self) -> int | None:
        """Return the lowest instance id that no run has reserved; ``None`` in a new file."""
        return self._counter("next_instance")

    def reserve_instances(self, below: int) -> None:
        """Mark every instance id below ``below`` as given out; never takes an earlier mark back."""
        self._raise_counter("next_instance", below)

    def most_gpus(self) -> int:
        """Return the most GPUs that were ever seen on this node; 0: none so far."""
        return self._counter("most_gpus") or 0

    def gpus_seen(self, count: int) -> None:
        """Note a number of GPUs; a smaller one changes nothing."""
        self._raise_counter("most_gpus", count)

    def _counter(self, name: str) -> int | None:
        row = self._connection.execute("SELECT value FROM counter WHERE name = ?", (name,)).fetchone()
        return None if row is None else int(row[0])

    def _raise_counter(self, name: str, value: int) -> None:
        self._connection.execute(
            "INSERT INTO counter (name, value) VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = max(value, excluded.value)",
            (name, value),
        )

    def close(self) -> None:
        """Close the file; the journal is folded in."""
        self._connection.close()


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        raise NewerSchemaError(f"its format is version {version}, this swapd knows {SCHEMA_VERSION}")
    if version < SCHEMA_VERSION:
        steps = "".join(_STEPS[version:])
        connection.executescript(f"BEGIN IMMEDIATE; {steps} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
    # The file is small, and a broken page found now is better than one found in the middle of a write.
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise DamagedError(found)


def is_damaged(error: BaseException) -> bool:
    """Whether the file is no database or a broken one."""
    if isinstance(error, DamagedError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    # An extended code carries the primary one in its low byte.
    return code is not None and code & 0xFF in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def move_aside(path: Path, now_s: int) -> Path:
    """Rename the file and its journal out of the way; return the new name. Raises OSError."""
    aside = path.with_name(f"{path.name}.damaged-{now_s}")
    for suffix in ("-wal", "-shm", ""):  # the file last: until then the next start finds it damaged again
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.replace(aside.with_name(aside.name + suffix))
    return aside


def describe(error: BaseException) -> str:
    """Say in a few words what is wrong, for an operator."""
    code = getattr(error, "sqlite_errorcode", None)
    match None if code is None else code & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "another process holds its lock"
        case sqlite3.SQLITE_FULL:
            return "the disk is full"
        case sqlite3.SQLITE_READONLY:
            return "it is read-only"
        case sqlite3.SQLITE_CANTOPEN:
            return "it cannot be opened; check that the directory exists and is writable"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return "it is damaged"
        case _:
            return str(error) or type(error).__name__
