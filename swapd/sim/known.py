"""Keeps what a core was told and what it said: devices, readings, sizes, the life of each instance. Judges nothing."""

from dataclasses import dataclass, field

from swapd.core.catalog import Catalog, ModelSpec
from swapd.core.commands import FootprintMeasured, Start, Transitioned
from swapd.core.events import (
    CatalogChanged,
    EngineGone,
    Event,
    FootprintsKnown,
    GpuMemory,
    GpuMemoryRead,
    ProcessesGone,
    TopologyChanged,
)
from swapd.core.ids import Bytes, Duration, GpuSet, InstanceId, Instant, ModelName, gpu_indices
from swapd.core.reasons import State
from swapd.core.topology import NodeTopology

_NEVER = Instant(-1)


@dataclass(slots=True)
class Life:
    """What is known of one instance."""

    model: ModelName
    gpus: GpuSet
    booked: Instant
    #: what may be reckoned with on each GPU
    need: Bytes
    state: State = State.RESERVED
    #: since when it is in this state
    since: Instant = Instant(0)
    ready: Instant | None = None
    order: Start | None = None
    #: its size was measured, or could not be told by the reading that should have
    measured: bool = False
    #: when its processes were gone
    gone: Instant | None = None
    #: nothing of it is left
    engine_gone: bool = False
    #: GPUs that once could not be used, or whose trusted list has shown the dead instance no more
    excused: int = 0


@dataclass(slots=True)
class Known:
    """What is known of one node."""

    #: the devices as they were told last
    topology: NodeTopology
    catalog: Catalog
    lives: dict[InstanceId, Life] = field(default_factory=dict)
    #: instances that are gone, and since when
    past: dict[InstanceId, tuple[Instant, Life]] = field(default_factory=dict)
    #: what the last reading said of each GPU, and when it was taken; a GPU that it left out is not known now
    heard: dict[int, tuple[Instant, GpuMemory]] = field(default_factory=dict)
    _taken: dict[int, Instant] = field(default_factory=dict)
    #: sizes that were measured or told, with the revision
    _sizes: dict[ModelName, tuple[str, Bytes]] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        """Enter a fact."""
        match event:
            case TopologyChanged():
                self.topology = event.topology
                for life in self.lives.values():
                    life.excused |= life.gpus & ~self.topology.placeable
                for gpu in gpu_indices(GpuSet(self.topology.all_gpus & ~self.topology.placeable)):
                    self.heard.pop(gpu, None)
                    self._taken.pop(gpu, None)
            case CatalogChanged():
                self.catalog = event.catalog
                self._sizes = {
                    name: size
                    for name, size in self._sizes.items()
                    if name not in event.catalog.models or event.catalog.models[name].revision == size[0]
                }
            case FootprintsKnown():
                for model, size in event.bytes_per_gpu.items():
                    self._recall(model, size)
            case GpuMemoryRead():
                self._read(event)
            case ProcessesGone() | EngineGone() if event.instance in self.lives:
                life = self.lives[event.instance]
                life.engine_gone = life.engine_gone or isinstance(event, EngineGone)
                life.gone = event.at if life.gone is None else life.gone
            case _:
                pass

    def book(self, note: Transitioned, now: Instant) -> None:
        """Enter a new instance."""
        spec = self.catalog.models.get(note.model)
        need = Bytes(0) if spec is None else self.size(spec)
        self.lives[note.instance] = Life(note.model, note.gpus, now, need)

    def move(self, note: Transitioned, now: Instant, memory: Duration) -> Life:
        """Enter the step of an instance; those that are gone are remembered for the time of ``memory``."""
        life = self.lives[note.instance]
        life.state, life.since = note.after, now
        if note.before is State.LOADING and note.after is State.READY:
            life.ready = now
        if note.after is State.GONE:
            del self.lives[note.instance]
            self.past = {key: past for key, past in self.past.items() if past[0] > now - memory}
            self.past[note.instance] = now, life
        return life

    def forget_removed(self) -> None:
        """Forget the sizes of models that are no longer configured, once nothing is left of them."""
        there = {*self.catalog.models, *(life.model for life in self.lives.values())}
        self._sizes = {name: size for name, size in self._sizes.items() if name in there}

    def measure(self, note: FootprintMeasured) -> Life:
        """Enter the size of an instance and of its model."""
        life = self.lives[note.instance]
        life.measured = True
        self._sizes[note.model] = (note.revision, note.measured)
        return life

    def size(self, spec: ModelSpec) -> Bytes:
        """Return what a model may be reckoned with on each GPU."""
        revision, measured = self._sizes.get(spec.name, ("", Bytes(0)))
        return measured if measured and revision == spec.revision else spec.footprint.bytes_per_gpu

    def near(self, life: Life) -> list[Life]:
        """Return the other instances on the GPUs of one."""
        return [other for other in self.lives.values() if other.gpus & life.gpus and other is not life]

    def taken(self, gpu: int) -> Instant:
        """Return when the last reading of a GPU was taken; if it is not known now, before anything."""
        return self.heard[gpu][0] if gpu in self.heard else _NEVER

    def _recall(self, model: ModelName, size: Bytes) -> None:
        spec = self.catalog.models.get(model)
        if spec is not None and (model not in self._sizes or self._sizes[model][0] != spec.revision):
            self._sizes[model] = spec.revision, size

    def _read(self, event: GpuMemoryRead) -> None:
        """Take the last word on each GPU; excuse those whose list does not show a dead instance."""
        told = {reading.gpu: reading for reading in event.readings}
        for gpu in gpu_indices(self.topology.placeable):
            if event.taken < self._taken.get(gpu, event.taken):
                continue
            self.heard.pop(gpu, None)
            if gpu not in told:
                continue
            self.heard[gpu] = event.taken, told[gpu]
            self._taken[gpu] = event.taken
            listed = told[gpu].processes
            for instance, life in self.lives.items():
                dead = life.gone is not None and life.gone <= event.taken and life.gpus >> gpu & 1
                if dead and listed is not None and instance not in listed:
                    life.excused |= 1 << gpu
