"""How loads end: shared outcomes, cool-downs, deadlines, breakdowns."""

import pytest

from swapd.core import events as ev
from swapd.core.catalog import Source
from swapd.core.commands import CoolingDown, Kill, LoadFinished, Reject, Start, Stop
from swapd.core.ids import InstanceId, ModelName, seconds
from swapd.core.reasons import LoadFailure, LoadResult, Rejection, Stage, UnloadCause
from tests.core.driver import World, spec


def failing(load: float = 1) -> World:
    world = World([spec("a", load=load)])
    world.engines["a"].fails = LoadFailure.EXITED
    return world


def test_everybody_who_waits_for_a_load_shares_its_failure() -> None:
    world = failing()
    asked = [world.request("a", at=at) for at in (0, 0.1, 0.2)]
    order = world.order(ev.LoadOrdered, 0.3, model=ModelName("a"))
    world.run(2)
    rejects = {(r[0], r[1].reason, r[1].detail, r[1].retry_after) for r in (a.rejected for a in asked) if r}
    assert rejects == {(1, Rejection.LOAD_FAILED, "a says: boom", seconds(10))}
    assert world.answers[order][1].reason is Rejection.LOAD_FAILED
    assert world.answers[order][1].detail == "a says: boom"


def test_an_engine_that_dies_before_it_was_ready_gives_its_memory_back() -> None:
    world = World([spec("a", load=10, gib=5)])
    world.request("a", at=0)
    world.fact(ev.InstanceExited, "a", 3, status=1)
    world.run(4)
    gpu = world.core.view().gpus[0]
    assert gpu.reserved_bytes == 5 << 30
    world.run(10)
    assert [g.reserved_bytes for g in world.core.view().gpus] == [0] * 8
    assert world.of(Reject)[0].detail == "the engine of a exited with status 1"
    assert world.of(LoadFinished)[0].failure is LoadFailure.EXITED


def test_a_model_that_always_dies_cools_down_longer_each_time_up_to_five_minutes() -> None:
    world = failing()
    for at in range(0, 2000, 2):
        world.request("a", at=at)
    world.run(2100)
    waits = [(note.until - seconds(at)) / seconds(1) for at, note in world.log if isinstance(note, CoolingDown)]
    assert waits[:8] == [10, 20, 40, 80, 160, 300, 300, 300]
    reasons = {c.reason for c in world.of(Reject)}
    assert reasons == {Rejection.LOAD_FAILED, Rejection.COOLING_DOWN}
    cooling = next(c for c in world.of(Reject) if c.reason is Rejection.COOLING_DOWN)
    assert (cooling.retry_after, cooling.permanent) == (seconds(9), False)
    assert "a says: boom" in cooling.detail
    assert not world.core._node.instances


def test_success_clears_the_count_of_failures() -> None:
    world = failing()
    world.request("a", at=0)
    world.run(5)
    world.engines["a"].fails = None
    world.request("a", at=20)
    world.run(30)
    assert (world.model("a").consecutive_failures, world.model("a").cooling_until) == (0, None)
    assert world.model("a").last_error == "a says: boom"


def test_an_operators_order_and_a_changed_configuration_clear_a_cool_down() -> None:
    world = failing()
    world.request("a", at=0)
    world.run(2)
    assert world.model("a").cooling_until == seconds(11)
    world.engines["a"].fails = None
    world.order(ev.LoadOrdered, 2, model=ModelName("a"))
    world.run(5)
    assert world.residents() == ["a"]

    world = failing()
    world.request("a", at=0)
    world.run(4)
    world.engines["a"].fails = None
    world.reconfigure(spec("a", load=1, revision="2"), at=5)
    served = world.request("a", at=6)
    world.run(9)
    assert served.waited == 1


def test_a_failure_that_cannot_be_cured_by_trying_says_so() -> None:
    world = World([spec("a", load=10)])
    first = world.request("a", at=0)
    world.fact(ev.LoadFailed, "a", 1, failure=LoadFailure.SPAWN, detail="no such file: serve", permanent=True)
    second = world.request("a", at=2)
    world.run(5)
    answers = [(r[1].reason, r[1].permanent, r[1].retry_after) for r in (first.rejected, second.rejected) if r]
    assert answers == [(Rejection.LOAD_FAILED, True, None), (Rejection.COOLING_DOWN, True, None)]
    assert world.model("a").cooling_until == seconds(301)


def test_progress_keeps_a_slow_load_alive_to_its_full_timeout() -> None:
    world = World([spec("a", load=500, load_timeout=seconds(600), load_stall=seconds(30), max_wait=seconds(900))])
    world.engines["a"].progress = 5
    asked = world.request("a", at=0)
    world.run(700)
    assert asked.waited == 500


def test_a_silent_load_ends_after_the_stall_window() -> None:
    world = World([spec("a", load=10, load_stall=seconds(30))])
    world.engines["a"].hangs = True
    asked = world.request("a", at=0)
    world.fact(ev.LoadProgressed, "a", 7)
    world.run(100)
    assert asked.rejected is not None
    assert asked.rejected[0] == 37
    assert asked.rejected[1].detail == "no progress in log or I/O for the stall window of 30 s"
    assert world.of(LoadFinished)[0].failure is LoadFailure.STALLED


def test_a_load_that_is_cut_short_names_the_limit_that_did_it() -> None:
    world = World([spec("a", load=10, load_timeout=seconds(50), max_wait=seconds(900))])
    world.engines["a"].hangs = True
    for at in range(0, 50, 10):
        world.fact(ev.LoadProgressed, "a", at + 1)
    asked = world.request("a", at=0)
    world.run(100)
    assert asked.rejected is not None
    assert asked.rejected[1].detail == "not ready within the load timeout of 50 s"
    assert world.of(LoadFinished)[0].failure is LoadFailure.DEADLINE


