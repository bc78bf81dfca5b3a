"""The share of its time that the node spends loading: said when it passes a limit, once, and taken back in time."""

import pytest
from typing_extensions import override

from swapd.core.commands import LoadFinished, NodeLoadChanged
from swapd.core.ids import Instant, seconds
from swapd.core.reasons import LoadFailure, LoadResult, Verdict
from swapd.core.viability import NodeLoad
from tests.core.driver import World, spec

OK, MARGINAL, THRASHING = Verdict.OK, Verdict.MARGINAL, Verdict.THRASHING
NOW = Instant(seconds(3600))


class Measured(NodeLoad):
    """A node whose load fraction is given."""

    share = 0.0

    @override
    def fraction(self, at: Instant) -> float:
        return self.share


@pytest.mark.parametrize(
    ("before", "share", "expected"),
    [
        (OK, 0.14, OK),
        (OK, 0.15, MARGINAL),
        (OK, 0.30, THRASHING),
        (MARGINAL, 0.11, MARGINAL),
        (MARGINAL, 0.09, OK),
        (MARGINAL, 0.29, MARGINAL),
        (MARGINAL, 0.30, THRASHING),
        (THRASHING, 0.21, THRASHING),
        (THRASHING, 0.19, MARGINAL),
        (THRASHING, 0.09, OK),
    ],
)
def test_a_limit_is_passed_upwards_at_once_and_downwards_a_third_below(
    before: Verdict, share: float, expected: Verdict
) -> None:
    load = Measured(Instant(0), 1, verdict=before)
    load.share = share
    assert load.judge(NOW) is expected


def test_a_node_that_has_just_started_is_not_judged_by_its_first_loads() -> None:
    load = Measured(Instant(0), 1)
    load.share = 0.9
    assert load.judge(Instant(seconds(899))) is OK
    assert load.judge(Instant(seconds(900))) is THRASHING


def test_a_node_that_is_not_judged_yet_is_not_shown_as_well() -> None:
    world = alternation(20, load=6, until=600).run(600)
    early = world.core.view()
    assert early.load_fraction > 0.3
    assert early.load_verdict is Verdict.UNKNOWN
    assert world.core.view(Instant(seconds(900))).load_verdict is OK


def alternation(every: float, *, load: float, until: float) -> World:
    """Let two models alternate on one GPU."""
    world = World([spec("a", load=load), spec("b", load=load)], gpus=1, protect=seconds(0))
    for number in range(int(until / every)):
        world.request("ab"[number % 2], at=number * every)
    return world


def test_a_node_that_spends_a_sixth_of_its_time_loading_says_so_once_and_takes_it_back() -> None:
    world = alternation(50, load=6, until=2000).run()
    notes = world.of(NodeLoadChanged)
    assert [(note.before, note.after) for note in notes] == [(OK, MARGINAL), (MARGINAL, OK)]
    assert notes[0].detail.startswith("the node spends 19% of its time loading: much; ")
    assert notes[1].detail == "the node spends 10% of its time loading, which is well again"
    told = [line for _, line in world.core.view().story]
    assert notes[1].detail in told
    assert world.core.next_wakeup is None


def test_a_thrashing_pool_is_called_one_and_what_to_do_is_said() -> None:
    world = alternation(20, load=6, until=2000).run(2000)
    (note,) = world.of(NodeLoadChanged)
    assert (note.before, note.after) == (OK, THRASHING)
    assert 0.3 <= note.load_fraction <= 0.5
    assert note.detail.endswith("of its time loading: pool thrashing; promote the models that cause it, or add a node")


def test_a_share_that_hovers_about_a_limit_is_said_once() -> None:
    world = alternation(60, load=6, until=12_000).run(12_000)
    fractions = [note.load_fraction for note in world.of(NodeLoadChanged)]
    assert len(fractions) <= 1
    assert world.of(LoadFinished)


def test_a_load_soon_after_its_own_eviction_is_noted_as_a_relapse() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, protect=seconds(0))
    for at, name in ((0, "a"), (100, "b"), (150, "a"), (400, "b"), (600, "a")):
        world.request(name, at=at)
    world.run(1000)
    noted = [(str(note.model), note.relapse) for note in world.of(LoadFinished)]
    assert noted == [("a", False), ("b", False), ("a", True), ("b", False), ("a", False)]


def test_a_failed_load_is_no_relapse() -> None:
    world = World([spec("a", load=10), spec("b", load=10)], gpus=1, protect=seconds(0))
    world.request("a", at=0)
    world.request("b", at=100)
    world.run(120)
    world.engines["a"].fails = LoadFailure.EXITED
    world.request("a", at=120)
    world.run(200)
    assert [(note.result, note.relapse) for note in world.of(LoadFinished, "a")] == [
        (LoadResult.READY, False),
        (LoadResult.FAILED, False),
    ]
