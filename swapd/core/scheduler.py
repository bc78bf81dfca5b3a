"""Takes every decision: one event in, orders and notes out.

``handle`` applies one fact and then lets the node settle, unless the fact cannot matter to anybody else: a request for
a ready model with a free slot is granted, and its end is noted, without looking at the rest of the node.
"""

from collections.abc import Generator, Mapping

from swapd.core import (
    devices,
    facts,
    footprints,
    laws,
    memory,
    operators,
    recall,
    reload,
    requests,
    review,
    snapshot,
    standings,
    weight_facts,
)
from swapd.core.boards import boards_for
from swapd.core.catalog import Catalog
from swapd.core.commands import Command, Grant
from swapd.core.eta import note_load_times
from swapd.core.events import (
    CatalogChanged,
    DemandKnown,
    EngineGone,
    Event,
    FootprintsKnown,
    GpuMemoryRead,
    InstanceExited,
    InstanceHealthy,
    InstanceReady,
    InstanceUnhealthy,
    LoadFailed,
    LoadOrdered,
    LoadProgressed,
    LoadTimesKnown,
    NodeDrainOrdered,
    NodeUndrainOrdered,
    PinOrdered,
    ProcessesGone,
    RequestArrived,
    RequestEnded,
    StageEntered,
    StopSignalled,
    Tick,
    TopologyChanged,
    UnloadOrdered,
    UpstreamFailed,
    WeekKnown,
)
from swapd.core.ids import InstanceId, Instant, ModelName
from swapd.core.node import GpuRecord, Node
from swapd.core.policies import EvictionPolicy, policy_named
from swapd.core.settle import settle
from swapd.core.topology import NodeTopology
from swapd.core.viability import NodeLoad
from swapd.core.view import ModelView, NodeView, Offer, WeightStanding

_FIRST = InstanceId(1)


