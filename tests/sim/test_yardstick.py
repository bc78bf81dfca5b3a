"""The default policy held against the yardstick and against plain LRU, on a real day and a synthetic one."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from swapd.core.catalog import Catalog
from swapd.core.ids import SECOND, Bytes, Duration, Instant, seconds
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


@pytest.mark.parametrize("name", DAYS)
def test_the_worst_wait_is_bounded_by_the_drain_rule(name: str) -> None:
    """Drain_after, and twice the longest request, unload and load: once for the one whose reservation came first."""
    played = study(name)
    longest = max(arrival.service for arrival in played.arrivals)
    load = max(spec.load_estimate for spec in played.catalog.models.values())
    once = longest + seconds(3) + load
    bound = played.catalog.settings.drain_after + 2 * once
    assert outcome(name, Rules()).node.max_wait_s <= bound / SECOND
