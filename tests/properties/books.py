"""Keeps the suite's own books on a node: open requests, instances, GPU bytes, pins. Never reads the core.

Everything here follows from the events sent and the commands received. ``oracle.py`` judges by these books.
"""

import copy
from collections.abc import Container
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from swapd.core.catalog import Catalog, ModelSpec, Priority
from swapd.core.ids import Bytes, Duration, GpuSet, InstanceId, Instant, ModelName, RequestId, gpu_indices
from swapd.core.reasons import State, UnloadCause
from swapd.core.topology import NodeTopology
from tests.properties.devices import Devices
from tests.properties.weight_books import WeightBooks


class Phase(Enum):
    """Where a request is, as its client sees it."""

    WAITING = auto()
    GRANTED = auto()
    REJECTED = auto()


@dataclass(slots=True)
class Request:
    """One request that arrived and has not ended."""

    id: RequestId
    model: ModelName
    arrived: Instant
    #: the lower of its own class and its model's
    priority: Priority
    phase: Phase = Phase.WAITING
    instance: InstanceId | None = None
    granted: Instant = Instant(0)
    #: the shell reported once that the engine sent no byte
    failed_once: bool = False
    cut: bool = False


@dataclass(slots=True)
class Instance:
    """One instance the core has announced and whose memory is not known to be free."""

    id: InstanceId
    model: ModelName
    gpus: GpuSet
    state: State
    #: when it came to this state
    since: Instant
    #: when its room was booked
    booked: Instant = Instant(0)
    spec: ModelSpec | None = None
    started: Instant | None = None
    ready: Instant | None = None
    #: it exited, failed or was found unresponsive
    broken: bool = False
    #: Checks ordered and not answered
    checks: int = 0
    stop: UnloadCause | None = None
    signalled: Instant | None = None
    killed: bool = False
    #: when its processes were reported gone
    gone: Instant | None = None
    #: nothing of it is left, as far as the shell can tell
    engine_gone: bool = False
    #: the GPUs on which its memory may be free again: nothing of it is left, and the driver has spoken since its end
    freed: int = 0
    #: memory per GPU it counts for: as configured, or as measured in an earlier run or in this one
    charge: Bytes = Bytes(0)
    measured: bool = False
    in_flight: set[RequestId] = field(default_factory=set)
    last_used: Instant = Instant(0)

    @property
    def holds_memory(self) -> bool:
        """Whether its memory may be in use: started, and not known to be free on all of its GPUs."""
        return self.started is not None and bool(self.gpus & ~self.freed)

    @property
    def serves(self) -> bool:
        """Whether a request may be sent to it."""
        sound = not self.broken and self.checks == 0 and self.stop is None and not self.killed
        return self.ready is not None and sound and self.state is State.READY


@dataclass(slots=True)
class OperatorOrder:
    """One order of an operator."""

    at: Instant
    kind: str
    model: ModelName | None
    answered: bool = False


