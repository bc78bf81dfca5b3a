"""The default policy held against the yardstick and against plain LRU, on a real day and a synthetic one."""

from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from swapd.core.catalog import Catalog
from swapd.core.commands import Command, Grant, Transitioned
from swapd.core.events import Event, RequestArrived
from swapd.core.ids import SECOND, Bytes, Duration, Instant, ModelName, RequestId, seconds
from swapd.core.reasons import State
from swapd.core.topology import Gpu, NodeTopology
from swapd.sim.report import Report
from swapd.sim.study import CLAIRVOYANT, Rules, Study, play
from swapd.sim.traces import read_models, read_requests

TRACES = Path(__file__).parents[1] / "data" / "traces"
GPU_BYTES = Bytes(80 << 30)
NODE = NodeTopology(tuple(Gpu(index, f"virtual-{index}", GPU_BYTES) for index in range(8)))
FOR_EVER = Duration(10**9 * SECOND)
#: the day of each trace that is played; the whole week is played for the page about the simulator
DAYS = {"maf45": 0, "synth45": 1}
PLAIN_LRU = Rules("lru", Duration(0))


@cache
def study(name: str) -> Study:
    with (TRACES / f"{name}_requests.csv").open() as lines:
        begin = seconds(86_400 * DAYS[name])
        later = (replace(arrival, at=Instant(arrival.at - begin)) for arrival in read_requests(lines))
        arrivals = [arrival for arrival in later if 0 <= arrival.at < seconds(86_400)]
    with (TRACES / f"{name}_models.csv").open() as lines:
        models = read_models(lines, bytes_per_gpu=GPU_BYTES)
    patient = {model: replace(spec, max_wait=FOR_EVER, max_queue=len(arrivals)) for model, spec in models.items()}
    return Study(NODE, Catalog(patient), arrivals)


def whole_week() -> Study:
    """Return the synthetic week as it is."""
    with (TRACES / "synth45_requests.csv").open() as lines:
        return replace(study("synth45"), arrivals=read_requests(lines))


@cache
def outcome(name: str, rules: Rules) -> Report:
    return play(study(name), rules).report


@pytest.mark.parametrize("name", DAYS)
def test_the_default_waits_at_most_eight_percent_longer_than_one_who_knows_the_future(name: str) -> None:
    default, yardstick = outcome(name, Rules()).node, outcome(name, Rules(CLAIRVOYANT)).node
    assert default.served == yardstick.served == len(study(name).arrivals)
    assert yardstick.mean_wait_s < default.mean_wait_s <= 1.08 * yardstick.mean_wait_s


@pytest.mark.parametrize("name", DAYS)
@pytest.mark.parametrize("lru", [Rules("lru"), PLAIN_LRU], ids=["with protection", "plain"])
def test_the_default_waits_no_longer_than_least_recently_used(name: str, lru: Rules) -> None:
    assert outcome(name, Rules()).node.mean_wait_s <= outcome(name, lru).node.mean_wait_s


class Turns:
    """An observer that knows who waits for room, and whose turn came first."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        #: by model that is not placed: since when its oldest request waits
        self.since: dict[ModelName, Instant] = {}
        #: … and how many older ones were booked after its own patience was over
        self.passed: dict[ModelName, int] = {}
        #: by model that is on its way: the two figures when it was booked
        self.booked: dict[ModelName, tuple[Instant, int]] = {}
        #: per load: how long its oldest request waited for it, and how many turns of older ones came first
        self.waits: list[tuple[int, int]] = []
        self._open: dict[ModelName, dict[RequestId, Instant]] = defaultdict(dict)
        self._placed: set[ModelName] = set()

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        if isinstance(event, RequestArrived):
            self._open[event.model][event.request] = event.at
            self._look(event.model)
        for command in commands:
            if isinstance(command, Grant):
                del self._open[command.model][command.request]
            elif isinstance(command, Transitioned):
                self._move(command, event.at)

    def _look(self, model: ModelName) -> None:
        if model not in self._placed and self._open[model]:
            self.since[model] = next(iter(self._open[model].values()))

    def _move(self, note: Transitioned, at: Instant) -> None:
        model = note.model
        if note.before is None:
            self._placed.add(model)
            since = self.since.pop(model)
            self.booked[model] = since, self.passed.pop(model, 0)
            for other, begun in self.since.items():
                if since <= begun and at > begun + self.patience:
                    self.passed[other] = self.passed.get(other, 0) + 1
        elif note.after is State.READY and note.before is State.LOADING:
            since, first = self.booked.pop(model)
            self.waits.append((at - since, first))
        elif note.after is State.UNLOADING:
            self._placed.discard(model)
            self._look(model)


@pytest.mark.parametrize("name", DAYS)
@pytest.mark.parametrize(
    "rules", [Rules(), Rules(protect=Duration(0)), PLAIN_LRU], ids=["default", "bare", "plain lru"]
)
def test_no_wait_for_a_model_is_longer_than_its_turn_and_those_before_it(name: str, rules: Rules) -> None:
    """The bound that docs/simulate.md derives; what a ready model's requests wait for each other is no part of it."""
    played = study(name)
    patience = played.catalog.settings.drain_after * 3 // 2
    longest = max(arrival.service for arrival in played.arrivals)
    load = max(spec.load_estimate for spec in played.catalog.models.values())
    unload = seconds(3)
    turns = Turns(patience)
    play(played, rules, observers=[turns])
    assert turns.waits
    for waited, first in turns.waits:
        turn = (unload + load) + longest + (unload + load)  # loads in the way, the drain, a slot for the load
        assert waited <= patience + (first + 1) * turn + unload + load


@pytest.mark.parametrize("name", DAYS)
def test_the_worst_wait_for_a_model_is_a_drain_and_two_loads(name: str) -> None:
    """Measured, not promised: ``drain_after``, the longest request, unload and load; once more a load before it."""
    played = study(name)
    longest = max(arrival.service for arrival in played.arrivals)
    load = max(spec.load_estimate for spec in played.catalog.models.values())
    turns = Turns(0)
    play(played, Rules(), observers=[turns])
    assert max(turns.waits)[0] <= played.catalog.settings.drain_after + longest + 2 * (seconds(3) + load)


def test_a_week_of_34_000_requests_is_a_matter_of_six_events_each() -> None:
    """What the simulator works off; `python -m benchmarks simulator` tells the seconds."""
    handled = 0

    def count(_: Event, __: tuple[Command, ...]) -> None:
        nonlocal handled
        handled += 1

    played = whole_week()
    report = play(played, Rules(), observers=[count]).report
    assert report.node.served == len(played.arrivals) > 34_000
    assert handled <= 6 * len(played.arrivals)