def test_heavier_weights_have_a_later_deadline() -> None:
    models = [
        spec("light", load=10, load_timeout=seconds(50), max_wait=seconds(900)),
        spec("heavy", load=10, load_timeout=seconds(500), load_stall=seconds(500), max_wait=seconds(900)),
    ]
    world = World(models)
    for name in ("light", "heavy"):
        world.engines[name].hangs = True
        world.request(name, at=0)
    world.run(800)
    assert [(at, c.model) for at, c in world.log if isinstance(c, LoadFinished)] == [(50, "light"), (500, "heavy")]


def test_a_ready_engine_that_does_not_answer_is_stopped_and_loaded_again_for_those_who_wait() -> None:
    world = World([spec("a", load=10, concurrency=1)], gpus=1)
    stuck = world.request("a", at=0, service=None)
    waits = world.request("a", at=20, service=1)
    world.fact(ev.InstanceUnhealthy, "a", 30, detail="no answer from /health for 30 s")
    world.leave(stuck, at=31)
    world.run(100)
    assert [c.cause for c in world.of(Stop)] == [UnloadCause.UNRESPONSIVE]
    assert waits.granted[0][0] == 30 + 3 + 10
    assert world.model("a").last_error == "no answer from /health for 30 s"


@pytest.mark.parametrize("kind", [ev.InstanceExited, ev.InstanceUnhealthy])
def test_a_draining_engine_that_breaks_down_is_gone_as_well(kind: type) -> None:
    world = World([spec("a", load=10)])
    world.request("a", at=0, service=50)
    order = world.order(ev.UnloadOrdered, 20, model=ModelName("a"))
    world.fact(kind, "a", 25, **({"status": -9} if kind is ev.InstanceExited else {}))
    world.run(100)
    assert world.answers[order] == (28, world.answers[order][1])
    assert world.answers[order][1].ok


def test_a_crash_with_waiters_reloads_at_once_but_a_crash_loop_cools_down() -> None:
    world = World([spec("a", load=2, concurrency=1)], gpus=1)
    for at in range(0, 600, 1):
        world.request("a", at=at, service=0.5)
    for at in (10, 30, 50, 85, 120):
        world.fact(ev.InstanceExited, "a", at + 0.2, status=-11, detail="segmentation fault")
    world.run(300)
    starts = [at for at, c in world.log if isinstance(c, Start)]
    assert starts[:3] == [0, 13.2, 33.2]
    notes = [
        (at, note.failures, (note.until - seconds(at)) / seconds(1))
        for at, note in world.log
        if isinstance(note, CoolingDown)
    ]
    assert notes == [(50.2, 1, 10), (85.2, 2, 20), (120.2, 3, 40)]
    assert "broke down 3 times in a row: segmentation fault" in world.of(Reject)[0].detail


def test_the_swap_is_measured_as_a_whole_and_the_load_by_itself() -> None:
    world = World([spec("a", load=10), spec("b", load=40)], gpus=1)
    world.request("a", at=0, service=150)
    world.request("b", at=20)
    world.run(400)
    note = world.of(LoadFinished, "b")[0]
    assert (note.result, note.source, note.victims) == (LoadResult.READY, Source.CACHE, ("a",))
    assert (note.load_time, note.duration) == (seconds(40), seconds(20 + 3 + 40))
    assert note.stages == {
        Stage.DRAIN: seconds(20),
        Stage.STOP: seconds(3),
        Stage.RELEASE: 0,
        Stage.SPAWN: seconds(10),
        Stage.LOAD: seconds(20),
        Stage.WARMUP: seconds(10),
    }


def test_the_expected_load_time_is_the_median_of_the_last_five() -> None:
    world = World([spec("a", load=10)])
    known = {
        (ModelName("a"), Source.CACHE): tuple(seconds(s) for s in (99, 20, 21, 30, 22, 23)),
        (ModelName("a"), Source.REMOTE): (seconds(500),),
        (ModelName("gone"), Source.CACHE): (seconds(1),),
    }
    world.plan(0, lambda: ev.LoadTimesKnown(world.now, known))
    world.run(1)
    assert world.model("a").load_estimate == seconds(22)


def test_stale_facts_about_instances_are_counted_and_change_nothing() -> None:
    world = World([spec("a", load=10)])
    world.request("a", at=0)
    world.run(20)
    ready, gone = world.instance("a"), InstanceId(77)
    before = world.core.view().instances
    facts = [
        ev.StageEntered(world.now, ready, Stage.LOAD),
        ev.LoadProgressed(world.now, ready),
        ev.InstanceReady(world.now, ready),
        ev.LoadFailed(world.now, ready, LoadFailure.EXITED, ""),
        ev.StopSignalled(world.now, ready),
        ev.ProcessesGone(world.now, ready),
        ev.EngineGone(world.now, ready),
        ev.InstanceExited(world.now, gone, None),
        ev.InstanceHealthy(world.now, gone),
        ev.InstanceUnhealthy(world.now, gone),
    ]
    for fact in facts:
        world.post(fact)
    assert world.core.view().instances == before
    assert world.core.view().stale_facts == len(facts)


def test_an_exit_of_unknown_status_is_told_as_such() -> None:
    world = World([spec("a", load=10)])
    world.request("a", at=0)
    world.fact(ev.InstanceExited, "a", 20, status=None)
    world.run(60)
    assert world.model("a").last_error == "the engine of a exited with status unknown"
    assert world.of(Kill) == []
