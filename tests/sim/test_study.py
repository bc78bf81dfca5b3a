"""A study: what is played, what is measured on the way, and what is drawn of it."""

import io
from dataclasses import replace
from pathlib import Path

import pytest

from swapd.core.catalog import Catalog, Footprint, ModelSpec, SchedulingSettings
from swapd.core.events import Event
from swapd.core.ids import SECOND, Bytes, Duration, Instant, ModelName, RequestId, seconds
from swapd.core.reasons import Verdict
from swapd.core.tiers import Hour
from swapd.core.topology import Gpu, NodeTopology
from swapd.gpus.fixture_node import topology_of
from swapd.sim.advise import DEDICATE, PIN, Advice, Measured, Step, advise, busiest
from swapd.sim.figures import node_figures, row
from swapd.sim.lives import Lives
from swapd.sim.plot import distribution, phases
from swapd.sim.sentences import sentences
from swapd.sim.study import Rules, Study, play, virtual
from swapd.sim.traces import TraceError, read_models, read_requests
from swapd.sim.workload import Arrival, burst, merged, ping_pong

A, B, C = (ModelName(name) for name in "abc")
GIB = 1 << 30
DATA = Path(__file__).parents[1] / "data"
EVER = Duration(10**9 * SECOND)


def model(name: str, gpus: int = 1, load_s: float = 10) -> ModelSpec:
    return ModelSpec(
        ModelName(name), Footprint(gpus, Bytes(8 * GIB)), load_estimate=seconds(load_s), max_wait=EVER, max_queue=10**6
    )


def study(*models: ModelSpec, gpus: int, arrivals: list[Arrival]) -> Study:
    node = NodeTopology(tuple(Gpu(index, f"virtual-{index}", Bytes(8 * GIB)) for index in range(gpus)))
    return Study(node, Catalog({spec.name: spec for spec in models}), arrivals)


def test_what_a_row_tries_counts_over_the_configuration() -> None:
    base = study(model("a"), model("b"), gpus=1, arrivals=ping_pong([A, B], 6, gap_s=15, service=seconds(1)))
    absolute = Catalog(base.catalog.models, SchedulingSettings(protect_max_wait=None))
    waits = [
        play(Study(base.topology, absolute, base.arrivals), Rules(protect=time)).report.node.max_wait_s
        for time in (Duration(0), seconds(100))
    ]
    assert waits[0] < 100 < waits[1]


def test_a_gpu_is_empty_until_a_load_books_it_and_stranded_only_while_somebody_waits_for_room() -> None:
    """One GPU stays empty for 20 s, while b, which needs two, waits for a to end."""
    arrivals = [*burst([A], service=seconds(9)), Arrival(Instant(seconds(10)), RequestId(2), B, seconds(7))]
    outcome = play(study(model("a"), model("b", 2), gpus=2, arrivals=arrivals), Rules(protect=Duration(0)))
    # a loads to 10 s and serves to 19 s, then 3 s to unload, b is booked at 19 s, ready at 32 s, served at 39 s
    assert outcome.report.window == seconds(39)
    assert outcome.waste.empty == pytest.approx(19 / 39)
    assert outcome.waste.stranded == pytest.approx(9 / 39)
    assert outcome.waste.unneeded == 0


def test_rounding_up_changes_what_is_given_and_not_what_is_needed() -> None:
    rounded = study(model("a", 3), model("b", 5), model("c", 8), gpus=8, arrivals=[]).rounded_up()
    assert [spec.footprint.gpus for spec in rounded.catalog.models.values()] == [4, 8, 8]
    assert dict(rounded.needs) == {A: 3, B: 5, C: 8}


def test_nobody_else_is_on_the_gpus_of_a_machine_that_is_only_known_by_its_wiring() -> None:
    (path,) = (DATA / "topologies").glob("03_*.txt")
    node = topology_of(path.read_text())
    assert node.gpus[0].measured
    outcome = play(
        Study(node, study(model("a", 8), gpus=1, arrivals=[]).catalog, burst([A], service=seconds(1))), Rules()
    )
    assert outcome.report.node.served == 1
    assert virtual(node).links == node.links


