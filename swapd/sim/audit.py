"""Holds every start and every release against what is really in the GPUs; an observer of the virtual node.

Rules that hold here:

* The core is to blame for what it could know: the devices as it was told of them, the readings it has heard, and the
  size of a model as configured or as it said it had measured. What others took since the last reading is no fault.
* Truth comes from the driver and from the facts and orders that pass by; the core's accounts are never read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from swapd.core.catalog import ModelSpec
from swapd.core.commands import Command, Evicted, FootprintMeasured, Kill, Start, Stop, Transitioned
from swapd.core.events import (
    CatalogChanged,
    Event,
    GpuMemory,
    GpuMemoryRead,
    InstanceExited,
    InstanceReady,
    LoadFailed,
    ProcessesGone,
    TopologyChanged,
)
from swapd.core.ids import Bytes, InstanceId, Instant, ModelName, gpu_indices
from swapd.core.reasons import State
from swapd.core.topology import DriverState, GpuHealth, NodeTopology
from swapd.sim.driver import VirtualDriver

#: what may be left of an engine when its memory counts as free: this, or an eighth of it
SLACK = 512 << 20

_NOT_LOADING = (InstanceReady, LoadFailed, InstanceExited, ProcessesGone)


class AuditError(AssertionError):
    """The core has promised, started or freed what the truth does not bear out."""


@dataclass(slots=True)
class _Life:
    """What is known of one instance."""

    booked: Instant
    order: Start | None = None
    loading: bool = False
    leaked: bool = False


@dataclass(slots=True)
class Audit:
    """One driver under watch."""

    driver: VirtualDriver
    #: the devices as the core was told of them last
    told: NodeTopology
    specs: Mapping[ModelName, ModelSpec]
    _lives: dict[InstanceId, _Life] = field(default_factory=dict)
    #: the last reading of each GPU that could be read in the last reading, and when it was taken
    _heard: dict[int, tuple[Instant, GpuMemory]] = field(default_factory=dict)
    #: sizes the core said it had measured, with the revision
    _measured: dict[ModelName, tuple[str, Bytes]] = field(default_factory=dict)

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Judge one step."""
        self._hear(event)
        for command in commands:
            match command:
                case Start():
                    self._start(command, event.at)
                case Stop() | Kill():
                    self._lives[command.instance].loading = False
                case Transitioned(before=None):
                    self._lives[command.instance] = _Life(event.at)
                    self._booked(command, commands, event.at)
                case Transitioned(after=State.LEAKED):
                    self._lives[command.instance].leaked = True
                case Transitioned(after=State.GONE):
                    self._gone(command.instance)
                case FootprintMeasured():
                    self._measured[command.model] = (command.revision, command.measured)
                case _:
                    pass
        if isinstance(event, GpuMemoryRead):
            self._leaks_come_back(event.taken)

    def _hear(self, event: Event) -> None:
        if isinstance(event, TopologyChanged):
            self.told = event.topology
        elif isinstance(event, CatalogChanged):
            self.specs = event.catalog.models
        elif isinstance(event, GpuMemoryRead):
            self._heard = {reading.gpu: (event.taken, reading) for reading in event.readings}
        elif isinstance(event, _NOT_LOADING) and event.instance in self._lives:
            self._lives[event.instance].loading = False

    def _booked(self, note: Transitioned, commands: tuple[Command, ...], now: Instant) -> None:
        """Let nobody leave for a model that would not fit beside what others hold."""
        spec = self.specs.get(note.model)
        if spec is None or not any(isinstance(c, Evicted) and c.successor == note.model for c in commands):
            return
        need = min(self.driver.sizes.get(spec.name, spec.footprint.bytes_per_gpu), self._reckoned(spec))
        for gpu in gpu_indices(note.gpus):
            if gpu in self._heard:
                foreign = min(self.driver.foreign(gpu, self._heard[gpu][0]), self.driver.foreign(gpu, now))
                if need + foreign - self._blur(gpu) > self.told.gpus[gpu].memory_bytes:
                    _wrong("foreign_evicts_nobody", f"{note}: others hold {foreign} on GPU {gpu}, it needs {need}")

    def _blur(self, gpu: int) -> int:
        """Return by how much engines on a GPU differ from what they declare, or are not there yet."""
        here = [engine for engine in self.driver.engines.values() if engine.order.gpus >> gpu & 1]
        loading = sum(engine.size for engine in here if not engine.ready)
        return loading + sum(abs(e.size - e.order.spec.footprint.bytes_per_gpu) for e in here)

    def _leaks_come_back(self, taken: Instant) -> None:
        """Let leaked memory count again once a reading shows a GPU without anybody on it."""
        for instance, life in self._lives.items():
            if life.leaked and life.order is not None and all(self._bare(gpu, taken) for gpu in _gpus(life.order)):
                _wrong("leaks_come_back", f"instance {instance} still counts as leaked at a reading taken at {taken}")

    def _bare(self, gpu: int, taken: Instant) -> bool:
        engines = [engine for engine in self.driver.engines.values() if engine.order.gpus >> gpu & 1]
        nobody = not any(engine.held(taken) or engine.ended is None for engine in engines)
        return gpu in self._heard and nobody and not self.driver.foreign(gpu, taken)

    def _start(self, order: Start, now: Instant) -> None:
        if self.told.driver not in (DriverState.UP, DriverState.VIRTUAL):
            _wrong("placeable_only", f"{order} while the driver is {self.told.driver}")
        if order.gpus & ~self.told.placeable:
            _wrong("placeable_only", f"{order} on one of {self.told.gpus}")
        for life in self._lives.values():
            if life.loading and life.order is not None and life.order.gpus & order.gpus:
                _wrong("one_load_per_gpu", f"{order} beside {life.order}")
        for gpu in _gpus(order):
            if self.told.gpus[gpu].measured:
                self._has_room(order, gpu, now)
        self._lives[order.instance].order = order
        self._lives[order.instance].loading = True

    def _has_room(self, order: Start, gpu: int, now: Instant) -> None:
        if gpu not in self._heard:
            _wrong("no_overcommit", f"{order}: GPU {gpu} was not in the last reading")
        taken, _ = self._heard[gpu]
        foreign = min(self.driver.foreign(gpu, taken), self.driver.foreign(gpu, now))
        held = self.driver.held_on(gpu, now)
        need = min(self.driver.size(order), self._reckoned(order.spec))
        if held + foreign + need > self.told.gpus[gpu].memory_bytes:
            _wrong("no_overcommit", f"{order}: GPU {gpu} has {held} held by engines, {foreign} by others")

    def _reckoned(self, spec: ModelSpec) -> Bytes:
        """Return the size the core may reckon with."""
        revision, measured = self._measured.get(spec.name, ("", Bytes(0)))
        return measured if measured and revision == spec.revision else spec.footprint.bytes_per_gpu

    def _gone(self, instance: InstanceId) -> None:
        life = self._lives.pop(instance)
        if life.order is None or self.told.driver is not DriverState.UP:
            return
        for gpu in _gpus(life.order):
            known = self.told.gpus[gpu]
            if not known.measured or known.health is GpuHealth.LOST or gpu not in self._heard:
                continue
            taken, reading = self._heard[gpu]
            unlisted = reading.processes is not None and instance not in reading.processes
            left = self.driver.held_by(instance, taken)
            free = left <= max(SLACK, self.driver.size(life.order) // 8)
            if not (free or unlisted or self.driver.foreign_shrank(gpu, life.booked)):
                _wrong("shown_free", f"instance {instance} is gone, but GPU {gpu} still had {left} bytes of it")


def _gpus(order: Start) -> tuple[int, ...]:
    return tuple(gpu_indices(order.gpus))


def _wrong(law: str, detail: str) -> NoReturn:
    raise AuditError(f"{law}: {detail}")
