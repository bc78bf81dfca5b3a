"""Fixtures of the metrics room."""

import pytest

from tests.metrics.bench import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()
