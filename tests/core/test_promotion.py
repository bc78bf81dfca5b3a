"""Where a model had better be: pinned, on GPUs of its own, or where it is; and in which order that is told."""

from typing import Any

import pytest

from swapd.core import review
from swapd.core.accounts import NO_COSTS, Costs
from swapd.core.commands import PromotionAdvised
from swapd.core.events import WeekKnown
from swapd.core.ids import Bytes, Instant, ModelName, seconds
from swapd.core.promotion import Advice, advice_on_all, ranked
from swapd.core.reasons import Move, PinnedBy, Verdict
from swapd.core.tiers import Tier, Week
from swapd.core.topology import Gpu, NodeTopology
from swapd.core.view import ModelView, NodeView
from tests.core.driver import World, spec
from tests.fakes.node_views import GIB, model_view, node_view

HOURLY = Costs(requests=60, loads=60, own_gpu_seconds=2400, charged_gpu_seconds=600, waited_seconds=1800)


def node(*models: ModelView, gpus: int = 8, **changes: Any) -> NodeView:
    topology = NodeTopology(tuple(Gpu(n, f"virtual-{n}", Bytes(GIB)) for n in range(gpus)))
    return node_view(*models, topology=topology, **changes)


def thrashing(name: str = "t", **changes: Any) -> ModelView:
    return model_view(name, **{"verdict": Verdict.THRASHING, "hourly": HOURLY, "totals": HOURLY, **changes})


def week(tier: Tier, per_hour: float = 9_500, *, provisional: bool = False, costs: Costs = NO_COSTS) -> Week:
    return Week(tier, provisional, 168, per_hour, 2 * per_hour, share=0.5, costs=costs)


def report(view: NodeView) -> tuple[Advice, ...]:
    return ranked(advice_on_all(view))


def advice(view: NodeView, name: str = "t") -> tuple[Move, Tier | None, str]:
    found = next(one for one in report(view) if one.model.model == name)
    return found.move, found.tier, found.detail


def test_a_thrashing_model_that_the_node_can_spare_a_gpu_for_is_to_be_pinned() -> None:
    model = thrashing(partner=ModelName("u"), evicts=((ModelName("u"), 600.0),))
    sentence = (
        "t thrashes with u: swapd pin t takes 1 of 8 GPUs and saves up to 3000 GPU-seconds of loading an hour and "
        "30.0 s of waiting per request, and it evicts u no more"
    )
    assert advice(node(model, model_view("u"))) == (Move.PIN, Tier.WARM, sentence)
    (found, _) = report(node(model, model_view("u")))
    assert (found.saves_gpu_seconds, found.saves_wait_s, found.stranded) == (3000, 30, ())


@pytest.mark.parametrize(
    ("others", "changes", "why"),
    [
        (
            [model_view("p", gpus=2, pinned=True)],
            {},
            "the node cannot spare 1 of 8 GPUs (pins take 2, and without max_pinned_gpus no more than 2 may be pinned)",
        ),
        ([], {"max_pinned_gpus": 0}, "the node cannot spare 1 of 8 GPUs (pins take 0, and max_pinned_gpus is 0)"),
        (
            [model_view(name, gpus=8) for name in ("v", "w", "x", "y")],
            {},
            "the node cannot spare 1 of 8 GPUs (no room would be left for v, w, x and 1 more)",
        ),
    ],
    ids=["too many pins", "a limit", "another one needs all"],
)
def test_a_thrashing_model_that_cannot_be_pinned_needs_gpus_of_its_own(
    others: list[ModelView], changes: dict[str, Any], why: str
) -> None:
    move, tier, detail = advice(node(thrashing(), *others, **changes))
    assert (move, tier) == (Move.DEDICATED, Tier.HOT)
    assert detail == (
        f"t thrashes and costs 3000 GPU-seconds of loading an hour: {why}; give it its own GPUs, or add a node"
    )


def test_a_model_larger_than_the_node_is_stranded_by_nobody() -> None:
    assert advice(node(thrashing(), model_view("v", gpus=9)))[0] is Move.PIN


def test_the_hot_tier_belongs_on_gpus_of_its_own_whether_it_thrashes_or_not() -> None:
    expected = "t is in demand with 9500 requests an hour (50% of this node's): give it its own GPUs"
    hot = model_view("t", week=week(Tier.HOT), verdict=Verdict.OK)
    assert advice(node(hot)) == (Move.DEDICATED, Tier.HOT, expected)
    assert advice(node(model_view("t", week=week(Tier.HOT), pinned=True)))[0] is Move.DEDICATED
    assert advice(node(model_view("t", week=week(Tier.HOT, provisional=True))))[0] is Move.STAY
    assert advice(node(model_view("t", week=week(Tier.WARM, 60))))[0] is Move.STAY


def test_a_hot_model_that_thrashes_is_not_said_to_lack_room() -> None:
    model = thrashing(partner=ModelName("u"), week=week(Tier.HOT))
    assert advice(node(model, model_view("u"))) == (
        Move.DEDICATED,
        Tier.HOT,
        (
            "t is in demand with 9500 requests an hour (50% of this node's), thrashes with u and costs "
            "3000 GPU-seconds of loading an hour: give it its own GPUs"
        ),
    )


