"""The pump applies one fact at a time, in order, and keeps one timer."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from swapd.agent.pump import Pump
from swapd.agent.recorder import FlightRecorder
from swapd.core.commands import Command, Grant, StaleFact
from swapd.core.events import Event, RequestArrived, RequestEnded, Tick
from swapd.core.ids import Duration, InstanceId, Instant, ModelName, RequestId
from swapd.core.reasons import Outcome


class ScriptedCore:
    """Answers each event with what the test says and remembers the events."""

    def __init__(self, answer: Callable[[Event], tuple[Command, ...]] = lambda _: ()) -> None:
        self.seen: list[Event] = []
        self.next_wakeup: Instant | None = None
        self._answer = answer
        self.quiet = False

    def handle(self, event: Event) -> tuple[Command, ...]:
        self.seen.append(event)
        return self._answer(event)

    def admit(self, event: RequestArrived) -> Grant | None:
        if event.request != ADMITTED:
            return None
        self.seen.append(event)
        return GRANT

    def end(self, event: RequestEnded) -> bool:
        if event.request != ADMITTED or not self.quiet:
            return False
        self.seen.append(event)
        return True


ADMITTED = RequestId(1)
GRANT = Grant(ADMITTED, InstanceId(1), ModelName("m"), cold_start=False, waited=Duration(0), stages={})


def _arrived(number: int) -> RequestArrived:
    return RequestArrived(at=Instant(number), request=RequestId(number), model=ModelName("m"))


def _ended(number: int) -> RequestEnded:
    return RequestEnded(at=Instant(number), request=RequestId(number), outcome=Outcome.SERVED)


def _pump(core: ScriptedCore, execute: Callable[[Command], None], broken: Callable[[BaseException], None]) -> Pump:
    return Pump(core, now=lambda: Instant(0), execute=execute, recorder=FlightRecorder(), broken=broken)  # type: ignore[arg-type]


async def test_a_fact_reported_during_an_order_waits_until_all_orders_of_its_predecessor_are_out() -> None:
    done: list[str] = []
    orders = {1: (StaleFact("first"), StaleFact("second")), 2: (StaleFact("third"),)}
    core = ScriptedCore(lambda event: orders[int(event.at)])
    pump: Pump

    def execute(command: Command) -> None:
        assert isinstance(command, StaleFact)
        done.append(command.event)
        if command.event == "first":
            pump.post(_ended(2))

    pump = _pump(core, execute, lambda error: None)
    pump.post(_ended(1))
    assert done == ["first", "second", "third"]
    assert [int(event.at) for event in core.seen] == [1, 2]


async def test_an_order_that_fails_does_not_take_the_others_with_it() -> None:
    done: list[str] = []
    core = ScriptedCore(lambda _: (StaleFact("first"), StaleFact("second")))

    def execute(command: Command) -> None:
        assert isinstance(command, StaleFact)
        if command.event == "first":
            raise OSError("Too many open files")
        done.append(command.event)

    errors: list[BaseException] = []
    pump = _pump(core, execute, errors.append)
    with structlog.testing.capture_logs() as lines:
        pump.post(_ended(1))
    assert done == ["second"]
    assert errors == []
    assert [(line["event"], line["order"]) for line in lines] == [("order_failed", "StaleFact")]


async def test_a_core_that_refuses_to_go_on_is_reported_once_and_gets_no_further_fact() -> None:
    def refuse(event: Event) -> tuple[Command, ...]:
        raise AssertionError(f"law broken at {event.at}")

    errors: list[BaseException] = []
    core = ScriptedCore(refuse)
    pump = _pump(core, lambda command: None, errors.append)
    pump.post(_ended(1))
    pump.post(_ended(2))
    assert [str(error) for error in errors] == ["law broken at 1"]
    assert len(core.seen) == 1


async def test_the_timer_posts_a_tick_at_the_wakeup_the_core_asks_for() -> None:
    ticked = asyncio.Event()

    def answer(event: Event) -> tuple[Command, ...]:
        if isinstance(event, Tick):
            core.next_wakeup = None
            ticked.set()
        return ()

    core = ScriptedCore(answer)
    pump = _pump(core, lambda command: None, lambda error: None)
    core.next_wakeup = Instant(1_000_000)
    pump.post(_ended(1))
    async with asyncio.timeout(60):
        await ticked.wait()
    assert [type(event) for event in core.seen] == [RequestEnded, Tick]


async def test_a_wakeup_that_moves_replaces_the_timer_instead_of_adding_one() -> None:
    core = ScriptedCore()
    pump = _pump(core, lambda command: None, lambda error: None)
    timers = []
    for wakeup in (10**12, 10**11, 10**11, None):
        core.next_wakeup = None if wakeup is None else Instant(wakeup)
        pump.post(_ended(1))
        timers.append(pump._timer)
    first, second, third, last = timers
    assert first is not None
    assert first.cancelled()
    assert second is third
    assert second is not None
    assert second.cancelled()
    assert last is None
    pump.close()


async def test_a_closed_pump_drops_facts() -> None:
    core = ScriptedCore()
    pump = _pump(core, lambda command: None, lambda error: None)
    pump.close()
    pump.post(_ended(1))
    assert core.seen == []


async def test_a_grant_at_once_is_returned_and_not_executed_and_every_arrival_is_recorded_once(tmp_path: Path) -> None:
    executed: list[Command] = []
    core, recorder = ScriptedCore(lambda _: (StaleFact("queued"),)), FlightRecorder()
    pump = Pump(core, now=lambda: Instant(0), execute=executed.append, recorder=recorder, broken=lambda _: None)  # type: ignore[arg-type]
    assert pump.admit(_arrived(1)) is GRANT
    assert executed == []
    assert pump.admit(_arrived(2)) is None
    assert executed == [StaleFact("queued")]
    assert core.seen == [_arrived(1), _arrived(2)]
    assert recorder.dump(tmp_path / "facts") == 2


async def test_an_arrival_during_an_order_waits_like_any_fact() -> None:
    core = ScriptedCore(lambda event: () if isinstance(event, RequestArrived) else (StaleFact("first"),))
    answers: list[Grant | None] = []
    pump = _pump(core, lambda _: answers.append(pump.admit(_arrived(1))), lambda error: None)
    pump.post(_ended(1))
    assert answers == [None]
    assert core.seen == [_ended(1), _arrived(1)]


async def test_an_end_of_which_nothing_follows_is_recorded_and_not_handled(tmp_path: Path) -> None:
    core, recorder = ScriptedCore(lambda _: (StaleFact("handled"),)), FlightRecorder()
    core.quiet = True
    executed: list[Command] = []
    pump = Pump(core, now=lambda: Instant(0), execute=executed.append, recorder=recorder, broken=lambda _: None)  # type: ignore[arg-type]
    pump.post(_ended(1))
    assert (core.seen, executed) == ([_ended(1)], [])
    pump.post(_ended(2))
    assert (core.seen, executed) == ([_ended(1), _ended(2)], [StaleFact("handled")])
    assert recorder.dump(tmp_path / "facts") == 2


async def test_a_law_that_breaks_at_the_end_of_a_request_stops_the_pump() -> None:
    def broken(event: RequestEnded) -> bool:
        raise AssertionError(event)

    core, errors = ScriptedCore(), list[BaseException]()
    core.end = broken  # type: ignore[method-assign]
    pump = _pump(core, lambda command: None, errors.append)
    pump.post(_ended(1))
    pump.post(_ended(2))
    assert [type(error) for error in errors] == [AssertionError]
    assert core.seen == []
