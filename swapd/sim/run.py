"""Runs one simulation from start to end: a node, a workload, a world, a report."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from swapd.core.catalog import Catalog
from swapd.core.ids import Instant
from swapd.core.policies import EvictionPolicy
from swapd.core.topology import NodeTopology
from swapd.sim.node import Observer, VirtualNode
from swapd.sim.replay import Origin
from swapd.sim.report import Counter, Report
from swapd.sim.shelf import at_hand
from swapd.sim.workload import Arrival
from swapd.sim.world import HealthyWorld, Timings, World


@dataclass(frozen=True, slots=True)
class Setup:
    """The node to simulate and how long things take on it."""

    topology: NodeTopology
    catalog: Catalog
    timings: Timings = field(default_factory=Timings)
    #: order of victims instead of the configured one
    policy: EvictionPolicy | None = None

    def healthy(self, workload: Iterable[Arrival]) -> HealthyWorld:
        """Return a world without faults that knows how long each request of the workload takes."""
        service = {arrival.request: arrival.service for arrival in workload}
        load = self.timings.load or {name: spec.load_estimate for name, spec in self.catalog.models.items()}
        return HealthyWorld(replace(self.timings, load=load, service={**self.timings.service, **service}))


def simulate(
    setup: Setup,
    workload: Sequence[Arrival],
    *,
    world: World | None = None,
    until: Instant | None = None,
    observers: Iterable[Observer] = (),
) -> Report:
    """Run the workload on a fresh node and count what came out; all weights are on the node from the start.

    Without ``world`` nothing fails. Without ``until`` the run ends when the last thing has happened; with a finite
    ``idle_unload`` or a pin that is a good while after the last request.
    """
    counter = Counter(gpus=len(setup.topology.gpus), footprints=setup.catalog.models)
    scheduler = Origin(setup.topology, at_hand(setup.catalog), policy=setup.policy).scheduler()
    node = VirtualNode(
        scheduler,
        world or setup.healthy(workload),
        observers=(counter, *observers),
    )
    node.post(*(arrival.event() for arrival in workload))
    node.run(until)
    return counter.report(scheduler.view())
