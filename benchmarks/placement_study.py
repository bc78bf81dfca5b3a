"""Simulates which sets of GPUs models get: first fit, go-gpuallocator's scores, and ours, on every fixture.

Requests for 1, 2, 4 and 8 GPUs come at random, hold what they get for a while, and go away unserved when nothing is
free; all placers see the same requests. Printed is the share of the served requests for 4 (and for 2) GPUs that got a
set of the best class there is on that machine. How many are served at all is the same for all placers on a single
board: placement alone makes no room.

go-gpuallocator is written anew from its published rules: a pair scores 10 to 60 for its PCIe level and 100 for each
direct NVLink; all partitions of the free GPUs into sets of the wanted size are tried, and the best set of the best
partition is taken. It counts links between GPUs only, so it sees none through a switch; another column shows what it
would do if it saw them. For 4 of 16 GPUs it would try 2.6 million partitions, so the table of two boards is without it.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from itertools import combinations

from benchmarks.machines import machines, twice
from benchmarks.tools import table
from swapd.core.boards import Boards, boards_for
from swapd.core.catalog import NvlinkUse
from swapd.core.ids import GpuSet, gpu_indices
from swapd.core.layout import lowest
from swapd.core.reasons import PlacementQuality
from swapd.core.topology import NodeTopology

REQUESTS = 12_000
LOAD = 0.75
#: percent of the requests by number of GPUs
MIX = {1: 50, 2: 25, 4: 20, 8: 5}
SEED = 1
LINK_SCORE = 100
DOUBLED = ("01", "03", "04", "05", "10", "18")

#: size and free GPUs -> set; 0: none
Placer = Callable[[int, int], int]
#: GPUs by index, and places that are filled up so that the number divides
Padded = tuple[int | None, ...]
FIRST_FIT, BASELINE, SEEING, OURS = "first fit", "go-gpuallocator", "the same, seeing switches", "ours"


@dataclass(frozen=True, slots=True)
class Request:
    """A model comes, and stays for a while if it finds room."""

    at: float
    gpus: int
    stays: float


@dataclass(slots=True)
class Outcome:
    """What became of the requests, by number of GPUs."""

    asked: dict[int, int] = field(default_factory=lambda: dict.fromkeys(MIX, 0))
    served: dict[int, int] = field(default_factory=lambda: dict.fromkeys(MIX, 0))
    best_class: dict[int, int] = field(default_factory=lambda: dict.fromkeys(MIX, 0))

    def share(self, gpus: int) -> float | None:
        """Return the percentage of the served requests that got a set of the best class; ``None``: none was served."""
        return 100 * self.best_class[gpus] / self.served[gpus] if self.served[gpus] else None

    def served_share(self, gpus: int) -> float:
        """Return the percentage of the requests that were served."""
        return 100 * self.served[gpus] / max(1, self.asked[gpus])


def requests(count: int) -> list[Request]:
    """Return the requests for a node of so many GPUs; sizes it does not have are left out."""
    chance = random.Random(SEED)
    sizes = {size: weight for size, weight in MIX.items() if size <= count}
    mean = sum(size * weight for size, weight in sizes.items()) / sum(sizes.values())
    found, at = [], 0.0
    for _ in range(REQUESTS):
        at += chance.expovariate(LOAD * count / mean)
        size = chance.choices(list(sizes), list(sizes.values()))[0]
        found.append(Request(at, size, chance.expovariate(1)))
    return found


def simulate(count: int, arrivals: Sequence[Request], place: Placer, boards: Boards) -> Outcome:
    """Let one placer serve the requests."""
    outcome = Outcome()
    free = (1 << count) - 1
    leaving: list[tuple[float, int]] = []
    for request in arrivals:
        while leaving and leaving[0][0] <= request.at:
            free |= heappop(leaving)[1]
        outcome.asked[request.gpus] += 1
        gpus = place(request.gpus, free)
        if not gpus:
            continue
        assert gpus & free == gpus, "a placer gave away what was taken"
        free ^= gpus
        heappush(leaving, (request.at + request.stays, gpus))
        outcome.served[request.gpus] += 1
        outcome.best_class[request.gpus] += boards.quality(gpus) is PlacementQuality.TOP
    return outcome


def first_fit(size: int, free: int) -> int:
    """Take the lowest free GPUs."""
    return lowest(size, free)


def by_scores(topology: NodeTopology, *, sees_switches: bool) -> Placer:
    """Return go-gpuallocator's best-effort policy."""
    gpus = topology.gpus

    def score(one: int, two: int) -> int:
        direct = not (gpus[one].switched and gpus[two].switched)
        links = topology.links[one][two] if topology.links and (direct or sees_switches) else 0
        return topology.levels[one][two] + LINK_SCORE * links

    scores = [[score(one, two) for two in range(len(gpus))] for one in range(len(gpus))]

    @cache
    def total(some: Padded) -> int:
        return sum(scores[one][two] for one, two in combinations(some, 2) if one is not None and two is not None)

    @cache
    def place(size: int, free: int) -> int:
        available = tuple(gpu_indices(GpuSet(free)))
        if len(available) < size:
            return 0
        if size == 1:
            return 1 << available[0]
        padding = -len(available) % size
        padded = available + (None,) * padding
        best = max(partitions(padded, size, padding), key=lambda sets: sum(map(total, sets)))
        chosen = max((some for some in best if None not in some), key=total)
        return sum(1 << gpu for gpu in chosen if gpu is not None)

    return place


