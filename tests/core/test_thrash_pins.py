"""on_thrash: pin, as the core decides it: within its limits, never silently, and an operator's word wins."""

from swapd.core import events as ev
from swapd.core.catalog import Mode, OnThrash
from swapd.core.commands import Answer, PromotionAdvised, ThrashPinChanged
from swapd.core.ids import ModelName, seconds
from swapd.core.reasons import Move, PinnedBy, Rejection, ThrashPin
from tests.core.driver import World, spec

A, B, C = ModelName("a"), ModelName("b"), ModelName("c")


def three_in_two_places(**settings: object) -> World:
    """Three models take turns in two places; every request needs a load."""
    settings = {"on_thrash": OnThrash.PIN, "max_pinned_gpus": 1, "protect": seconds(0), **settings}
    world = World([spec(name, load=0.2) for name in "abc"], gpus=2, **settings)
    for engine in world.engines.values():
        engine.unload = 0.1
    return world


def turns(world: World, until: int, *, begin: int = 0, step: float = 2.0) -> World:
    for number in range(int((until - begin) / step)):
        world.request("abc"[number % 3], at=begin + number * step)
    return world


def pins(world: World) -> list[tuple[str, ThrashPin]]:
    return [(str(note.model), note.action) for note in world.of(ThrashPinChanged)]


def test_by_default_nothing_is_pinned_only_said() -> None:
    world = turns(three_in_two_places(on_thrash=OnThrash.REPORT), 200).run(200)
    assert pins(world) == []
    advised = world.of(PromotionAdvised)
    assert sorted(note.after for note in advised) == [Move.DEDICATED, Move.DEDICATED, Move.PIN]
    assert "thrashes" in advised[0].detail


def test_one_thrashing_model_is_pinned_and_the_others_are_told_why_not() -> None:
    world = turns(three_in_two_places(), 200)
    until = next(second for second in range(200) if world.run(second).of(ThrashPinChanged))
    assert until < 90
    assert world.of(ThrashPinChanged)[0].detail in [line for _, line in world.core.view().story]
    world.run(200)
    pinned, *refused = pins(world)
    assert pinned[1] is ThrashPin.PINNED
    assert [action for _, action in refused] == [ThrashPin.REFUSED] * 2
    name = pinned[0]
    assert world.model(name).pinned_by is PinnedBy.ON_THRASH
    assert name in world.residents()
    details = [note.detail for note in world.of(ThrashPinChanged)]
    assert details[0].endswith(f"pins take 1 of at most 1 GPU, swapd unpin {name} takes it back")
    assert "max_pinned_gpus is 1" in details[1]
    loads = world.loads(name)
    turns(world, 400, begin=202)
    world.run(400)
    assert world.loads(name) == loads


def test_the_pin_is_lifted_when_its_demand_is_gone_but_not_within_the_first_hour() -> None:
    world = turns(three_in_two_places(), 200).run(3000)
    assert [action for _, action in pins(world)].count(ThrashPin.LIFTED) == 0
    world.run(10_000)
    (name, _), *_, (lifted, action) = pins(world)
    assert (lifted, action) == (name, ThrashPin.LIFTED)
    assert world.model(name).pinned_by is None
    assert world.core.next_wakeup is None


def test_an_operators_unpin_wins_for_good() -> None:
    world = turns(three_in_two_places(), 600).run(200)
    name = ModelName(pins(world)[0][0])
    order = world.order(ev.PinOrdered, 201, model=name, pinned=False)
    world.run(600)
    assert world.answers[order][1].ok
    assert (str(name), ThrashPin.PINNED) not in pins(world)[1:]
    assert world.model(name).pinned_by is None


def test_an_operators_pin_is_refused_beyond_the_limit_and_told_what_to_unpin() -> None:
    world = turns(three_in_two_places(), 200).run(200)
    name = pins(world)[0][0]
    other = ModelName("b" if name == "a" else "a")
    order = world.order(ev.PinOrdered, 201, model=other, pinned=True)
    world.run(202)
    answer = world.answers[order][1]
    assert isinstance(answer, Answer)
    assert answer.reason is Rejection.ALL_PINNED
    assert answer.detail.endswith(f"unpin what on_thrash has pinned first: {name}")


def test_an_operator_who_pins_the_same_model_makes_the_pin_his_own() -> None:
    world = turns(three_in_two_places(), 200).run(200)
    name = pins(world)[0][0]
    world.order(ev.PinOrdered, 201, model=ModelName(name), pinned=True)
    world.run(20_000)
    assert world.model(name).pinned_by is PinnedBy.OPERATOR
    assert ThrashPin.LIFTED not in [action for _, action in pins(world)]


def test_a_pin_that_would_leave_another_model_without_room_is_not_made() -> None:
    world = World(
        [spec("a", load=0.2), spec("b", 2, load=0.2)],
        gpus=2,
        on_thrash=OnThrash.PIN,
        max_pinned_gpus=2,
        protect=seconds(0),
    )
    for number in range(100):
        world.request("ab"[number % 2], at=number * 5.0)
    world.run(500)
    refused = {note.model: note.detail for note in world.of(ThrashPinChanged)}
    assert refused == {
        "a": "a thrashes but is not pinned: that would leave no room for b",
        "b": "b thrashes but is not pinned: that would leave no room for a",
    }


def test_without_a_limit_nothing_is_pinned() -> None:
    world = turns(three_in_two_places(max_pinned_gpus=None), 200).run(200)
    assert {action for _, action in pins(world)} == {ThrashPin.REFUSED}
    assert world.of(ThrashPinChanged)[0].detail.endswith("max_pinned_gpus is not set")


def test_in_manual_mode_nobody_is_pinned_by_the_node() -> None:
    world = turns(three_in_two_places(), 100).run(59)
    world.reconfigure(at=59.5, mode=Mode.MANUAL)
    world.run(300)
    assert pins(world) == []


def test_settings_that_forbid_a_pin_lift_it_at_once() -> None:
    world = turns(three_in_two_places(), 200).run(200)
    name = pins(world)[0][0]
    world.reconfigure(at=201, on_thrash=OnThrash.REPORT)
    world.run(201)
    assert pins(world)[-1] == (name, ThrashPin.LIFTED)
    assert world.of(ThrashPinChanged)[-1].detail == f"{name} is pinned no more: on_thrash is report now"


def test_a_lowered_limit_lifts_what_goes_beyond_it() -> None:
    world = turns(three_in_two_places(), 200).run(200)
    name = pins(world)[0][0]
    world.reconfigure(at=201, max_pinned_gpus=0)
    world.reconfigure(at=202, max_pinned_gpus=None)
    world.run(202)
    assert pins(world)[-1] == (name, ThrashPin.LIFTED)
    assert world.of(ThrashPinChanged)[-1].detail == f"{name} is pinned no more: max_pinned_gpus is 0 now"


def test_a_model_that_leaves_the_configuration_takes_its_pin_along() -> None:
    world = turns(three_in_two_places(), 200).run(205)
    name = pins(world)[0][0]
    world.reconfigure(at=210, remove=[name])
    world.run(300)
    assert name not in world.core._node.pins


def test_a_limit_that_still_allows_the_pin_keeps_it() -> None:
    world = turns(three_in_two_places(), 200).run(200)
    name = pins(world)[0][0]
    world.reconfigure(at=201, max_pinned_gpus=2)
    world.run(202)
    assert world.model(name).pinned_by is PinnedBy.ON_THRASH
