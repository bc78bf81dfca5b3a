"""Who leaves or drains for a model whose weights are on their way, and when."""

import pytest

from swapd.core.commands import Evicted, Start, Transitioned
from swapd.core.ids import seconds
from swapd.core.reasons import State
from tests.core.driver import World, spec
from tests.core.test_weights import at, far


def test_whoever_has_free_room_and_waits_for_its_weights_alone_has_nobody_drained() -> None:
    world = World([far("a"), spec("b", load=10)], gpus=2, drain_after=seconds(5))
    world.store.remote("a", fetch=100)
    for second in range(0, 120, 10):
        world.request("b", at=second, service=30)
    a = world.request("a", at=1)
    world.run(200)
    assert a.waited == pytest.approx(110, abs=0.001)
    assert [c for _, c in world.log if isinstance(c, Transitioned) and c.after is State.DRAINING] == []


def test_the_idle_serve_on_while_weights_are_as_far_as_a_drain_of_others_would_be() -> None:
    world = World([far("a"), spec("b", load=10), spec("c", load=10)], gpus=2, drain_after=seconds(5), protect=0)
    world.store.remote("a", fetch=100)
    for second in range(0, 160, 10):
        world.request("b", at=second, service=30)
    world.request("c", at=0)
    again = world.request("c", at=110, service=1)
    world.request("a", at=20)
    world.run(250)
    assert again.waited == 0
    assert at(world, Evicted, "b") == []
    assert at(world, Evicted, "c") == [20 + 100 - 3]


@pytest.mark.parametrize(("victim", "lead"), [("slow", 40), ("quick", 1)])
def test_whoever_leaves_for_a_fetch_leaves_as_long_before_its_end_as_its_own_stop_takes(victim: str, lead: int) -> None:
    specs = [spec(name, load=10, stop_grace=seconds(60)) for name in ("slow", "quick", "other")]
    world = World([far("a"), *specs], gpus=1, protect=0)
    world.store.remote("a", fetch=200)
    for name, unload in (("slow", 40), ("quick", 1), ("other", 1)):
        world.engines[name].unload = unload
    order = ["other", "quick", "other", "quick", "other", "slow", "other", "slow", "other", "quick", "other", victim]
    for place, name in enumerate(order):
        world.request(name, at=100 * place)
    world.request("a", at=1_300)
    world.run(1_600)
    assert at(world, Evicted, victim)[-1] == 1_300 + 200 - lead
    assert at(world, Start, "a") == [1_500]