class Books:
    """What an observer without insight knows of the node."""

    def __init__(self, topology: NodeTopology, catalog: Catalog) -> None:
        self.devices = Devices(topology)
        self.catalog = catalog
        self.now = Instant(0)
        self.requests: dict[RequestId, Request] = {}
        self.instances: dict[InstanceId, Instance] = {}
        #: every id ever announced
        self.seen: set[InstanceId] = set()
        self.orders: dict[RequestId, OperatorOrder] = {}
        self.operator_pins: dict[ModelName, bool] = {}
        #: models that the core says it has pinned itself
        self.thrash_pins: set[ModelName] = set()
        #: measured load times by model
        self.load_times: dict[ModelName, list[Duration]] = {}
        #: models with a request refused for its ETA: one load for the next one is allowed
        self.refused_for_eta: set[ModelName] = set()
        #: until when the core says a model is not tried again
        self.cooling_until: dict[ModelName, Instant] = {}
        #: when a model's last load failed, unless an operator or a configuration has given it another try
        self.failed_at: dict[ModelName, Instant] = {}
        #: resident when their configuration changed: they may come back unasked
        self.wishes: set[ModelName] = set()
        self.draining = False
        #: no request was served for longer, and no stop took longer until its memory was free
        self.longest_service = Duration(0)
        self.longest_release = Duration(0)
        #: measured memory per GPU, by model and revision
        self.measured: dict[tuple[ModelName, str], Bytes] = {}
        #: when the core asked for a reading it has not had yet
        self.asked: Instant | None = None
        self.weights = WeightBooks()
        self.weights.learn(catalog)

    def snapshot(self) -> "Books":
        """Return a copy that later steps leave alone."""
        still = copy.copy(self)
        still.instances = {key: replace(value) for key, value in self.instances.items()}
        still.requests = {key: replace(value) for key, value in self.requests.items()}
        still.thrash_pins = set(self.thrash_pins)
        return still

    def waiting(self, model: ModelName) -> list[Request]:
        """Return the model's requests that wait for their answer, oldest first."""
        found = (r for r in self.requests.values() if r.model == model and r.phase is Phase.WAITING)
        return sorted(found, key=lambda r: (r.arrived, r.id))

    def load_orders(self, model: ModelName) -> list[OperatorOrder]:
        """Return the operators' unanswered loads of the model."""
        return [o for o in self.orders.values() if o.model == model and o.kind == "load" and not o.answered]

    def waits_since(self, model: ModelName) -> Instant | None:
        """Return since when somebody waits for the model."""
        moments = [r.arrived for r in self.waiting(model)] + [o.at for o in self.load_orders(model)]
        return min(moments, default=None)

    def pinned(self, model: ModelName) -> bool:
        """Return whether the model is pinned, by an operator, by configuration, or by the node because it thrashed."""
        spec = self.catalog.models.get(model)
        return self.operator_pins.get(model, spec is not None and (spec.pinned or model in self.thrash_pins))

    def holders(self, gpu: int) -> list[Instance]:
        """Return the instances that may use memory on a GPU."""
        return [i for i in self.instances.values() if i.started is not None and i.gpus & ~i.freed & 1 << gpu]

    def note_released(self) -> None:
        """Enter on which GPUs the memory of ended instances may be free by what was heard."""
        for instance in self.instances.values():
            if instance.gone is None or not instance.engine_gone:
                continue
            for gpu in gpu_indices(GpuSet(instance.gpus & ~instance.freed)):
                taken = self.devices.read[gpu][0] if gpu in self.devices.read else None
                if not self.devices.tells(gpu) or (taken is not None and taken >= instance.gone):
                    instance.freed |= 1 << gpu

    def forget_removed(self) -> None:
        """Forget what was measured of models that are no longer configured, once nothing is left of them."""
        known = {*self.catalog.models, *(instance.model for instance in self.instances.values())}
        self.measured = {key: size for key, size in self.measured.items() if key[0] in known}

    def need(self, spec: ModelSpec) -> Bytes:
        """Return the memory per GPU that a model is known to take."""
        return self.measured.get((spec.name, spec.revision), spec.footprint.bytes_per_gpu)

    def fits(self, spec: ModelSpec, gpu: int, *, beside: list[Instance], need: Bytes | None = None) -> bool:
        """Return whether the model finds room on a GPU beside these instances; ``need``: other than planned now."""
        others = [i for i in beside if i.spec and i.gpus >> gpu & 1]
        if others and (spec.footprint.exclusive or any(i.spec.footprint.exclusive for i in others if i.spec)):
            return False
        taken = sum(i.charge for i in others)
        return taken + (self.need(spec) if need is None else need) <= self.devices.capacity(gpu)

    def deadline(self, request: Request) -> Instant:
        """Return by when a request must be answered while it waits; a removed model's requests have no patience."""
        spec = self.catalog.models.get(request.model)
        return Instant(request.arrived + spec.max_wait) if spec else request.arrived

    def short_of_host(self, spec: ModelSpec, *, beside: list[Instance]) -> bool:
        """Return whether the model does not fit into host memory beside these instances."""
        limit, need = self.devices.topology.host_bytes, spec.footprint.host_bytes
        taken = sum(i.spec.footprint.host_bytes for i in beside if i.spec and not i.engine_gone)
        return limit is not None and need > 0 and taken + need > limit

    def room(self, spec: ModelSpec, *, beside: list[Instance]) -> bool:
        """Return whether the model may be placed somewhere and finds room there beside these instances."""
        fitting = {g.index for g in self.devices.topology.gpus if self.fits(spec, g.index, beside=beside)}
        return any(fitting.issuperset(gpu_indices(gpus)) for gpus in self.devices.sets(spec))

    def feasible(self, spec: ModelSpec, *, leaks: bool = False, without: Container[InstanceId] = ()) -> bool:
        """Return whether the model would fit if everybody left who is not pinned, and those ``without`` were not there.

        Where a driver says how much of leaked memory is still missing, it stands in the way only with ``leaks``.
        """
        present = [i for i in self.instances.values() if i.state is not State.UNLOADING and i.id not in without]
        leaked = [i for i in present if i.state is State.LEAKED and (leaks or self.devices.virtual)]
        pinned = [i for i in present if i.state is not State.LEAKED and i.model != spec.name and self.pinned(i.model)]
        stuck = leaked + pinned
        return not self.short_of_host(spec, beside=stuck) and self.room(spec, beside=stuck)

    def fits_surely(self, spec: ModelSpec, *, pins: bool = False) -> bool:
        """Return whether the model fits, beyond doubt, beside others if nobody stayed, or only who is pinned."""
        devices, need = self.devices, self.need(spec)
        stay = [i for i in self.instances.values() if pins and self.pinned(i.model)]
        fitting = {
            gpu.index
            for gpu in devices.topology.gpus
            if self.fits(spec, gpu.index, beside=stay) and self._left_by_others(gpu.index, pins=pins) >= need
        }
        placed = any(fitting.issuperset(gpu_indices(gpus)) for gpus in devices.sets(spec))
        return devices.up and placed and not self.short_of_host(spec, beside=[])

    def _left_by_others(self, gpu: int, *, pins: bool) -> int:
        """Return what a GPU has for engines, at least; with ``pins`` for those that are not pinned."""
        capacity, here = self.devices.capacity(gpu), self.holders(gpu)
        stay = [i for i in self.instances.values() if pins and self.pinned(i.model) and i.gpus >> gpu & 1]
        taken = sum(i.charge for i in stay)  # with what is only to begin there
        if not self.devices.topology.gpus[gpu].measured:
            return capacity - taken
        seen, memory = self.devices.read.get(gpu, (None, None))
        unsure = any(i.state is State.LEAKED or i.ready is None or seen is None or i.ready > seen for i in here)
        if memory is None or unsure:
            return 0
        return min(capacity, memory.free_bytes + sum(i.charge for i in here)) - taken

    def least_load_time(self, model: ModelName) -> Duration:
        """Return a lower bound of what any average of recent load times would be."""
        spec = self.catalog.models.get(model)
        if spec is not None and (spec.fetched or spec.local_weights):
            return min([*self.load_times.get(model, []), spec.load_estimate])
        measured = self.load_times.get(model, [])[-5:]
        return min(measured) if measured else spec.load_estimate if spec else Duration(0)
