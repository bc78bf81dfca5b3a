"""What the server of ``conftest.py`` has, and what becomes of it."""

from swapd.core.events import FetchFailed, WeightsFetched
from swapd.core.reasons import FetchFailure
from swapd.weights import Weights
from tests.weights.caches import MIB, M, N, Running, noise
from tests.weights.servers import Server

CONTENT = noise(5 * MIB + 12345)


def weights(server: Server, name: str = "m.gguf", **how: str) -> Weights:
    return Weights(f"{server.url}/{name}", **how)


def failure(answer: WeightsFetched | FetchFailed) -> tuple[FetchFailure, str]:
    assert isinstance(answer, FetchFailed), answer
    return answer.failure, answer.detail


def content_of(run: Running, model: str = M) -> bytes:
    path = run.cache.path(M if model == M else N)
    assert path is not None
    return path.read_bytes()
