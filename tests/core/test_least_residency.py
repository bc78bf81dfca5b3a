"""The least residency holds whoever waits, and also where protection has ended."""

from swapd.core.ids import seconds
from tests.core.driver import World, spec


def test_the_least_residency_holds_for_busy_models_as_well_and_no_reservation_drains_them_earlier() -> None:
    models = [spec("a", load=10, max_wait=seconds(900)), spec("b", load=10, max_wait=seconds(900))]
    world = World(models, gpus=1, min_residency=seconds(500))
    for at in range(0, 900, 20):
        world.request("a", at=at, service=30)
    b = world.request("b", at=20)
    world.run(400)
    assert world.core.view().reservation is None
    world.run(1500)
    assert 510 < b.granted[0][0] <= 510 + 30 + 3 + 10
