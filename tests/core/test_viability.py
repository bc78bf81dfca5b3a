"""Verdicts on swapping: the published table, the limits, the early rule and the blame."""

import itertools

import pytest

from swapd.core.commands import PromotionAdvised, VerdictChanged
from swapd.core.ids import Instant, ModelName, seconds
from swapd.core.promotion import advice_on_all, ranked
from swapd.core.reasons import Move, Verdict
from swapd.core.viability import Demand, NodeLoad, standing_out
from tests.core.driver import World, spec

LOAD = seconds(40)


def history(arrivals: list[float], load_ends: list[float]) -> Demand:
    """Demand of a model that is served instantly."""
    demand = Demand()
    for at in arrivals:
        demand.arrived(seconds(at), idle=True)
        demand.idle_since = Instant(seconds(at))
    for at in load_ends:
        demand.load_seconds.add(Instant(seconds(at)), 40.0)
        demand.loads.append(Instant(seconds(at)))
    return demand


EVERY_300 = [300.0 * n for n in range(1, 49)]
EVERY_60 = [60.0 * n for n in range(1, 121)]
EVERY_30 = [30.0 * n for n in range(1, 241)]
BURSTS = [3000.0 * n + 2 * k for n in range(1, 7) for k in range(10)]


@pytest.mark.parametrize(
    ("arrivals", "load_ends", "at", "expected"),
    [
        (EVERY_300, [t + 40 for t in EVERY_300], 14_550, (11.99, 11.99, 0.1332, 0.1362, 12, Verdict.OK)),
        (EVERY_60, [t + 40 for t in EVERY_60[:-1]], 7_230, (59.98, 59.98, 0.6664, 0.6586, 60, Verdict.THRASHING)),
        (BURSTS, [3000.0 * n + 40 for n in range(1, 7)], 19_500, (10.77, 1.07, 0.0119, 0.0122, 1, Verdict.OK)),
        (EVERY_60, [140], 7_230, (59.98, 59.98, 0.6664, 0.0004, 0, Verdict.OK)),
        (EVERY_30, [t + 40 for t in EVERY_30[:-1:2]], 7_215, (119.98, 119.98, 1.3331, 0.6759, 60, Verdict.THRASHING)),
        ([100], [140], 200, (17.99, 17.99, 0.1999, 0.2044, 1, Verdict.UNKNOWN)),
    ],
    ids=["every 300 s", "every 60 s", "bursts", "stays resident", "every 30 s", "one request"],
)
def test_the_published_table(
    arrivals: list[float], load_ends: list[float], at: float, expected: tuple[object, ...]
) -> None:
    demand, now = history(arrivals, load_ends), Instant(seconds(at))
    measured = (
        round(demand.requests.rate(now, Instant(0)) * 3600, 2),
        round(demand.episodes.rate(now, Instant(0)) * 3600, 2),
        round(demand.load_ratio(now, LOAD), 4),
        round(demand.load_fraction(now), 4),
        demand.recent_loads(now),
        demand.judge(now, LOAD),
    )
    assert measured == expected


def test_perfectly_regular_use_does_not_defeat_the_rule_but_silence_does() -> None:
    demand = history(EVERY_60, [t + 40 for t in EVERY_60[:-1]])
    demand.verdict = demand.judge(Instant(seconds(7_230)), LOAD)
    assert demand.verdict is Verdict.THRASHING
    assert demand.judge(Instant(seconds(7_230 + 600)), LOAD) is Verdict.THRASHING
    assert demand.judge(Instant(seconds(7_230 + 1_800)), LOAD) is Verdict.MARGINAL
    assert demand.judge(Instant(seconds(7_230 + 7_200)), LOAD) is Verdict.OK


def test_a_model_without_history_is_unknown_only_for_a_quarter_of_an_hour() -> None:
    demand = Demand()
    assert demand.shown(Instant(seconds(899))) is Verdict.UNKNOWN
    assert demand.shown(Instant(seconds(900))) is Verdict.OK
    assert demand.inter_arrival(Instant(seconds(900))) is None
    assert demand.requests.rate(Instant(0), Instant(0)) == 0


def test_a_burst_is_one_episode() -> None:
    demand = Demand()
    for second in (0, 1, 2, 12.5, 30):
        demand.arrived(Instant(seconds(second)), idle=True)
        demand.idle_since = Instant(seconds(second))
    assert round(demand.episodes.value, 1) == 3
    assert demand.arrivals == 5


def test_somebody_stands_out_only_with_more_than_half() -> None:
    a, b = ModelName("a"), ModelName("b")
    assert standing_out([a, b, a]) == "a"
    assert standing_out([a, b]) is None
    assert standing_out([b]) is None
    assert standing_out([]) is None


