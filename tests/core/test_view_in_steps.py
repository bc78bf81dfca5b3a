"""The view that is built in steps is the view that is built at once, whatever happens between the steps."""

from swapd.core.ids import seconds
from swapd.core.snapshot import STEP
from tests.core.driver import World, spec


def test_nothing_is_missing_and_nothing_is_told_twice() -> None:
    world = World([spec(f"m{number:02}", load=10) for number in range(3 * STEP + 1)], gpus=3)
    world.request("m05", at=0)
    world.run(20)
    at = world.core.view().at
    steps = world.core.view_in_steps(at)
    count = 0
    try:
        while True:
            next(steps)
            count += 1
    except StopIteration as done:
        view = done.value
    assert view == world.core.view(at)
    assert count == 4
    assert world.core.bare_view().models == ()
    assert world.core.bare_view().instances == world.core.view().instances


def test_an_instance_that_is_gone_between_two_steps_is_in_no_later_one() -> None:
    names = [f"m{number:02}" for number in range(2 * STEP)]
    world = World([spec(name, load=10) for name in names], gpus=1)
    world.request(names[-1], at=0)
    world.run(20)
    steps = world.core.view_in_steps(world.core.view().at)
    next(steps)
    world.request(names[0], at=30)
    world.run(seconds(3600) // seconds(1))
    try:
        while True:
            next(steps)
    except StopIteration as done:
        view = done.value
    shown = {model.instance.model for model in view.models if model.instance is not None}
    assert shown <= {instance.model for instance in view.instances}
    assert view.at >= seconds(30)
    assert [model.model for model in view.models] == names
