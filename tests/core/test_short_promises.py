"""Protection defers a request only as far as its model's promise allows."""

from swapd.core.ids import Duration, seconds
from tests.core.driver import World, spec


def _waited(protect_max_wait: Duration | None) -> float | None:
    """Return how long a request waits whose model promises 20 s and expects 12 s to load (in fact 11).

    The one GPU is taken by an idle model that is protected for a minute.
    """
    models = [spec("a", load=10), spec("b", load=12, max_wait=seconds(20))]
    world = World(models, gpus=1, protect=seconds(60), protect_max_wait=protect_max_wait)
    world.engines["b"].load = 11
    world.request("a", at=0, service=1)
    b = world.request("b", at=12)
    world.run(100)
    return b.waited if b.granted else None


def test_protection_is_lifted_early_when_waiting_on_would_break_the_promise() -> None:
    # 20 s promised, less 12 s expected for the load and 3 s for the release
    assert _waited(seconds(15)) == 5 + 3 + 11


def test_absolute_protection_is_not_lifted_for_a_promise() -> None:
    assert _waited(None) is None