def test_figures_tell_what_was_refused_and_verdicts_of_who_loads_again_and_again() -> None:
    arrivals = ping_pong([A, B], 400, gap_s=20, service=seconds(1))
    base = study(model("a"), model("b"), gpus=1, arrivals=arrivals)
    outcome = play(base, Rules(protect=Duration(0)))
    figures = node_figures(outcome, seconds(12))
    assert (figures["served"], figures["refused"], figures["loads"]) == (400, 0, 400)
    assert figures["thrashing_models"] == 2
    assert figures["thrash_loads"] > 300
    assert figures["over_limit_share"] == pytest.approx(399 / 400)
    whole = row(Rules(), {None: outcome}, base, seconds(12))
    assert [model["verdict"] for model in whole["models"]] == [Verdict.THRASHING.value] * 2
    assert whole["models"][0]["thrashing_share"] > 0.8
    # each of them evicts the other, so that all loading is charged once as its own and once as caused
    assert whole["models"][0]["caused_gpu_s"] > 4000


def test_a_model_that_nobody_asks_for_has_figures_too() -> None:
    base = study(model("a"), model("b"), gpus=2, arrivals=burst([A], service=seconds(1)))
    _, idle = row(Rules(), {None: play(base, Rules())}, base, seconds(1))["models"]
    assert (idle["model"], idle["requests"], idle["wait_max_s"], idle["verdict"]) == ("b", 0, 0, "ok")


def test_tiers_are_those_of_the_mean_hour_of_the_trace() -> None:
    """Two days: a is asked for 60 times an hour, b 40 times."""
    arrivals = merged(
        burst([A] * 60 * 48, gap_s=60, service=seconds(1)), burst([B] * 40 * 48, gap_s=90, service=seconds(1))
    )
    base = study(model("a"), model("b"), model("c"), gpus=3, arrivals=arrivals)
    assert [sum(hour.requests for hour in hours) for _, hours in base.hours()] == [2880, 1920, 0]
    models = row(Rules(), {None: play(base, Rules())}, base, seconds(1))["models"]
    assert {found["model"]: found["tier"] for found in models} == {"a": "warm", "b": "cold", "c": "cold"}


def test_only_the_last_week_of_a_long_trace_makes_a_tier_and_the_time_before_the_first_request_none() -> None:
    year, last = burst([A], at_s=40 * 365 * 86_400, service=seconds(1)), 41 * 365 * 86_400
    arrivals = merged(year, burst([B] * 60, at_s=last, gap_s=1, service=seconds(1)))
    (_, a), (_, b) = study(model("a"), model("b"), gpus=1, arrivals=arrivals).hours()
    assert len(a) == len(b) == 168
    assert (sum(hour.requests for hour in a), sum(hour.requests for hour in b)) == (0, 60)
    late = study(model("a"), gpus=1, arrivals=burst([A] * 3, at_s=7200, gap_s=1800, service=seconds(1)))
    assert [hours for _, hours in late.hours()] == [[Hour(2), Hour(1, 0.0)]]


def test_a_load_of_a_day_gives_a_sign_of_life_now_and_then() -> None:
    day = 86_400
    spec = replace(model("a", load_s=day), load_timeout=seconds(2 * day))
    seen: list[Event] = []
    base = study(spec, gpus=1, arrivals=burst([A], service=seconds(1)))
    outcome = play(base, Rules(), observers=[lambda event, _: seen.append(event)])
    assert outcome.report.node.loads == 1
    assert day / 120 < len(seen) < day / 50


def test_the_life_of_an_instance_is_drawn_in_its_parts() -> None:
    lives = Lives()
    arrivals = burst([A, B], gap_s=100, service=seconds(1))
    play(study(model("a"), model("b"), gpus=1, arrivals=arrivals), Rules(), observers=[lives])
    first, second = lives.lives()
    assert [(word, begin * 3600, length * 3600) for word, begin, length in phases(first, lives.end)] == [
        ("loading", 0, 10),
        ("ready", pytest.approx(10), pytest.approx(90)),
        ("leaving", pytest.approx(100), pytest.approx(3)),
    ]
    assert [word for word, *_ in phases(second, lives.end)] == ["loading", "ready"]
    assert distribution(lives) == ([10.0, 13.0], [0.5, 1.0])


