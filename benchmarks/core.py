"""Measures how long the core takes for one event: 8 GPUs, 300 models, 512 requests waiting all the time.

The node is overloaded on purpose: whenever a waiting request is granted the next one arrives, so that each event is
decided with a full queue. Printed are microseconds of CPU time (other processes do not count) by kind of event, and
for the events that placed a model.
"""

import gc
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field

from benchmarks import goals
from swapd.core.catalog import Catalog, Footprint, ModelSpec, SchedulingSettings
from swapd.core.commands import Command, Grant, Reject, Transitioned
from swapd.core.events import Event, RequestArrived
from swapd.core.ids import Bytes, Duration, Instant, ModelName, RequestId, seconds
from swapd.core.reasons import State
from swapd.core.scheduler import Scheduler
from swapd.core.topology import Gpu, NodeTopology
from swapd.sim.node import Core, VirtualNode
from swapd.sim.report import quantile
from swapd.sim.world import HealthyWorld, Timings

GPUS = 8
MODELS = 300
QUEUED = 512
EVENTS = 20_000
GIB = 1 << 30


@dataclass(slots=True)
class Stopwatch:
    """A core that notes how long each event took, by kind."""

    inner: Scheduler
    taken: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    events: int = 0

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Pass the event on and stop the time."""
        begin = time.thread_time_ns()
        commands = self.inner.handle(event)
        took = time.thread_time_ns() - begin
        self.events += 1
        self.taken[kind(event, commands)].append(took)
        self.taken["every event"].append(took)
        if any(isinstance(command, Transitioned) and command.after is State.RESERVED for command in commands):
            self.taken["… that placed a model"].append(took)
        return commands

    @property
    def next_wakeup(self) -> Instant | None:
        """Return what the core says."""
        return self.inner.next_wakeup


def kind(event: Event, commands: tuple[Command, ...]) -> str:
    """Name the row of the table an event belongs to."""
    name = type(event).__name__
    if isinstance(event, RequestArrived):
        granted = any(isinstance(command, Grant) for command in commands)
        return f"{name}, resident" if granted else f"{name}, queued"
    return name


def catalog(chance: random.Random) -> Catalog:
    """Return 300 models, most of them small; every third shares its GPU."""
    models = {}
    for number in range(MODELS):
        gpus = chance.choices((1, 2, 4, 8), (55, 27, 13, 5))[0]
        shared = number % 3 == 0
        spec = ModelSpec(
            name=ModelName(f"m{number:03}"),
            footprint=Footprint(gpus, Bytes((24 if shared else 70) * GIB), exclusive=not shared),
            max_queue=QUEUED,
            max_wait=Duration(seconds(30 * 86_400)),
            load_estimate=seconds(20 + 5 * gpus),
        )
        models[spec.name] = spec
    return Catalog(models, SchedulingSettings())


def scheduler(config: Catalog) -> Scheduler:
    """Return the core of an empty node."""
    topology = NodeTopology(tuple(Gpu(index, f"virtual-{index}", Bytes(80 * GIB)) for index in range(GPUS)))
    return Scheduler(topology, config, Instant(0))


def overload(core: Core, config: Catalog, chance: random.Random) -> VirtualNode:
    """Return a node around a core, whose queue stays full while it is stepped."""
    names = sorted(config.models)
    weights = [1 / rank for rank in range(1, MODELS + 1)]
    load = {name: spec.load_estimate for name, spec in config.models.items()}
    issued = 0

    def arrive() -> None:
        nonlocal issued
        issued += 1
        node.post(RequestArrived(node.now, RequestId(issued), chance.choices(names, weights)[0]))

    def refill(_event: Event, commands: tuple[Command, ...]) -> None:
        for command in commands:
            if isinstance(command, Grant | Reject):
                arrive()

    node = VirtualNode(core, HealthyWorld(Timings(load=load, default_service=seconds(8))), observers=(refill,))
    for _ in range(QUEUED):
        arrive()
    return node


def main() -> None:
    """Run the overloaded node and print the table."""
    chance = random.Random(300)
    config = catalog(chance)
    watch = Stopwatch(scheduler(config))
    node = overload(watch, config, chance)
    gc.collect()
    gc.freeze()
    while watch.events < EVENTS and node.step():
        pass
    show(watch)


def show(watch: Stopwatch) -> None:
    """Print the table."""
    print(f"core: {GPUS} GPUs, {MODELS} models, {QUEUED} requests waiting; {watch.events} events; µs of CPU time")
    print(f"{'event':<30}{'count':>8}{'p50':>9}{'p99':>9}{'max':>9}")
    for name in sorted(watch.taken, key=lambda row: (row[0] in "e…", row)):
        ordered = sorted(watch.taken[name])
        p50, p99, top = (quantile(ordered, share) / 1e3 for share in (0.5, 0.99, 1))
        print(f"{name:<30}{len(ordered):>8}{p50:>9.1f}{p99:>9.1f}{top:>9.1f}")
    goals.measured("event", quantile(sorted(watch.taken["every event"]), 0.99) / 1e6)


if __name__ == "__main__":
    main()
