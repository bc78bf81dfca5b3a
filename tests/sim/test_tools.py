"""The simulator's own parts: workloads, reports, recordings, the virtual node."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from swapd.agent.recorder import FlightRecorder
from swapd.core.catalog import SchedulingSettings
from swapd.core.commands import Command, Grant
from swapd.core.events import Event, RequestArrived, RequestEnded, Tick
from swapd.core.ids import Bytes, Duration, InstanceId, Instant, ModelName, RequestId, seconds
from swapd.core.policies import Resident
from swapd.core.reasons import Outcome
from swapd.sim import Setup, simulate, table
from swapd.sim.clairvoyant import Clairvoyant
from swapd.sim.node import SpinningError, VirtualNode
from swapd.sim.replay import Recording
from swapd.sim.report import quantile
from swapd.sim.traces import read_models, read_requests
from swapd.sim.workload import Zipf, burst, merged, numbered, ping_pong
from swapd.sim.world import HealthyWorld, Timings
from tests.properties.nodes import EXCLUSIVE, ORIGINS, catalog, topology
from tests.sim.rigs import plain, stormy

TRACES = Path(__file__).parents[1] / "data" / "traces"
THREE = catalog(plain("a"), plain("b"), plain("c"), settings=SchedulingSettings())
A, B = ModelName("a"), ModelName("b")


class Script:
    """A core that follows a script instead of deciding."""

    def __init__(self, *answers: tuple[Command, ...], wakeup: Instant | None = None) -> None:
        self._answers = list(answers)
        self.heard: list[Event] = []
        self.next_wakeup = wakeup

    def handle(self, event: Event) -> tuple[Command, ...]:
        self.heard.append(event)
        return self._answers.pop(0) if self._answers else ()


def granted(request: int) -> Grant:
    return Grant(RequestId(request), InstanceId(1), A, cold_start=False, waited=Duration(0), stages={})


def test_a_request_ends_once_even_if_its_client_leaves_first() -> None:
    core = Script((granted(1),))
    node = VirtualNode(core, HealthyWorld(Timings(default_service=seconds(9))))
    arrival = RequestArrived(Instant(0), RequestId(1), A)
    gone = RequestEnded(Instant(5), RequestId(1), Outcome.CANCELLED)
    node.post(arrival, gone)
    node.run()

    assert core.heard == [arrival, gone]
    assert node.open == {}


def test_facts_come_before_the_wakeup_of_the_same_moment() -> None:
    core = Script(wakeup=Instant(7))
    node = VirtualNode(core, HealthyWorld(Timings()))
    arrival = RequestArrived(Instant(7), RequestId(1), A)
    node.post(arrival)
    node.step()
    node.step()

    assert core.heard == [arrival, Tick(Instant(7))]


def test_a_core_that_wants_to_be_woken_for_ever_is_found_out() -> None:
    with pytest.raises(SpinningError):
        VirtualNode(Script(wakeup=Instant(0)), HealthyWorld(Timings())).run()


def test_time_goes_on_to_the_end_of_the_run_even_if_nothing_happens() -> None:
    node = VirtualNode(Script(), HealthyWorld(Timings()))
    node.run(Instant(99))

    assert node.now == 99


def test_the_same_seed_makes_the_same_workload() -> None:
    zipf = Zipf(rate_per_s=1, duration=seconds(1000))
    first, again, other = (zipf.arrivals([A, B], random.Random(seed)) for seed in (1, 1, 2))

    assert first == again
    assert first != other
    assert 800 < len(first) < 1200
    assert sum(arrival.model == A for arrival in first) > 0.6 * len(first)


def test_patterns_come_in_order_with_ids_from_one() -> None:
    there_and_back = ping_pong([A, B], 4, gap_s=2, service=seconds(1))
    assert [arrival.model for arrival in there_and_back] == [A, B, A, B]
    assert [arrival.at for arrival in there_and_back] == [0, seconds(2), seconds(4), seconds(6)]

    both = merged(there_and_back, burst([B], at_s=1, service=seconds(1)))
    assert [arrival.request for arrival in both] == [1, 2, 3, 4, 5]
    assert [arrival.model for arrival in both] == [A, B, B, A, B]


def test_traces_are_read() -> None:
    assert read_requests(["t_s,model,service_s", "1.5,a,7.25"]) == numbered([(1.5, A, seconds(7.25))])
    models = read_models(["model,gpus,load_s", "a,2,18.7"], bytes_per_gpu=Bytes(80))
    assert (models[A].footprint.gpus, models[A].load_estimate) == (2, seconds(18.7))


def test_the_recorded_day_can_be_read() -> None:
    with (TRACES / "maf45_requests.csv").open() as lines:
        arrivals = read_requests(lines)
    with (TRACES / "maf45_models.csv").open() as lines:
        models = read_models(lines, bytes_per_gpu=Bytes(80))

    assert len(models) == 45
    assert {arrival.model for arrival in arrivals} <= models.keys()


def test_a_quantile_is_a_value_that_occurred() -> None:
    assert [quantile([1, 2, 3, 4], share) for share in (0.0, 0.25, 0.5, 0.99, 1)] == [1, 1, 2, 4, 4]
    assert quantile([], 0.5) == 0


def test_clairvoyance_gives_up_what_is_needed_last_and_first_what_is_never_needed() -> None:
    policy = Clairvoyant(burst([A, B, A], gap_s=10, service=seconds(1)))

    def worth(model: str, at_s: float, gpus: int = 1) -> float:
        at = Instant(seconds(at_s))
        return policy.value(Resident(ModelName(model), gpus, seconds(8), last_used=at, worth=0, at=at)) * gpus

    assert worth("c", 5) == worth("b", 15) == 0
    assert 0 < worth("a", 5) < worth("b", 5)
    assert worth("b", 5, gpus=8) == worth("b", 5)


def test_clairvoyance_gives_up_any_number_of_later_ones_for_the_next_one() -> None:
    names = [ModelName(f"m{number:02}") for number in range(20)]
    policy = Clairvoyant(burst(names, at_s=1, gap_s=1, service=seconds(1)))
    first, *others = (policy.value(Resident(name, 1, seconds(8), Instant(0), 0, Instant(0))) for name in names)

    assert sum(others) < first


def test_the_yardstick_loads_no_more_than_the_default() -> None:
    names = [ModelName(name) for name in ("a", "b", "c")]
    arrivals = Zipf(rate_per_s=0.05, duration=seconds(20_000)).arrivals(names, random.Random(7))
    loads = [
        simulate(Setup(topology(2), THREE, policy=policy), arrivals).node.loads
        for policy in (Clairvoyant(arrivals), None)
    ]
    assert loads[0] < loads[1]


def test_a_report_counts_what_happened() -> None:
    setup = Setup(topology(1), EXCLUSIVE, Timings(default_load=seconds(8), stop=seconds(1), release=seconds(1)))
    report = simulate(setup, burst([A, A, B], gap_s=1, service=seconds(2)), until=Instant(seconds(100)))

    assert (report.node.served, report.node.cold_starts, report.node.loads, report.node.evictions) == (3, 3, 2, 1)
    assert report.models[A].max_wait_s == 8
    assert "run" in table([("first", report)])


def test_a_recording_repeats_itself_and_notices_a_difference() -> None:
    origin = ORIGINS[0]
    recording = Recording(origin)
    simulate(
        Setup(origin.topology, origin.catalog),
        burst([A, B], service=seconds(1)),
        until=Instant(seconds(60)),
        observers=[recording],
    )
    assert recording.difference() is None

    event, commands = recording.steps[1]
    recording.steps[1] = (event, commands[1:])
    difference = recording.difference()
    assert difference is not None
    assert difference.step == 1


RUN = """
import hashlib
from tests.sim.rigs import stormy
print(hashlib.sha256(repr(stormy(3).watch.recording.steps).encode()).hexdigest())
"""


def test_the_order_of_hashes_decides_nothing() -> None:
    root = Path(__file__).parents[2]
    digests = {
        subprocess.run(
            [sys.executable, "-c", RUN],
            check=True,
            capture_output=True,
            cwd=root,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_whatever_a_node_with_a_driver_hears_can_be_repeated_and_written_out(tmp_path: Path) -> None:
    storm = stormy(4)
    storm.watch.replay_is_exact()

    recorder = FlightRecorder(capacity=10_000)
    for event, _ in storm.watch.recording.steps:
        recorder.record(event)
    recorder.dump(tmp_path / "flight.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "flight.jsonl").read_text().splitlines()]
    assert len(lines) == len(storm.watch.recording.steps)
    assert any(line["event"] == "GpuMemoryRead" and line["readings"] for line in lines)
    assert any(line["event"] == "TopologyChanged" for line in lines)