def test_the_busiest_day_is_the_one_with_most_requests_from_its_own_begin() -> None:
    quiet, busy = burst([A] * 3, gap_s=10, service=seconds(1)), burst([B] * 5, at_s=500, gap_s=10, service=seconds(1))
    found = busiest([*quiet, *busy], seconds(100))
    assert [arrival.model for arrival in found] == [B] * 5
    assert (found[0].at, found[-1].at) == (0, seconds(40))
    assert busiest(quiet, seconds(100)) == quiet


def test_where_a_pin_has_no_room_the_model_is_dedicated() -> None:
    """Two models that need the whole node take turns: none can be pinned beside the other."""
    arrivals = ping_pong([A, B], 200, gap_s=30, service=seconds(1))
    told: list[str] = []
    found = advise(
        study(model("a", 2), model("b", 2), gpus=2, arrivals=arrivals),
        Rules(protect=Duration(0)),
        seconds(5),
        told.append,
    )
    assert [(step.action, step.model, step.gpus) for step in found.steps] == [(DEDICATE, A, 2)]
    assert (found.met, found.swapped, found.slow, found.wide) == (True, (B,), (B,), (B,))
    assert found.after.over_share == 1 / 200  # the one cold start that is left
    assert told == ["as it is: 100.0% above the limit", "dedicate a: 0.5% above the limit"]


def test_nothing_is_advised_where_waits_are_short() -> None:
    found = advise(
        study(model("a"), gpus=1, arrivals=burst([A] * 200, gap_s=9, service=seconds(1))), Rules(), seconds(15)
    )
    assert (found.steps, found.met) == ((), True)
    assert list(sentences(found))[-1] == "All models can be swapped: 0.0% of all requests wait longer than 15 s then."


def test_what_cannot_be_reached_is_said_with_what_helps() -> None:
    bad = Measured(over_share=0.5, wait_mean_s=60, wait_p99_s=300, loads_per_h=40, loading_share=0.3)
    better = Measured(over_share=0.25, wait_mean_s=40, wait_p99_s=200, loads_per_h=30, loading_share=0.2)
    steps = (Step(PIN, A, 1, bad, better),)
    said = list(sentences(Advice(seconds(60), 0.01, bad, steps, slow=(B,), swapped=(B, C), wide=(C,))))
    begin, step, slow, rest, wide, end = said
    assert begin.startswith(
        "As it is, 50.0% of the requests wait longer than 60 s or are refused; the mean wait is 60.0 s"
    )
    assert step == "Pin a (1 GPU): above 60 s 50.0% → 25.0%, mean wait 60.0 → 40.0 s, loads an hour 40.0 → 30.0."
    assert slow.startswith("b: loading alone takes longer than 60 s")
    assert rest == "The other 2 models stay swapped: 25.0% of all requests wait longer than 60 s then."
    assert wide == "No further model can be pinned beside c, which needs all GPUs that are not pinned."
    assert end.endswith("a second node for the pool, or a limit of 200 s, which 99 % of the requests keep.")


def test_lines_of_a_trace_may_come_in_any_order_and_with_more_columns() -> None:
    read = read_requests(["t_s,user,model,service_s", "9,x,b,1", "3,y,a,2"])
    assert [(arrival.at, arrival.model) for arrival in read] == [(seconds(3), A), (seconds(9), B)]


def test_bytes_that_are_no_text_are_no_trace() -> None:
    with pytest.raises(TraceError, match="no text in UTF-8"):
        read_models(io.TextIOWrapper(io.BytesIO(b"model,gpus,load_s\n\xff,1,2\n"), "utf-8"), bytes_per_gpu=Bytes(1))
