"""Who leaves the disk: a random workload on real caches that are too small for it, our order against LRU.

Each request wants one of many models of all sizes, whose sources are fast or slow; what is not there is fetched, and
the model that is asked for is live meanwhile. At each word of the cache the folder is measured: a limit that does not
hold, or a live model without its files, ends the benchmark.
"""

import random
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tools import table
from swapd.core.events import WeightsFetched
from swapd.core.ids import Instant, ModelName, seconds
from swapd.weights import Standing, Weights
from swapd.weights.facts import Fact
from tests.weights.caches import Running, noise, running
from tests.weights.test_limits import data_bytes

MODELS = 40
REQUESTS = 400
SEEDS = 3
HALF_LIFE = 100
PAGE = 4096


@dataclass
class Node:
    """One run: a cache, and what a core would know of the models."""

    run: Running
    folder: Path
    limit: int
    names: list[ModelName]
    #: seconds to fetch each
    refetch: list[float]
    order: str
    live: ModelName | None = None

    def check(self, fact: Fact) -> None:
        """Hold the cache to its limit and to the files of the live model."""
        assert max(data_bytes(self.folder), self.run.cache.stats().used) <= self.limit, fact
        path = self.run.cache.path(self.live) if self.live is not None else None
        assert self.live is None or (path is not None and path.exists()), fact

    def tell(self, at: int, wanted: int, frequency: list[float], last: list[int]) -> None:
        """Tell the cache what each model is worth; without frequencies it keeps to the order of use."""
        self.run.cache.heed(
            {
                name: Standing(
                    held=number == wanted,
                    frequency=aged(frequency[number], at - last[number]) if self.order == "ours" else 0.0,
                    refetch=seconds(self.refetch[number]),
                    last_used=Instant(last[number]) if last[number] >= 0 else None,
                )
                for number, name in enumerate(self.names)
            }
        )


def aged(frequency: float, age: int) -> float:
    """Return a count that has decayed."""
    return frequency * float(0.5 ** (age / HALF_LIFE))


async def play(order: str, seed: int, directory: Path) -> tuple[float, float]:
    """Play one workload; return hit rate and seconds of fetching per request, as if a page were 1/16 GB."""
    dice = random.Random(seed)
    names = [ModelName(f"m{number:02}") for number in range(MODELS)]
    pages = [min(80, round(dice.lognormvariate(2, 1)) + 1) for _ in names]
    refetch = [size / 16 / dice.choice([0.1, 0.5, 1.0]) for size in pages]  # GB a second of each one's source
    popular = [1 / (rank + 1) for rank in range(MODELS)]
    dice.shuffle(popular)
    for name, size in zip(names, pages, strict=True):
        (directory / name).write_bytes(noise(size * PAGE))
    models = {name: Weights(f"file://{directory}/{name}") for name in names}
    limit = sum(pages) * PAGE // 3
    frequency, last, hits, spent = [0.0] * MODELS, [-1] * MODELS, 0, 0.0
    async with running(directory / "cache", models, max_size=limit) as run:
        node = Node(run, directory / "cache", limit, names, refetch, order)
        run.on_fact = node.check
        for at in range(REQUESTS):
            (wanted,) = dice.choices(range(MODELS), popular)
            frequency[wanted] = aged(frequency[wanted], at - last[wanted]) + 1
            last[wanted] = at
            node.tell(at, wanted, frequency, last)
            if names[wanted] in run.cached:
                hits += 1
            else:
                spent += refetch[wanted]
                node.live = None
                answer = await run.fetch(names[wanted])
                assert isinstance(answer, WeightsFetched), answer
            node.live = names[wanted]
    return hits / REQUESTS, spent / REQUESTS


async def policies() -> None:
    """Compare orders of eviction from the disk, and print."""
    rows = []
    for order in ("LRU", "ours"):
        played = []
        for seed in range(SEEDS):
            with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
                played.append(await play(order, seed, Path(name)))
        rate, cost = (statistics.mean(part) for part in zip(*played, strict=True))
        rows.append((order, f"{rate:.1%}", f"{cost:.1f}"))
    title = f"{SEEDS} random workloads of {REQUESTS} requests, cache of a third of all weights; limits held throughout"
    table(title, ("order", "hit rate", "s fetching per request"), rows)