def partitions(gpus: Padded, size: int, padding: int) -> Iterator[tuple[Padded, ...]]:
    """Yield all partitions into sets of one size, in the policy's order; all padding is in one set."""
    if not gpus:
        yield ()
        return
    for places in combinations(range(1, len(gpus)), size - 1):
        some = gpus[:1] + tuple(gpus[place] for place in places)
        if some.count(None) in (0, padding):
            left = tuple(gpu for place, gpu in enumerate(gpus) if place and place not in places)
            for more in partitions(left, size, padding):
                yield (some, *more)


def ours(boards: Boards) -> Placer:
    """Return our own choice, for models that prefer NVLink."""
    return lambda size, free: boards.choose(size, free, use=NvlinkUse.PREFERRED)


def study(topology: NodeTopology, placers: dict[str, Placer]) -> dict[str, Outcome]:
    """Simulate one machine with each placer."""
    boards = boards_for(topology, tuple(MIX))
    arrivals = requests(len(topology.gpus))
    return {name: simulate(len(topology.gpus), arrivals, place, boards) for name, place in placers.items()}


def percent(value: float | None) -> str:
    """Return a percentage as it is printed."""
    return "-" if value is None else f"{value:.1f}"


def show(title: str, found: dict[str, dict[str, Outcome]]) -> None:
    """Print one table, and where ours is lower than another."""
    placers = list(next(iter(found.values())))
    rows = []
    for machine, outcomes in found.items():
        cells = [f"{percent(outcome.share(4))} ({percent(outcome.share(2))})" for outcome in outcomes.values()]
        served = " / ".join(percent(outcomes[OURS].served_share(size)) for size in (4, 8))
        rows.append([machine, *cells, served])
    table(title, ["machine", *placers, "ours served, 4 / 8 GPUs"], rows)
    lower = [
        f"{machine}: {size} GPUs, {other}"
        for machine, outcomes in found.items()
        for other, outcome in outcomes.items()
        for size in (2, 4)
        if (outcomes[OURS].share(size) or 0) < (outcome.share(size) or 0)
    ]
    print(f"\ngoal: ours is never lower: {'met' if not lower else 'MISSED: ' + '; '.join(lower)}")


def main() -> None:
    """Simulate all machines and print the tables."""
    begin = time.perf_counter()
    known = machines()
    found = {}
    for name, topology in known.items():
        placers: dict[str, Placer] = {
            FIRST_FIT: first_fit,
            BASELINE: by_scores(topology, sees_switches=False),
            SEEING: by_scores(topology, sees_switches=True),
            OURS: ours(boards_for(topology, tuple(MIX))),
        }
        found[name] = study(topology, placers)
    show("placement: % of served requests for 4 (2) GPUs with a set of the best class", found)
    found = {}
    for name, one in known.items():
        if name.startswith(DOUBLED):
            topology = twice(one)
            found[f"2 x {name}"] = study(topology, {FIRST_FIT: first_fit, OURS: ours(boards_for(topology, tuple(MIX)))})
    show("the same, 16 GPUs as two boards", found)
    print(f"simulated in {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
