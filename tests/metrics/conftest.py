"""Fixtures of the metrics room."""

from collections.abc import Iterator

import pytest

from tests.metrics.bench import Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.metrics.close()