def test_a_pin_of_on_thrash_is_a_makeshift_that_stays_advised() -> None:
    model = model_view("t", pinned_by=PinnedBy.ON_THRASH, verdict=Verdict.OK, week=week(Tier.COLD, 40))
    move, _, detail = advice(node(model))
    assert move is Move.PIN
    assert detail.startswith("t is pinned because it thrashed (1 of 8 GPUs): confirm it with swapd pin t")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (model_view("t", verdict=Verdict.OK), "swapping t is ok"),
        (model_view("t", verdict=Verdict.UNKNOWN), "swapping t is not judged yet"),
        (thrashing(pinned=True), "t is pinned"),
        (model_view("t", verdict=Verdict.MARGINAL), "t is swapped often; watch it"),
    ],
)
def test_everybody_else_stays_and_saves_nothing(model: ModelView, expected: str) -> None:
    (found,) = report(node(model))
    assert (found.move, found.tier, found.saves_gpu_seconds, found.saves_wait_s) == (Move.STAY, None, 0, 0)
    assert found.detail == expected


def test_the_costliest_comes_first_by_its_week_or_by_what_came_since() -> None:
    models = (
        model_view("a", totals=Costs(own_gpu_seconds=10)),
        model_view("b", week=week(Tier.COLD, costs=Costs(own_gpu_seconds=20, charged_gpu_seconds=5))),
        model_view("c", totals=Costs(charged_gpu_seconds=30)),
        model_view("d"),
        model_view("gone", configured=False, totals=Costs(own_gpu_seconds=99)),
    )
    assert [(one.model.model, one.caused_gpu_seconds) for one in report(node(*models))] == [
        ("c", 30),
        ("b", 25),
        ("a", 10),
        ("d", 0),
    ]


def test_advice_is_told_once_and_taken_back_when_the_demand_is_gone() -> None:
    world = World([spec("a", load=0.2), spec("b", load=0.2)], gpus=1, protect=seconds(0))
    for number in range(60):
        world.request("ab"[number % 2], at=number * 2.0)
    world.run()
    told = [(note.model, note.before, note.after) for note in world.of(PromotionAdvised)]
    assert sorted(told) == [
        ("a", Move.DEDICATED, Move.STAY),
        ("a", Move.STAY, Move.DEDICATED),
        ("b", Move.DEDICATED, Move.STAY),
        ("b", Move.STAY, Move.DEDICATED),
    ]


def test_a_week_that_is_told_shows_in_the_view_and_changes_the_advice_at_once() -> None:
    world = World([spec("a"), spec("b")])
    notes = world.post(WeekKnown(Instant(0), {ModelName("a"): week(Tier.HOT), ModelName("gone"): week(Tier.HOT)}))
    assert [(note.model, note.after) for note in notes if isinstance(note, PromotionAdvised)] == [("a", Move.DEDICATED)]
    assert world.model("a").week == week(Tier.HOT)
    world.post(WeekKnown(Instant(0), {}))
    assert world.model("a").week is None
    assert world.of(PromotionAdvised)[-1].after is Move.STAY


def test_waits_for_loads_are_charged_to_the_model_that_had_to_be_loaded() -> None:
    world = World([spec("a", load=40)], gpus=1)
    world.request("a", at=0)
    world.request("a", at=10)
    world.request("a", at=100)
    world.run(200)
    assert world.model("a").totals == Costs(3, 1, 40, 0, 70)
    assert world.model("a").hourly.wait_per_request == pytest.approx(70 / 3, rel=0.05)


def test_pins_that_are_advised_fit_the_node_together_and_do_not_go_to_and_fro() -> None:
    def moves(**last: Move) -> dict[str, Move]:
        models = [
            thrashing(name, totals=Costs(own_gpu_seconds=cost), move=last.get(name, Move.STAY))
            for name, cost in (("a", 10), ("b", 30), ("c", 20), ("d", 40))
        ]
        return {str(one.model.model): one.move for one in report(node(*models))}

    pin, dedicated = Move.PIN, Move.DEDICATED
    assert moves() == {"d": pin, "b": pin, "c": dedicated, "a": dedicated}
    assert moves(c=pin, b=pin, d=dedicated) == {"d": dedicated, "b": pin, "c": pin, "a": dedicated}


def test_a_pin_of_on_thrash_has_its_gpus_before_all_others() -> None:
    makeshift = thrashing("a", pinned_by=PinnedBy.ON_THRASH)
    others = [thrashing(name, totals=Costs(own_gpu_seconds=9e9)) for name in "bc"]
    moves = {str(one.model.model): one.move for one in report(node(makeshift, *others))}
    assert moves == {"a": Move.PIN, "b": Move.PIN, "c": Move.DEDICATED}


def test_the_timer_looks_at_those_who_may_move_and_at_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair that alternates on one GPU, and a hundred models that nobody asks for."""
    looked: list[ModelName] = []
    plain = review._may_move
    monkeypatch.setattr(review, "_may_move", lambda node, model: looked.append(model.name) or plain(node, model))
    idle = [spec(f"idle{number:02}", load=10) for number in range(100)]
    world = World([spec("a", load=10), spec("b", load=10), *idle], gpus=1, protect=seconds(0))
    for number in range(20):
        world.request("ab"[number % 2], at=20 * number, service=1)
    world.run(600)
    assert {note.model for note in world.of(PromotionAdvised)} == {"a", "b"}
    assert set(looked) == {"a", "b"}
