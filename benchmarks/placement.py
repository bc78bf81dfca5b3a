"""Measures one placement decision: microseconds for every size and every mask of free GPUs, on every fixture.

Nothing is remembered between decisions, so each is cold. An input's time is the best of three, in the best of six
rounds over all inputs, with the garbage collector off; the percentiles are over the inputs. (Single times on a shared
CPU measure the neighbours.) Inputs with too few free GPUs are left out, they would only make the figures look better.
"""

import gc
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from benchmarks import goals
from benchmarks.machines import machines, twice
from benchmarks.tools import median, percentile, table
from swapd.core.boards import Boards
from swapd.core.catalog import NvlinkUse
from swapd.core.tables import USUAL_SIZES
from swapd.core.topology import NodeTopology
from swapd.core.wiring import Wiring

ROUNDS = 6
REPEATS = 3
GOAL_US = 20
GOAL_TABLES_MS = 50
#: masks of 16 GPUs that are tried, of 65,536
SAMPLE = 1_500
#: placements of models on all GPUs that are tried
OWNERS = 90
DOUBLED = ("01", "03", "04", "05", "10", "18")

Decision = Callable[[], object]


@dataclass(slots=True)
class Series:
    """Decisions of one kind on one machine, and the best time of each, nanoseconds."""

    decisions: list[Decision]
    best: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.best = [1 << 60] * len(self.decisions)

    def run(self) -> None:
        """Take every decision a few times."""
        clock = time.perf_counter_ns
        for number, decide in enumerate(self.decisions):
            best = self.best[number]
            for _ in range(REPEATS):
                begin = clock()
                decide()
                took = clock() - begin
                best = min(took, best)
            self.best[number] = best

    def quantiles(self) -> tuple[float, float, float]:
        """Return p50, p99 and the maximum, microseconds."""
        values = [best / 1e3 for best in self.best]
        return median(values), percentile(values, 0.99), max(values)


def choices(boards: Boards, count: int, use: NvlinkUse) -> Iterator[Decision]:
    """Yield a decision for every size and every mask of free GPUs (a sample of them above 8 GPUs)."""
    chance = random.Random(count)
    masks = range(1 << count) if count <= 8 else [chance.getrandbits(count) for _ in range(SAMPLE)]
    for size in range(1, count + 1) if count <= 8 else (*USUAL_SIZES, 16):
        for free in masks:
            if free.bit_count() >= size:
                yield partial(boards.choose, size, free, use=use)


def evictions(boards: Boards, count: int, pairs: int) -> Iterator[Decision]:
    """Yield decisions where every GPU is taken: a model on each, or ``pairs`` of them on two GPUs of a board."""
    chance = random.Random(count)
    for _ in range(OWNERS):
        owner = [1 << gpu for gpu in range(count)]
        for _ in range(pairs):
            start = chance.randrange(0, count, 8)
            one, two = chance.sample(range(start, min(start + 8, count)), 2)
            if owner.count(owner[one]) == owner.count(owner[two]) == 1:
                owner[two] = owner[one]
        cost = [chance.randint(1, 1_000) for _ in range(count)]
        for size in USUAL_SIZES:
            if size <= count:
                yield partial(boards.evict, size, owner, cost, 0, use=NvlinkUse.PREFERRED)


def series(topology: NodeTopology) -> dict[str, Series]:
    """Return what is measured on one machine, by column."""
    count = len(topology.gpus)
    boards = Boards(Wiring.of(topology), tuple(range(1, count + 1)) if count <= 8 else USUAL_SIZES)
    kinds = {
        "choose": choices(boards, count, NvlinkUse.PREFERRED),
        "choose, no NVLink": choices(boards, count, NvlinkUse.IGNORE),
        "evict": evictions(boards, count, pairs=0),
        "evict, some on pairs": evictions(boards, count, pairs=2),
    }
    return {kind: Series(list(decisions)) for kind, decisions in kinds.items()}


def tables_ms(topology: NodeTopology) -> float:
    """Return how long the tables of a machine take, the median of a few."""
    wiring = Wiring.of(topology)
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter_ns()
        Boards(wiring, USUAL_SIZES)
        times.append((time.perf_counter_ns() - begin) / 1e6)
    return median(times)


def main() -> None:
    """Measure all machines and print the table."""
    known = machines()
    doubled = {f"2 x {name}": twice(one) for name, one in known.items() if name.startswith(DOUBLED)}
    measured = {name: series(topology) for name, topology in (known | doubled).items()}
    built = {name: tables_ms(topology) for name, topology in (known | doubled).items()}
    gc.collect()
    gc.disable()
    for _ in range(ROUNDS):
        for kinds in measured.values():
            for kind in kinds.values():
                kind.run()
    figures = {name: {kind: one.quantiles() for kind, one in kinds.items()} for name, kinds in measured.items()}
    rows = [
        [name, *(" / ".join(f"{value:.1f}" for value in times) for times in kinds.values()), f"{built[name]:.1f}"]
        for name, kinds in figures.items()
    ]
    columns = list(next(iter(measured.values())))
    table("placement: µs per decision, p50 / p99 / max; tables: ms", ["machine", *columns, "tables"], rows)
    print(f"\ngoal: p99 < {GOAL_US} µs")
    for title, names in (("up to 8 GPUs", known), ("16 GPUs as two boards", doubled)):
        worst = {column: max(figures[name][column][1] for name in names) for column in columns}
        if names is known:
            goals.measured("placement", max(worst.values()))
        said = [f"{column} {'met' if p99 < GOAL_US else 'MISSED'} ({p99:.1f})" for column, p99 in worst.items()]
        print(f"  {title}: {', '.join(said)}")
    slowest = max(built.values())
    print(f"goal: tables < {GOAL_TABLES_MS} ms: {'met' if slowest < GOAL_TABLES_MS else 'MISSED'} ({slowest:.1f})")


if __name__ == "__main__":
    main()