def test_the_share_of_the_node_is_weighted_by_gpus() -> None:
    load = NodeLoad(Instant(0), 8)
    load.gpu_seconds.add(Instant(seconds(900)), 4 * 90)
    assert round(load.fraction(Instant(seconds(900))), 3) == round(360 / 8 / 1800 / 0.3935, 3)


def alternation(rounds: int, **settings: object) -> World:
    world = World([spec("a", load=0.2), spec("b", load=0.2)], gpus=1, **settings)
    for engine in world.engines.values():
        engine.unload = 0.1
    for number in range(rounds):
        world.request("ab"[number % 2], at=number * 1.0)
    return world


def test_two_models_that_alternate_in_one_slot_are_reported_as_a_thrashing_pair_at_once() -> None:
    world = alternation(12).run(15)
    verdicts = {(note.model, note.after, note.partner) for note in world.of(VerdictChanged)}
    assert verdicts == {("a", Verdict.THRASHING, "b"), ("b", Verdict.THRASHING, "a")}
    assert all(asked.granted for asked in world.asked.values())
    assert world.loads() == 12


def test_a_thrashing_pair_that_falls_silent_is_taken_back_by_the_timer_which_then_stops() -> None:
    world = alternation(12).run()
    last = {note.model: note.after for note in world.of(VerdictChanged)}
    assert last == {"a": Verdict.OK, "b": Verdict.OK}
    assert world.core.next_wakeup is None
    assert world.model("a").partner is None


def test_minimum_residency_paces_a_pair() -> None:
    world = alternation(12, min_residency=seconds(30)).run(500)
    stays = [at for at, _ in world.evictions()]
    assert len(stays) < 11
    assert all(later - earlier >= 30 for earlier, later in itertools.pairwise(stays))


def test_five_models_in_rotation_through_three_places_are_flagged() -> None:
    world = World([spec(f"m{n}", load=10) for n in range(5)], gpus=3, protect=seconds(0))
    for turn in range(60):
        world.request(f"m{turn % 5}", at=turn * 14.0)
    world.run(900)
    flagged = {note.model for note in world.of(VerdictChanged) if note.after is Verdict.THRASHING}
    assert flagged
    assert all(asked.granted for asked in world.asked.values())
    assert world.core.view().load_fraction < 0.5


def test_each_reload_is_charged_to_the_model_whose_load_evicted_it() -> None:
    world = World([spec("a", 8, load=40), spec("b", 8, load=20)], protect=seconds(0))
    world.request("a", at=0)
    world.request("b", at=100)
    world.request("a", at=200)
    world.run(300)
    own_a, own_b, back = 40 * 8, (3 + 20) * 8, (3 + 40) * 8
    assert round(world.model("a").caused_gpu_seconds) == own_a + back
    assert round(world.model("b").caused_gpu_seconds) == own_b + back


def test_a_model_removed_meanwhile_is_judged_no_more_and_charged_nothing() -> None:
    world = alternation(12)
    world.request("b", at=20.0)
    world.reconfigure(at=18, remove=["a"])
    world.run(200)
    assert [m.model for m in world.core.view().models] == ["b"]


def test_regular_cold_use_over_hours_becomes_thrashing_by_the_timer() -> None:
    world = World([spec("a", load=40), spec("b", load=5)], gpus=1, protect=seconds(0))
    for minute in range(120):
        world.request("a", at=minute * 60.0)
        world.request("b", at=minute * 60.0 + 50)
    world.run(7300)
    model = world.model("a")
    assert model.verdict is Verdict.THRASHING
    assert model.load_ratio > 0.5
    assert model.inter_arrival is not None
    assert 55 < model.inter_arrival / seconds(1) < 65


def test_perfectly_regular_cold_use_is_advised_away_within_the_window() -> None:
    world = World([spec("a", load=40), spec("b", load=5)], gpus=1, protect=seconds(0))
    for minute in range(60):
        world.request("a", at=minute * 60.0)
        world.request("b", at=minute * 60.0 + 50)
    world.run(3600)
    advised = [(at, note.model) for at, note in world.log if isinstance(note, PromotionAdvised)]
    assert "a" in {name for _, name in advised}
    assert min(at for at, _ in advised) < 1200


def test_who_rotates_through_too_few_places_is_in_the_report_with_whom_it_evicts() -> None:
    world = World([spec(f"m{n}", load=10) for n in range(5)], gpus=3, protect=seconds(0))
    for turn in range(60):
        world.request(f"m{turn % 5}", at=turn * 14.0)
    world.run(900)
    advice = ranked(advice_on_all(world.core.view()))
    assert {one.move for one in advice} == {Move.DEDICATED}
    assert all(one.model.evicts for one in advice)
    own = sum(one.model.totals.own_gpu_seconds for one in advice)
    charged = sum(one.model.totals.charged_gpu_seconds for one in advice)
    assert 0 < charged < own
    assert [one.caused_gpu_seconds for one in advice] == sorted(
        (one.caused_gpu_seconds for one in advice), reverse=True
    )
