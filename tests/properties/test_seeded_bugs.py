"""The suite is worth something: each deliberate bug is caught within a few walks, and by a law, not by a crash."""

from collections.abc import Callable

import pytest

from swapd.core.lawbook import LawBrokenError
from swapd.sim.audit import AuditError
from tests.properties import gpu_bugs, seeded_bugs, weight_bugs
from tests.properties.broken import BrokenLawError
from tests.properties.nodes import REAL, VIRTUAL, WEIGHTY, Place
from tests.properties.walk import walk

# the walks without a bug are many, and a machine may be slow
pytestmark = pytest.mark.timeout(600)

#: walks taken before a bug counts as missed: on virtual devices, on GPUs with a driver, where weights are fetched
WALKS = 60
GPU_WALKS = 90
WEIGHT_WALKS = 150

LAWS = (BrokenLawError, LawBrokenError, AuditError)

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("plant", seeded_bugs.BUGS, ids=lambda plant: plant.__name__)
def test_the_suite_catches(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(LAWS):
        for seed in range(WALKS):
            walk(seed, VIRTUAL)


@pytest.mark.parametrize(("plant", "places"), gpu_bugs.BUGS, ids=[plant.__name__ for plant, _ in gpu_bugs.BUGS])
def test_the_suite_catches_on_gpus_with_a_driver(
    plant: Plant, places: tuple[Place, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(LAWS):
        for seed in range(GPU_WALKS):
            walk(seed, places)


@pytest.mark.parametrize("plant", weight_bugs.BUGS, ids=lambda plant: plant.__name__)
def test_the_suite_catches_where_weights_are_fetched(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(LAWS):
        for seed in range(WEIGHT_WALKS):
            walk(seed, WEIGHTY)


@pytest.mark.parametrize(
    ("places", "walks"),
    [(VIRTUAL, WALKS), (REAL, GPU_WALKS), (WEIGHTY, WEIGHT_WALKS)],
    ids=["virtual", "real", "with weights"],
)
def test_without_a_bug_the_same_walks_pass(places: tuple[Place, ...], walks: int) -> None:
    for seed in range(walks):
        walk(seed, places)
