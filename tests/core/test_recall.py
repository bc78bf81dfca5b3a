"""What a restart must not forget: demand, verdicts, who thrashes with whom, and the pins of on_thrash."""

from dataclasses import replace

import pytest

from swapd.core.catalog import Catalog, OnThrash
from swapd.core.events import DemandKnown, RequestArrived, Tick
from swapd.core.ids import Duration, Instant, ModelName, RequestId, seconds
from swapd.core.reasons import PinnedBy, Verdict
from swapd.core.scheduler import Scheduler
from tests.core.driver import World, spec, topology

A, B = ModelName("a"), ModelName("b")


def alternation(until: int = 15, **settings: object) -> World:
    world = World([spec("a", load=0.2), spec("b", load=0.2)], gpus=1, **settings)
    for engine in world.engines.values():
        engine.unload = 0.1
    for number in range(12):
        world.request("ab"[number % 2], at=number * 1.0)
    return world.run(until)


def restarted(world: World, *, away: Duration, at: Instant = Instant(seconds(5000)), gpus: int = 1) -> Scheduler:
    core = Scheduler(topology(gpus), Catalog(world.specs, world.settings), at)
    known = world.core.demand()
    core.handle(replace(known, at=at, away=away))
    core.check()
    return core


def test_thrash_history_is_still_there_after_a_restart() -> None:
    world = alternation()
    core = restarted(world, away=seconds(10))
    at = Instant(world.core.view().at + seconds(10))
    before, after = ({m.model: m for m in view.models} for view in (world.core.view(at), core.view()))
    for name, other in ((A, B), (B, A)):
        assert (after[name].verdict, after[name].partner) == (Verdict.THRASHING, other)
        assert [victim for victim, _ in after[name].evicts] == [other]
        assert after[name].hourly.loads == before[name].hourly.loads
        assert after[name].load_fraction == pytest.approx(before[name].load_fraction)
        assert after[name].hourly == pytest.approx(before[name].hourly)
        assert after[name].inter_arrival == pytest.approx(before[name].inter_arrival)
        assert after[name].load_ratio / after[name].load_estimate == pytest.approx(
            before[name].load_ratio / before[name].load_estimate
        )
    assert core.view().load_fraction == pytest.approx(world.core.view(at).load_fraction)
    assert after[A].totals.own_gpu_seconds == 0  # totals count from the start, like every counter


def test_a_pool_that_thrashed_before_a_restart_is_called_so_at_once_and_well_again_after_a_long_time() -> None:
    world = World([spec("a", load=6), spec("b", load=6)], gpus=1, protect=seconds(0))
    for number in range(60):
        world.request("ab"[number % 2], at=number * 20.0)
    world.run(1200)
    assert world.core.view().load_verdict is Verdict.THRASHING
    assert restarted(world, away=seconds(10)).view().load_verdict is Verdict.THRASHING
    assert restarted(world, away=seconds(3 * 3600)).view().load_verdict is Verdict.OK


def test_a_verdict_of_an_earlier_run_is_taken_back_by_the_timer() -> None:
    core = restarted(alternation(), away=seconds(10))
    for _ in range(60):
        wake = core.next_wakeup
        if wake is None:
            break
        core.handle(Tick(wake))
    assert core.next_wakeup is None
    assert {m.verdict for m in core.view().models} == {Verdict.OK}


def test_time_away_counts_as_silence() -> None:
    world = alternation()
    soon, late = (restarted(world, away=seconds(away)).view() for away in (10, 3 * 3600))
    for there, gone in zip(soon.models, late.models, strict=True):
        assert gone.load_ratio < 0.02 * there.load_ratio
        assert gone.hourly.loads == 0
    assert late.load_fraction < 0.02 * soon.load_fraction


def test_what_came_before_the_record_was_told_is_kept() -> None:
    world = alternation()
    at = Instant(seconds(5000))
    core = Scheduler(topology(1), Catalog(world.specs, world.settings), at)
    core.handle(RequestArrived(at, RequestId(1), A))
    core.handle(replace(world.core.demand(), at=at, away=seconds(1)))
    assert core.view().models[0].totals.requests == 1
    assert core.demand().models[A].arrivals == 7
    core.check()


def test_a_model_that_is_configured_no_more_is_passed_over() -> None:
    world = alternation()
    known = world.core.demand()
    del world.specs[B]
    core = Scheduler(topology(1), Catalog(world.specs, world.settings), Instant(0))
    core.handle(replace(known, at=Instant(0)))
    assert [m.model for m in core.view().models] == [A]
    assert core.view().models[0].evicts == ()


def test_only_what_was_ever_asked_for_is_on_record() -> None:
    world = World([spec("a"), spec("b")])
    assert world.core.demand() == DemandKnown(Instant(0), {}, Duration(0), 0.0)
    world.request("a", at=1)
    world.run(200)
    assert list(world.core.demand().models) == [A]


def test_a_pin_of_on_thrash_comes_back_where_it_is_still_allowed() -> None:
    settings = {"on_thrash": OnThrash.PIN, "max_pinned_gpus": 1, "protect": seconds(0)}
    world = World([spec(name, load=0.2) for name in "abc"], gpus=2, **settings)
    for number in range(100):
        world.request("abc"[number % 3], at=number * 2.0)
    world.run(250)
    (pinned,) = [m.model for m in world.core.view().models if m.pinned]
    core = restarted(world, away=seconds(5), gpus=2)
    assert [(m.model, m.pinned_by) for m in core.view().models if m.pinned] == [(pinned, PinnedBy.ON_THRASH)]
    world.settings = replace(world.settings, on_thrash=OnThrash.REPORT)
    assert not any(m.pinned for m in restarted(world, away=seconds(5), gpus=2).view().models)


def test_a_model_without_a_verdict_gets_none_and_the_word_of_this_run_counts_over_that_of_the_last() -> None:
    quiet = World([spec("a")])
    quiet.request("a", at=1)
    quiet.run(100)
    assert restarted(quiet, away=seconds(1)).next_wakeup is None
    world = alternation()
    again = replace(world.core.demand(), at=world.now)
    marginal = {name: replace(known, verdict=Verdict.MARGINAL) for name, known in again.models.items()}
    world.post(replace(again, models=marginal))
    assert {m.verdict for m in world.core.view().models} == {Verdict.THRASHING}