class Scheduler:
    """The state machine of one node."""

    def __init__(
        self,
        topology: NodeTopology,
        catalog: Catalog,
        at: Instant,
        first_instance: InstanceId = _FIRST,
        *,
        policy: EvictionPolicy | None = None,
    ) -> None:
        """Begin with an empty node; a ``policy`` given here counts over the configured one (for the simulator)."""
        self._node = Node(
            topology=topology,
            settings=catalog.settings,
            policy=policy_named(catalog.settings.policy) if policy is None else policy,
            policy_fixed=policy is not None,
            at=at,
            next_instance=first_instance,
            gpus=[GpuRecord(gpu, memory_bytes=gpu.memory_bytes) for gpu in topology.gpus],
            load=NodeLoad(at, devices.counted(topology)),
            boards=boards_for(topology, [spec.footprint.gpus for spec in catalog.models.values()]),
        )
        reload.apply(self._node, catalog)
        if self._node.pins:
            self._node.wake = at

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Apply one fact; ``event.at`` never goes back."""
        node = self._node
        assert event.at >= node.at, f"time went back from {node.at} to {event.at}"
        node.at = event.at
        node.step += 1
        node.out = []
        changes = node.changes
        if self._apply(event) or node.changes != changes or (node.wake is not None and node.wake <= event.at):
            settle(node)
        if node.unkept:
            standings.keep(node)
        return tuple(node.out)

    def admit(self, event: RequestArrived) -> Grant | None:
        """Do what ``handle`` would, for less, if all of that is to grant the request.

        ``None``: it is not, nothing was applied, and the fact is still to be handled.
        """
        node, at = self._node, event.at
        assert at >= node.at, f"time went back from {node.at} to {at}"
        if node.wake is not None and node.wake <= at:
            return None
        assert event.request not in node.requests, f"request {event.request} arrived twice"
        node.at = at
        granted = requests.granted_at_once(node, event)
        if granted is not None:
            node.step += 1
        return granted

    def end(self, event: RequestEnded) -> bool:
        """Do what ``handle`` would, for less, if nothing follows of a request's end.

        ``False``: something may, nothing was applied, and the fact is still to be handled.
        """
        node, at = self._node, event.at
        assert at >= node.at, f"time went back from {node.at} to {at}"
        if node.wake is not None and node.wake <= at:
            return False
        ended = requests.ended_quietly(node, event)
        if ended:
            node.at = at
            node.step += 1
        return ended

    def _apply(self, event: Event) -> bool:
        """Apply one fact; return whether the node has to settle."""
        node = self._node
        match event:
            case RequestArrived():
                return requests.arrived(node, event)
            case RequestEnded():
                return requests.ended(node, event)
            case UpstreamFailed():
                return requests.upstream_failed(node, event)
            case StageEntered():
                return facts.stage_entered(node, event)
            case LoadProgressed():
                return facts.load_progressed(node, event)
            case InstanceReady():
                return facts.instance_ready(node, event)
            case LoadFailed():
                return facts.load_failed(node, event)
            case InstanceExited():
                return facts.instance_exited(node, event)
            case InstanceHealthy():
                return facts.instance_healthy(node, event)
            case InstanceUnhealthy():
                return facts.instance_unhealthy(node, event)
            case StopSignalled():
                return facts.stop_signalled(node, event)
            case ProcessesGone():
                return facts.processes_gone(node, event)
            case EngineGone():
                return facts.engine_gone(node, event)
            case GpuMemoryRead():
                return memory.memory_read(node, event)
            case TopologyChanged():
                return devices.topology_changed(node, event)
            case FootprintsKnown():
                return footprints.footprints_known(node, event)
            case CatalogChanged():
                reload.apply(node, event.catalog)
                return True
            case LoadTimesKnown():
                return self._load_times_known(event)
            case DemandKnown():
                return recall.recall(node, event)
            case WeekKnown():
                return review.week_known(node, event)
            case LoadOrdered():
                return operators.load_ordered(node, event)
            case UnloadOrdered():
                return operators.unload_ordered(node, event)
            case PinOrdered():
                return operators.pin_ordered(node, event)
            case NodeDrainOrdered():
                return operators.node_drain_ordered(node, event)
            case NodeUndrainOrdered():
                return operators.node_undrain_ordered(node, event)
            case Tick():
                return True
            case _:
                return weight_facts.apply(node, event)

    def _load_times_known(self, event: LoadTimesKnown) -> bool:
        for (name, source), times in event.load_times.items():
            model = self._node.models.get(name)
            if model is not None:
                note_load_times(model, source, times)
                self._node.refresh(model)
        return True

    @property
    def next_wakeup(self) -> Instant | None:
        """When to post the next Tick; the shell keeps exactly one timer."""
        return self._node.wake

    def view(self, at: Instant | None = None) -> NodeView:
        """Return the node as it is, ages reckoned to ``at`` (or to the last event, if that is later).

        Looking changes nothing: a replay without it comes to the same.
        """
        return snapshot.build(self._node, self._node.at if at is None else max(self._node.at, at))

    def model(self, name: ModelName, at: Instant) -> ModelView | None:
        """Return one model as ``view`` shows it; ``None``: it is not there."""
        model = self._node.models.get(name)
        return None if model is None else snapshot.model_view(self._node, model, max(self._node.at, at))

    def offer(self, name: ModelName, at: Instant) -> Offer | None:
        """Return what clients are told of a model; ``None``: it is not there."""
        model = self._node.models.get(name)
        return None if model is None else snapshot.offer(model, max(self._node.at, at))

    def standings(self, at: Instant | None = None) -> Mapping[ModelName, WeightStanding]:
        """Return what the weight cache has to know of each model whose weights it keeps; changes nothing."""
        node = self._node
        return standings.standings(node, node.at if at is None else max(node.at, at))

    def view_in_steps(self, at: Instant) -> Generator[None, None, NodeView]:
        """Return the same bit by bit, for who must not hold up the node; see ``snapshot.in_steps``."""
        return snapshot.in_steps(self._node, at)

    def bare_view(self) -> NodeView:
        """Return the node without its models, which costs little."""
        return snapshot.bare(self._node, self._node.at)

    def demand(self) -> DemandKnown:
        """Return what is to survive a restart: to be told to the next run, with the time in between."""
        return recall.record(self._node)

    def check(self) -> None:
        """Raise if any law is broken."""
        laws.check(self._node)
