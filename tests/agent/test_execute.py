"""Every command reaches exactly one room, and is told in one log line."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import structlog

from swapd.agent.execute import Executor
from swapd.core.commands import (
    Answer,
    CancelFetch,
    Check,
    Cut,
    FetchWeights,
    Grant,
    KeepWeights,
    Kill,
    ReadMemory,
    RefetchWeights,
    Reject,
    StaleFact,
    Start,
    Stop,
    StopWarming,
    VerifyWeights,
    WarmWeights,
)
from swapd.engines.base import Binding
from tests.agent.samples import COMMANDS, sample


class Rooms:
    """Counts what each room is asked to do."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.planned: tuple[str, int, tuple[str, ...], Binding] | None = None

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.calls.update([name])

    def start(self, instance: int, model: str, plan_for_port: Any) -> None:
        self.calls.update(["start"])
        plan_for_port(20_001)

    def plan(self, name: str, *, port: int, devices: tuple[str, ...], binding: Binding) -> None:
        self.planned = (name, port, devices, binding)


def _executor(rooms: Rooms) -> Executor:
    return Executor(
        gate=rooms,
        instances=rooms,
        cache=rooms,
        planner=rooms,  # type: ignore[arg-type] - the plan itself is of no interest here
        answered=rooms.answered,
        noted=rooms.noted,
        started=rooms.started,
        read_memory=rooms.read_memory,
    )


ROOMS = {
    Grant: ["granted"],
    Reject: ["rejected"],
    Cut: ["cut"],
    Start: ["started", "start"],
    Check: ["check"],
    Stop: ["stop"],
    Kill: ["kill"],
    ReadMemory: ["read_memory"],
    KeepWeights: ["carry_out"],
    FetchWeights: ["carry_out"],
    RefetchWeights: ["carry_out"],
    CancelFetch: ["carry_out"],
    WarmWeights: ["carry_out"],
    StopWarming: ["carry_out"],
    VerifyWeights: ["carry_out"],
    Answer: ["answered"],
}


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_every_command_goes_to_its_room_and_is_told_in_at_most_one_log_line(kind: type[Any]) -> None:
    rooms = Rooms()
    with structlog.testing.capture_logs() as lines:
        _executor(rooms)(sample(kind))
    assert rooms.calls == Counter(ROOMS.get(kind, ["noted"]))
    assert len(lines) == 1


def test_an_engine_is_planned_with_the_identities_of_exactly_its_gpus_and_what_is_near_them() -> None:
    rooms = Rooms()
    _executor(rooms)(replace(sample(Start), devices=("GPU-1", "GPU-0"), cpus=(0, 1), numa=(0,)))
    assert rooms.planned == ("m01", 20_001, ("GPU-1", "GPU-0"), Binding(cpus=(0, 1), numa=(0,)))


def test_a_stale_fact_is_told_by_its_event() -> None:
    with structlog.testing.capture_logs() as lines:
        _executor(Rooms())(StaleFact("InstanceReady"))
    assert lines == [{"event": "stale_fact", "fact": "InstanceReady", "log_level": "debug"}]
