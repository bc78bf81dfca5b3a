"""What a refused client is told: what stands in the way, when to come back, and what would help."""

import pytest

from swapd.core.events import LoadOrdered, UpstreamFailed
from swapd.core.ids import SECOND, InstanceId, ModelName, RequestId, seconds
from swapd.core.reasons import LoadFailure, Rejection
from swapd.core.sentences import ADVICE, number, spell
from tests.core.driver import Asked, World, spec


def told(asked: Asked) -> tuple[Rejection, str, float]:
    """Return reason, sentence, and seconds after which to come back."""
    assert asked.rejected is not None
    reject = asked.rejected[1]
    assert reject.retry_after is not None
    return reject.reason, reject.detail, reject.retry_after / SECOND


@pytest.mark.parametrize(("expected", "again"), [(40, 10), (8, 2), (1, 1)])
def test_a_load_that_takes_longer_than_expected_is_said_to_and_nobody_is_told_to_come_back_at_once(
    expected: float, again: float
) -> None:
    world = World([spec("a", load=expected, max_wait=seconds(50))])
    world.engines["a"].load = 300
    asked = world.request("a", at=0)
    world.run(60)
    sentence = f"waited 50 s for a; its load is taking longer than the expected {expected} s"
    assert told(asked) == (Rejection.WAIT_TIMEOUT, sentence, again)


def test_who_asks_for_a_load_that_is_nearly_done_is_not_held_to_the_share() -> None:
    world = World([spec("a", load=40, max_wait=seconds(5))])
    world.engines["a"].load = 42
    world.order(LoadOrdered, 0, model=ModelName("a"))
    asked = [world.request("a", at=at) for at in (36, 41)]
    world.run(50)
    assert told(asked[0])[0] is Rejection.WAIT_TIMEOUT
    assert asked[1].waited == 1


def test_who_waited_for_a_load_in_good_time_is_told_the_rest_of_it() -> None:
    world = World([spec("a", load=20), spec("b", load=40, max_wait=seconds(63))], gpus=1)
    world.engines["a"].unload = 20
    world.request("a", at=0, service=9)
    b = world.request("b", at=5)
    world.run(300)
    assert told(b) == (Rejection.WAIT_TIMEOUT, "waited 63 s for b; it is expected to take 21 s more", 21)


def test_a_busy_slot_is_not_called_a_load() -> None:
    world = World([spec("a", load=1, concurrency=2, max_wait=seconds(10))])
    for _ in range(2):
        world.request("a", at=0, service=8)
    world.run(20)
    for at in (20, 21):
        world.request("a", at=at, service=100)
    waits = [world.request("a", at=22) for _ in range(3)]
    world.run(33)
    sentence = (
        "waited 10 s for a; it is resident, but all 2 slots of its engine are busy, "
        "and its requests are taking longer than the expected 8 s"
    )
    assert told(waits[0]) == (Rejection.WAIT_TIMEOUT, sentence, 16)


def test_a_slot_of_a_model_of_which_nothing_is_known_yet_is_not_expected_at_once() -> None:
    world = World([spec("a", load=1, concurrency=1, max_wait=seconds(80))])
    world.request("a", at=0, service=None)
    waits = world.request("a", at=1)
    world.run(100)
    sentence = (
        "waited 80 s for a; it is resident, but the only slot of its engine is busy, "
        "and none of its requests has ended yet"
    )
    assert told(waits) == (Rejection.WAIT_TIMEOUT, sentence, 20)


def test_a_slot_that_is_expected_in_time_is_told_with_its_time() -> None:
    world = World([spec("a", load=1, concurrency=1, max_wait=seconds(10))])
    world.request("a", at=0, service=30)
    for _ in range(2):
        world.request("a", at=50, service=9.5)
    world.run(50)
    waits = world.request("a", at=51)
    world.run(70)
    reason, sentence, again = told(waits)
    assert reason is Rejection.WAIT_TIMEOUT
    assert sentence.endswith("the only slot of its engine is busy, and one is expected within 52 s")
    assert round(again) == 52


def test_an_engine_that_is_being_checked_is_said_to_be() -> None:
    world = World([spec("a", load=1, concurrency=2, max_wait=seconds(10))])
    first = world.request("a", at=0, service=None)
    world.plan(5, lambda: UpstreamFailed(world.now, RequestId(first.number), InstanceId(1)))
    late = world.request("a", at=6)
    world.run(20)
    assert told(late)[1] == "waited 10 s for a; it is resident, but its engine is being checked after a broken answer"


def test_who_waited_for_room_learns_what_would_help() -> None:
    world = World([spec("a", load=10), spec("b", load=10, max_wait=seconds(50))], gpus=1)
    world.request("a", at=0, service=1000)
    b = world.request("b", at=20)
    world.run(200)
    sentence = "waited 50 s for b; there is no room for it yet, and it is expected to take 13 s more"
    assert told(b) == (Rejection.WAIT_TIMEOUT, f"{sentence}; {ADVICE}", 13)


def test_who_comes_too_early_for_its_promise_learns_what_would_help() -> None:
    world = World([spec("a", load=100, max_wait=seconds(60))])
    asked = world.request("a", at=0)
    world.run(1)
    sentence = f"a is expected in 100 s, later than its limit of 60 s; {ADVICE}"
    assert told(asked) == (Rejection.ETA_EXCEEDS_MAX_WAIT, sentence, 100)


@pytest.mark.parametrize(("most", "waiting"), [(1, "1 request waits"), (2, "2 requests wait")])
def test_a_full_queue_learns_what_would_help_and_an_overdue_load_does_not_call_everybody_back(
    most: int, waiting: str
) -> None:
    world = World([spec("a", load=40, max_queue=most)])
    world.engines["a"].load = 300
    for _ in range(most):
        world.request("a", at=0)
    excess = world.request("a", at=60)
    world.run(61)
    assert told(excess) == (Rejection.QUEUE_FULL, f"{waiting} for a already; {ADVICE}", 10)


@pytest.mark.parametrize(("failures", "times"), [(1, "once"), (2, "2 times in a row")])
def test_failures_in_a_row_are_counted_from_two(failures: int, times: str) -> None:
    world = World([spec("a", load=1)])
    world.engines["a"].fails = LoadFailure.WARMUP
    for turn in range(failures):
        world.request("a", at=turn * 100.0)
    late = world.request("a", at=(failures - 1) * 100.0 + 2)
    world.run(failures * 100)
    assert told(late)[:2] == (Rejection.COOLING_DOWN, f"a failed {times}; the last time: a says: boom")


def test_things_are_counted_in_singular_and_plural() -> None:
    assert [number(count, "request") for count in (0, 1, 2)] == ["0 requests", "1 request", "2 requests"]


@pytest.mark.parametrize(
    ("given", "shown"), [(0, "0.1 s"), (0.25, "0.2 s"), (1, "1 s"), (9.94, "9.9 s"), (9.96, "10 s"), (61.4, "61 s")]
)
def test_durations_are_spelled_in_seconds(given: float, shown: str) -> None:
    assert spell(seconds(given)) == shown
