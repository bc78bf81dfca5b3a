"""What led to a broken law can be read afterwards."""

import json
from pathlib import Path
from typing import Any

import pytest

from swapd.agent.recorder import FlightRecorder
from swapd.core.events import Tick
from swapd.core.ids import Instant
from tests.agent.samples import EVENTS, sample


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
def test_every_kind_of_fact_can_be_written_out(kind: type[Any], tmp_path: Path) -> None:
    recorder = FlightRecorder()
    recorder.record(sample(kind))
    assert recorder.dump(tmp_path / "flight.jsonl") == 1
    [line] = (tmp_path / "flight.jsonl").read_text().splitlines()
    assert json.loads(line)["event"] == kind.__name__


def test_only_the_last_facts_are_kept(tmp_path: Path) -> None:
    recorder = FlightRecorder(capacity=2)
    for at in range(5):
        recorder.record(Tick(at=Instant(at)))
    recorder.dump(tmp_path / "flight.jsonl")
    assert [json.loads(line)["at"] for line in (tmp_path / "flight.jsonl").read_text().splitlines()] == [3, 4]
