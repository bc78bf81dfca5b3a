"""Holds every start and every release against what is really in the GPUs; an observer of the virtual node.

Rules that hold here:

* The core is to blame for what it could know: the devices as it was told of them, the readings it has heard, and the
  size of a model as configured or as it said it had measured. What others took since the last reading is no fault.
* Truth comes from the driver and from the facts and orders that pass by; the core's accounts are never read.
"""

from dataclasses import dataclass, field
from typing import NoReturn

from swapd.core.commands import Command, FootprintMeasured, Kill, Start, Stop, Transitioned
from swapd.core.events import (
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


@dataclass(slots=True)
class Audit:
    """One driver under watch."""

    driver: VirtualDriver
    #: the devices as the core was told of them last
    told: NodeTopology
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
                case Transitioned(after=State.GONE):
                    self._gone(command.instance)
                case FootprintMeasured():
                    self._measured[command.model] = (command.revision, command.measured)
                case _:
                    pass

    def _hear(self, event: Event) -> None:
        if isinstance(event, TopologyChanged):
            self.told = event.topology
        elif isinstance(event, GpuMemoryRead):
            self._heard = {reading.gpu: (event.taken, reading) for reading in event.readings}
        elif isinstance(event, _NOT_LOADING) and event.instance in self._lives:
            self._lives[event.instance].loading = False

    def _start(self, order: Start, now: Instant) -> None:
        if self.told.driver not in (DriverState.UP, DriverState.VIRTUAL):
            _wrong("placeable_only", f"{order} while the driver is {self.told.driver}")
        if order.gpus & ~self.told.placeable:
            _wrong("placeable_only", f"{order} on one of {self.told.gpus}")
        for life in self._lives.values():
            if life.loading and life.order is not None and life.order.gpus & order.gpus:
                _wrong("one_load_per_gpu", f"{order} beside {life.order}")
        for gpu in gpu_indices(order.gpus):
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
        need = min(self.driver.size(order), self._reckoned(order))
        if held + foreign + need > self.told.gpus[gpu].memory_bytes:
            _wrong("no_overcommit", f"{order}: GPU {gpu} has {held} held by engines, {foreign} by others")

    def _reckoned(self, order: Start) -> Bytes:
        revision, measured = self._measured.get(order.spec.name, ("", Bytes(0)))
        return measured if measured and revision == order.spec.revision else order.spec.footprint.bytes_per_gpu

    def _gone(self, instance: InstanceId) -> None:
        life = self._lives.pop(instance)
        if life.order is None or self.told.driver is not DriverState.UP:
            return
        for gpu in gpu_indices(life.order.gpus):
            known = self.told.gpus[gpu]
            if not known.measured or known.health is GpuHealth.LOST or gpu not in self._heard:
                continue
            taken, reading = self._heard[gpu]
            unlisted = reading.processes is not None and instance not in reading.processes
            left = self.driver.held_by(instance, taken)
            free = left <= max(SLACK, self.driver.size(life.order) // 8)
            if not (free or unlisted or self.driver.foreign_shrank(gpu, life.booked)):
                _wrong("shown_free", f"instance {instance} is gone, but GPU {gpu} still had {left} bytes of it")


def _wrong(law: str, detail: str) -> NoReturn:
    raise AuditError(f"{law}: {detail}")
