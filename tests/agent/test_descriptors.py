"""The daemon takes the descriptors it may have, and warns when those are few."""

import resource

import pytest
import structlog

from swapd.agent.descriptors import raise_limit


@pytest.mark.parametrize(
    ("soft", "hard", "taken"),
    [
        (1024, 20_000, 20_000),
        (1024, resource.RLIM_INFINITY, 65_536),
        (100_000, 200_000, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_is_useful(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, taken: int | None
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: set_to.append(limits))
    with structlog.testing.capture_logs() as lines:
        raise_limit()
    assert set_to == ([] if taken is None else [(taken, hard)])
    assert lines == []


def test_few_descriptors_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (128, 128))
    with structlog.testing.capture_logs() as lines:
        raise_limit()
    assert [(line["event"], line["limit"]) for line in lines] == [("few_descriptors", 128)]
