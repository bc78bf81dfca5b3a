"""The suite is worth something: each deliberate bug is caught within a few walks, and by a law, not by a crash."""

from collections.abc import Callable

import pytest

from swapd.core.laws import LawBrokenError
from tests.properties.broken import BrokenLawError
from tests.properties.seeded_bugs import BUGS
from tests.properties.walk import walk

#: walks taken before a bug counts as missed
WALKS = 60


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_the_suite_catches(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((BrokenLawError, LawBrokenError)):
        for seed in range(WALKS):
            walk(seed)


def test_without_a_bug_the_same_walks_pass() -> None:
    for seed in range(WALKS):
        walk(seed)
