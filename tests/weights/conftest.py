"""A server with the weights of two models, and a place for a cache."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.weights.caches import MIB, noise
from tests.weights.remote import CONTENT
from tests.weights.servers import Blob, Server, serving


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as made:
        made.blobs["/m.gguf"] = Blob(CONTENT)
        made.blobs["/n.gguf"] = Blob(noise(2 * MIB, 2))
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache"
