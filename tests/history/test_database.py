"""The history file itself."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from swapd.core.catalog import Source
from swapd.core.ids import Bytes, Duration, ModelName
from swapd.core.reasons import Stage
from swapd.history.database import (
    KEPT_LOADS,
    SCHEMA_VERSION,
    DamagedError,
    Database,
    Measured,
    NewerSchemaError,
    connect,
    describe,
    is_damaged,
)

M01, M02 = ModelName("m01"), ModelName("m02")

FIRST_VERSION = """
CREATE TABLE load (
    id INTEGER PRIMARY KEY, model TEXT NOT NULL, source TEXT NOT NULL, load_time_ns INTEGER NOT NULL,
    ended_at_s INTEGER NOT NULL, stages TEXT NOT NULL
);
CREATE INDEX load_by_model ON load (model, source, id);
CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO load (model, source, load_time_ns, ended_at_s, stages) VALUES ('m01', 'cache', 4, 1, '{}');
INSERT INTO counter VALUES ('next_instance', 77);
PRAGMA user_version = 1;
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "state.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    made = Database.open(path)
    yield made
    made.close()


def record(database: Database, model: ModelName, source: Source, *times: int) -> None:
    for time in times:
        stages = {Stage.LOAD: Duration(time)}
        database.record_load(model, source, load_time=Duration(time), ended_at_s=1_700_000_000, stages=stages)


def test_the_last_five_load_times_come_back_oldest_first_per_model_and_source(database: Database) -> None:
    record(database, M01, Source.CACHE, 1, 2, 3, 4, 5, 6, 7)
    record(database, M01, Source.REMOTE, 80)
    record(database, M01, Source.PAGE_CACHE, 2, 1)
    record(database, M02, Source.CACHE, 9)
    assert database.load_times() == {
        (M01, Source.CACHE): (3, 4, 5, 6, 7),
        (M01, Source.REMOTE): (80,),
        (M01, Source.PAGE_CACHE): (2, 1),
        (M02, Source.CACHE): (9,),
    }


def test_fifty_loads_are_kept_per_model_and_source(database: Database, path: Path) -> None:
    record(database, M01, Source.CACHE, *range(KEPT_LOADS + 20))
    record(database, M02, Source.CACHE, 1)
    with connect(path) as other:
        rows = other.execute("SELECT model, count(*), min(load_time_ns) FROM load GROUP BY model").fetchall()
    other.close()
    assert rows == [("m01", KEPT_LOADS, 20), ("m02", 1, 1)]


def test_the_row_of_a_load_says_when_and_what_its_stages_took(database: Database, path: Path) -> None:
    record(database, M01, Source.WAKE, 12)
    with connect(path) as other:
        row = other.execute("SELECT model, source, load_time_ns, ended_at_s, stages FROM load").fetchone()
    other.close()
    assert row == ("m01", "wake", 12, 1_700_000_000, '{"load": 12}')


def test_a_source_that_this_version_does_not_know_is_passed_over(database: Database, path: Path) -> None:
    record(database, M01, Source.CACHE, 1)
    with connect(path) as other:
        other.execute("INSERT INTO load VALUES (NULL, 'm01', 'telepathy', 1, 1, '{}')")
    other.close()
    assert database.load_times() == {(M01, Source.CACHE): (1,)}


def test_the_instance_mark_never_goes_back(database: Database) -> None:
    assert database.next_instance() is None
    database.reserve_instances(1001)
    database.reserve_instances(500)
    assert database.next_instance() == 1001


def test_what_a_model_was_last_found_to_take_comes_back(database: Database) -> None:
    for measured in (5, 7):
        database.record_footprint(M01, Measured("r1", Bytes(10), Bytes(measured)), measured_at_s=1)
    database.record_footprint(ModelName("m02"), Measured("r2", Bytes(3), Bytes(3)), measured_at_s=1)
    assert database.footprints() == {
        M01: Measured("r1", Bytes(10), Bytes(7)),
        "m02": Measured("r2", Bytes(3), Bytes(3)),
    }


def test_twenty_footprints_are_kept_per_model(database: Database, path: Path) -> None:
    for measured in range(25):
        database.record_footprint(M01, Measured("r1", Bytes(10), Bytes(measured)), measured_at_s=measured)
    with closing(sqlite3.connect(path)) as other:
        kept = [measured for (measured,) in other.execute("SELECT measured_bytes FROM footprint ORDER BY id")]
    assert kept == list(range(5, 25))


def test_the_most_gpus_ever_seen_never_become_fewer(database: Database) -> None:
    assert database.most_gpus() == 0
    for count in (7, 8, 6):
        database.gpus_seen(count)
    assert database.most_gpus() == 8


def test_a_file_of_the_first_version_keeps_its_load_times(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(FIRST_VERSION)
    opened = Database.open(path)
    assert opened.load_times() == {(M01, Source.CACHE): (4,)}
    assert opened.next_instance() == 77
    opened.record_footprint(M01, Measured("r1", Bytes(10), Bytes(7)), measured_at_s=1)
    assert list(opened.footprints()) == [M01]
    opened.close()


def test_everything_is_there_after_reopening(database: Database, path: Path) -> None:
    record(database, M01, Source.CACHE, 1)
    database.reserve_instances(7)
    database.close()
    again = Database.open(path)
    assert (again.load_times(), again.next_instance()) == ({(M01, Source.CACHE): (1,)}, 7)
    again.close()


WRITER = """
import sys
from itertools import count
from pathlib import Path
from swapd.core.catalog import Source
from swapd.history.database import Database

database = Database.open(Path(sys.argv[1]))
for number in count(1):
    for source in (Source.REMOTE, Source.PAGE_CACHE):
        database.record_load("m01", source, load_time=number, ended_at_s=1, stages={})
    print(number, flush=True)
"""


def test_a_writer_that_is_killed_loses_no_load_that_it_had_written(path: Path) -> None:
    for told_before in (1, 3, 40):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(told_before):
            told = int(writer.stdout.readline())
        writer.kill()
        # what it told before it died
        told = max([told, *map(int, writer.stdout.read().split())])
        assert writer.wait() == -signal.SIGKILL
        writer.stdout.close()
        opened = Database.open(path)
        times = opened.load_times()
        opened.close()
        for source in (Source.REMOTE, Source.PAGE_CACHE):
            assert times[(M01, source)][-1] in {told, told + 1}
        path.unlink()


def test_a_file_of_a_later_version_is_left_alone(database: Database, path: Path) -> None:
    record(database, M01, Source.CACHE, 1)
    database.close()
    with connect(path) as other:
        other.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    other.close()
    with pytest.raises(NewerSchemaError, match=f"version {SCHEMA_VERSION + 1}, this swapd knows {SCHEMA_VERSION}"):
        Database.open(path)


def test_a_broken_page_is_found_when_the_file_is_opened(database: Database, path: Path) -> None:
    record(database, M01, Source.CACHE, *range(KEPT_LOADS))
    database.close()
    content = bytearray(path.read_bytes())
    content[4096 + 8 : 8192] = b"\xff" * (4096 - 8)
    path.write_bytes(content)
    with pytest.raises((sqlite3.DatabaseError, DamagedError)) as caught:
        Database.open(path)
    assert is_damaged(caught.value)


def test_other_troubles_are_no_damage(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(sqlite3.OperationalError) as caught:
        Database.open(path)
    assert not is_damaged(caught.value)
    assert describe(caught.value) == "it cannot be opened; check that the directory exists and is writable"
