"""Reads and writes demand in the history file: hourly counts, tiers, and the record that a restart takes back in.

Runs on the history's thread, like ``database``, and raises ``sqlite3.Error`` like it. What cannot be understood in a
record (a file edited by hand, words of a later version) is passed over: then that part begins anew.
"""

import sqlite3
from collections.abc import Mapping
from typing import Final

import msgspec

from swapd.core.accounts import Costs
from swapd.core.events import DemandKnown
from swapd.core.ids import ModelName
from swapd.core.tiers import Tier
from swapd.history.hours import Row, Rows

SCHEMA: Final = """
CREATE TABLE demand (
    hour INTEGER NOT NULL,              -- hours since 1970
    model TEXT NOT NULL,
    observed_s REAL NOT NULL,           -- of the hour, in which the model was observed
    requests INTEGER NOT NULL,
    loads INTEGER NOT NULL,             -- that became ready
    own_gpu_seconds REAL NOT NULL,      -- of its loads
    charged_gpu_seconds REAL NOT NULL,  -- of reloads of models that its loads had evicted
    waited_seconds REAL NOT NULL,       -- of requests, for its loads
    PRIMARY KEY (hour, model)
) WITHOUT ROWID;
CREATE TABLE tier (model TEXT PRIMARY KEY, tier TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE record (
    name TEXT PRIMARY KEY,              -- demand
    recorded_at_s REAL NOT NULL,        -- unix time
    content TEXT NOT NULL               -- JSON
) WITHOUT ROWID;
"""
_NAME: Final = "demand"
_MOST: Final = 1e12
"""No figure of an hour comes near."""


def hours(connection: sqlite3.Connection) -> Rows:
    """Return every hour that is kept; a row that holds anything but plausible numbers is passed over."""
    rows: Rows = {}
    for hour, model, *figures in connection.execute(
        "SELECT hour, model, observed_s, requests, loads, own_gpu_seconds, charged_gpu_seconds, waited_seconds"
        " FROM demand WHERE typeof(hour) = 'integer' AND typeof(model) = 'text' ORDER BY hour, model"
    ):
        if all(isinstance(figure, int | float) and 0 <= figure <= _MOST for figure in figures):
            observed_s, *costs = figures
            rows.setdefault(hour, {})[ModelName(model)] = Row(observed_s, Costs(*costs))
    return rows


def tiers(connection: sqlite3.Connection) -> dict[ModelName, Tier]:
    """Return the tier of each model, as last settled."""
    known = frozenset(Tier)
    rows = connection.execute("SELECT model, tier FROM tier ORDER BY model")
    return {ModelName(model): Tier(tier) for model, tier in rows if tier in known}


def write_hour(connection: sqlite3.Connection, hour: int, rows: Mapping[ModelName, Row]) -> None:
    """Write the rows of one hour over what is there."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT OR REPLACE INTO demand (hour, model, observed_s, requests, loads, own_gpu_seconds,"
            " charged_gpu_seconds, waited_seconds) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(hour, model, row.observed_s, *row.costs) for model, row in rows.items()],
        )


def forget_hour(connection: sqlite3.Connection, hour: int) -> None:
    """Remove one hour of all models."""
    connection.execute("DELETE FROM demand WHERE hour = ?", (hour,))


def write_tiers(connection: sqlite3.Connection, settled: Mapping[ModelName, Tier]) -> None:
    """Write the tiers of these models, and forget all others."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DELETE FROM tier")
        connection.executemany(
            "INSERT INTO tier (model, tier) VALUES (?, ?)", [(model, tier.value) for model, tier in settled.items()]
        )


def write_record(connection: sqlite3.Connection, known: DemandKnown, recorded_at_s: float) -> None:
    """Write the record over the one that is there."""
    connection.execute(
        "INSERT OR REPLACE INTO record (name, recorded_at_s, content) VALUES (?, ?, ?)",
        (_NAME, recorded_at_s, msgspec.json.encode(known).decode()),
    )


def read_record(connection: sqlite3.Connection) -> tuple[DemandKnown, float] | None:
    """Return the last record and the unix time it was made at; ``None``: there is none that can be understood."""
    row = connection.execute("SELECT content, recorded_at_s FROM record WHERE name = ?", (_NAME,)).fetchone()
    if row is None:
        return None
    try:
        known = msgspec.json.decode(row[0], type=DemandKnown)
    except msgspec.MsgspecError:
        return None
    return known, float(row[1])
