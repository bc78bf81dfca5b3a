"""Demand in the file: what is written is what is read, and what cannot be understood is passed over."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from swapd.core.accounts import Costs
from swapd.core.events import DemandKnown
from swapd.core.ids import Duration, Instant, ModelName
from swapd.core.tiers import Tier
from swapd.history import demand
from swapd.history.hours import Row
from tests.core.test_recall import alternation

A, B = ModelName("a"), ModelName("b")


@pytest.fixture
def file() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(demand.SCHEMA)
        yield connection


def test_hours_are_written_over_and_forgotten_whole(file: sqlite3.Connection) -> None:
    rows = {A: Row(60, Costs(1, 2, 3.5, 4.5, 5.5)), B: Row(30, Costs(7))}
    demand.write_hour(file, 10, {A: Row(1, Costs(1))})
    demand.write_hour(file, 10, rows)
    demand.write_hour(file, 11, rows)
    demand.write_hour(file, 12, {B: Row(1)})
    demand.forget_hour(file, 11)
    assert demand.hours(file) == {10: rows, 12: {B: Row(1)}}


@pytest.mark.parametrize(
    "damage",
    [
        "observed_s = 'abc'",
        "requests = -5",
        "observed_s = 1e308",
        "waited_seconds = 9e999",
        "hour = 'x'",
        "loads = x''",
    ],
)
def test_an_hour_that_cannot_be_understood_is_passed_over(file: sqlite3.Connection, damage: str) -> None:
    demand.write_hour(file, 10, {A: Row(60, Costs(1)), B: Row(30, Costs(7))})
    file.execute(f"UPDATE demand SET {damage} WHERE model = 'a'")
    assert demand.hours(file) == {10: {B: Row(30, Costs(7))}}


def test_tiers_are_those_of_the_last_time(file: sqlite3.Connection) -> None:
    demand.write_tiers(file, {A: Tier.HOT, B: Tier.COLD})
    demand.write_tiers(file, {A: Tier.WARM})
    file.execute("INSERT INTO tier VALUES ('b', 'lukewarm')")
    assert demand.tiers(file) == {A: Tier.WARM}


def test_a_record_comes_back_as_it_was(file: sqlite3.Connection) -> None:
    assert demand.read_record(file) is None
    known = alternation().core.demand()
    assert known.models[A].relapses
    assert known.models[A].evicts
    demand.write_record(file, DemandKnown(Instant(1), {}, Duration(2), 3.0), 1.0)
    demand.write_record(file, known, 1_700_000_000.5)
    assert demand.read_record(file) == (known, 1_700_000_000.5)


@pytest.mark.parametrize(
    "content",
    ["", "no JSON", "[]", "{}", '{"at": 1, "models": {"a": {}}, "node_age": 1, "node_gpu_seconds": 1}', '{"at": "x"}'],
)
def test_a_record_that_cannot_be_understood_is_passed_over(file: sqlite3.Connection, content: str) -> None:
    file.execute("INSERT INTO record VALUES ('demand', 1.0, ?)", (content,))
    assert demand.read_record(file) is None


def test_a_verdict_that_this_version_does_not_know_is_not_understood(file: sqlite3.Connection) -> None:
    demand.write_record(file, alternation().core.demand(), 1.0)
    file.execute("UPDATE record SET content = replace(content, 'thrashing', 'dreadful')")
    assert demand.read_record(file) is None
