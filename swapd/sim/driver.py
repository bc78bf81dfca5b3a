"""Plays the GPUs and their driver under virtual time: who really holds how much memory, and what a reading says of it.

Rules that hold here:

* The truth is kept here. It comes from starts, ends of processes and incidents; the core's accounts are never read.
* An engine's memory rises from its start to its ready, up to its true size, which the configuration need not know. It
  stays until the driver gives it back, some time after the processes are gone. Nobody holds more than there is.
* A reading tells the truth of one moment. A GPU that is off the bus is not in it; without a driver there is none.
* Driver and devices are described as discovery would describe them; when the core hears of it is not decided here.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from swapd.core.commands import Start
from swapd.core.events import GpuMemory
from swapd.core.ids import Bytes, InstanceId, Instant, ModelName, gpu_indices, seconds
from swapd.core.topology import DriverState, GpuHealth, NodeTopology

#: how long it is remembered what an engine has held that is gone
MEMORY = seconds(600)


@dataclass(frozen=True, slots=True)
class ForeignMemory:
    """From now on others hold this much on a GPU, or as much of it as is free."""

    at: Instant
    gpu: int
    amount: Bytes


@dataclass(frozen=True, slots=True)
class HealthTurns:
    """A GPU leaves the bus, reports a fault, or is sound again."""

    at: Instant
    gpu: int
    health: GpuHealth


@dataclass(frozen=True, slots=True)
class DriverTurns:
    """The driver can be asked from now on, or no longer."""

    at: Instant
    state: DriverState


@dataclass(frozen=True, slots=True)
class ListsTurn:
    """The driver's process lists can be trusted from now on, or no longer."""

    at: Instant
    trusted: bool


Incident = ForeignMemory | HealthTurns | DriverTurns | ListsTurn
"""What happens to the devices without anybody's order."""


@dataclass(slots=True)
class Engine:
    """What one engine holds, on each of its GPUs alike."""

    order: Start
    #: once it is ready
    size: Bytes
    started: Instant
    #: when its load has come to its end
    full: Instant
    ready: bool = False
    #: when the last of its processes ended
    ended: Instant | None = None
    #: when the driver gives its memory back; ``None``: it does not by itself
    back: Instant | None = None

    def held(self, at: Instant) -> Bytes:
        """Return the bytes it holds on one GPU."""
        if self.back is not None and at >= self.back:
            return Bytes(0)
        if self.ready:
            return self.size
        passed = max(0, (at if self.ended is None else min(at, self.ended)) - self.started)
        return Bytes(min(self.size, self.size * passed // max(1, self.full - self.started)))


class VirtualDriver:
    """The GPUs of a node and what is in their memory."""

    def __init__(
        self,
        topology: NodeTopology,
        *,
        sizes: Mapping[ModelName, Bytes] | None = None,
        state: DriverState = DriverState.UP,
        trusted: bool = True,
        ghosts: bool = False,
    ) -> None:
        #: as discovery sees it now; before the driver was there for the first time without a GPU
        self.topology = replace(topology, driver=state)
        #: true size per GPU of the models that take other than they declare
        self.sizes = sizes or {}
        self.trusted = trusted
        #: the process lists show an engine until its memory is back; else until its processes end
        self.ghosts = ghosts
        self.engines: dict[InstanceId, Engine] = {}
        self._foreign: list[list[tuple[Instant, Bytes]]] = [[(Instant(0), Bytes(0))] for _ in topology.gpus]
        self._unseen = topology.gpus if state is not DriverState.UP else ()
        if self._unseen:
            self.topology = replace(self.topology, gpus=(), links=(), levels=())
        self._whole = topology

    def start(self, order: Start, now: Instant, full: Instant) -> None:
        """Let an engine load that is ``full`` at that moment."""
        self.engines = {key: e for key, e in self.engines.items() if e.back is None or e.back > now - MEMORY}
        self.engines[order.instance] = Engine(order, self.size(order), now, full)

    def size(self, order: Start) -> Bytes:
        """Return what the engine of an order really takes on each GPU."""
        return self.sizes.get(order.spec.name, order.spec.footprint.bytes_per_gpu)

    def fits(self, instance: InstanceId, now: Instant) -> bool:
        """Say whether an engine gets all the memory it wants."""
        engine = self.engines[instance]
        if engine.ready:
            return True
        rest = engine.size - engine.held(now)
        return all(self._used(gpu, now) + rest <= self._capacity(gpu) for gpu in gpu_indices(engine.order.gpus))

    def ready(self, instance: InstanceId) -> None:
        """Let an engine hold all it wants."""
        self.engines[instance].ready = True

    def end(self, instance: InstanceId, now: Instant, back: Instant | None) -> None:
        """End the processes of an engine; the driver gives its memory ``back`` then."""
        engine = self.engines.get(instance)
        if engine is not None and engine.ended is None:
            engine.ended, engine.back = now, back

    def give_back(self, instance: InstanceId, now: Instant) -> None:
        """Let the memory of an ended engine be free now."""
        engine = self.engines.get(instance)
        if engine is not None and engine.ended is not None and engine.held(now):
            engine.back = now

    def on(self, gpu: int) -> list[InstanceId]:
        """Return the engines with a process on a GPU."""
        return [key for key, e in self.engines.items() if e.ended is None and e.order.gpus >> gpu & 1]

    def all_on(self, gpu: int) -> list[InstanceId]:
        """Return the engines that are, or were lately, on a GPU."""
        return [key for key, e in self.engines.items() if e.order.gpus >> gpu & 1]

    def held_by(self, instance: InstanceId, at: Instant) -> Bytes:
        """Return what an engine holds on each of its GPUs."""
        engine = self.engines.get(instance)
        return engine.held(at) if engine else Bytes(0)

    def held_on(self, gpu: int, at: Instant) -> Bytes:
        """Return what all engines together hold on a GPU."""
        return Bytes(sum(e.held(at) for e in self.engines.values() if e.order.gpus >> gpu & 1))

    def foreign(self, gpu: int, at: Instant) -> Bytes:
        """Return what others held on a GPU at a moment, present or past."""
        log = self._foreign[gpu]
        return log[bisect_right(log, at, key=lambda entry: entry[0]) - 1][1]

    def foreign_shrank(self, gpu: int, since: Instant) -> bool:
        """Say whether others have given memory back since a moment: then a reading cannot tell whose it was."""
        log = [amount for at, amount in self._foreign[gpu] if at > since]
        return any(after < before for before, after in pairwise([self.foreign(gpu, since), *log]))

    def foreign_changed(self, gpu: int, since: Instant) -> bool:
        """Say whether others have taken memory or given it back since a moment."""
        return any(at > since for at, _ in self._foreign[gpu])

    def readable(self, gpu: int) -> bool:
        """Say whether a reading would tell of a GPU."""
        known = self.topology.driver is DriverState.UP and gpu < len(self.topology.gpus)
        return known and self.topology.gpus[gpu].measured and self.topology.gpus[gpu].health is not GpuHealth.LOST

    def read(self, now: Instant) -> tuple[GpuMemory, ...]:
        """Return what the driver says now."""
        used = [self.foreign(gpu, now) for gpu in range(len(self._foreign))]
        listed: list[dict[InstanceId, Bytes | None]] = [{} for _ in used]
        for key, engine in self.engines.items():
            amount = engine.held(now)
            for gpu in gpu_indices(engine.order.gpus) if amount else ():
                used[gpu] = Bytes(used[gpu] + amount)
                if self.ghosts or engine.ended is None:
                    listed[gpu][key] = amount
        return tuple(
            GpuMemory(
                gpu,
                self._capacity(gpu),
                Bytes(max(0, self._capacity(gpu) - used[gpu])),
                listed[gpu] if self.trusted else None,
            )
            for gpu in range(len(used))
            if self.readable(gpu)
        )

    def befall(self, incident: Incident) -> bool:
        """Let something happen; return whether discovery has news."""
        now = incident.at
        match incident:
            case ForeignMemory():
                most = self._capacity(incident.gpu) - self.held_on(incident.gpu, now)
                self._foreign[incident.gpu].append((now, Bytes(max(0, min(incident.amount, most)))))
                return False
            case ListsTurn():
                self.trusted = incident.trusted
                return False
            case HealthTurns():
                self._turn_health(incident)
            case DriverTurns():
                self._turn_driver(incident.state)
        return True

    def heal(self, now: Instant) -> None:
        """Make every GPU sound and empty but for living engines, and have the driver answer."""
        for instance in self.engines:
            self.give_back(instance, now)
        self._turn_driver(DriverState.UP)
        for gpu in self._whole.gpus:
            self._foreign[gpu.index].append((now, Bytes(0)))
            if self.topology.gpus[gpu.index].health is not gpu.health:
                self._turn_health(HealthTurns(now, gpu.index, gpu.health))

    def _turn_health(self, incident: HealthTurns) -> None:
        gpus = list(self.topology.gpus)
        if incident.gpu >= len(gpus):
            return
        before = gpus[incident.gpu].health
        why = "" if incident.health is GpuHealth.HEALTHY else f"made {incident.health.value} by the simulator"
        gpus[incident.gpu] = replace(gpus[incident.gpu], health=incident.health, why=why)
        if incident.health is GpuHealth.HEALTHY and before in (GpuHealth.LOST, GpuHealth.FAILED):
            self._reset(incident.gpu, incident.at)
        self._describe(replace(self.topology, gpus=tuple(gpus)))

    def _reset(self, gpu: int, now: Instant) -> None:
        """Empty a GPU that was reset but for engines whose processes live."""
        self._foreign[gpu].append((now, Bytes(0)))
        for instance, engine in self.engines.items():
            if engine.order.gpus >> gpu & 1:
                self.give_back(instance, now)

    def _turn_driver(self, state: DriverState) -> None:
        topology = replace(self.topology, driver=state, trouble="" if state is DriverState.UP else state.value)
        if state is DriverState.UP and self._unseen:
            topology = replace(topology, gpus=self._unseen, links=self._whole.links, levels=self._whole.levels)
            self._unseen = ()
        self._describe(topology)

    def _describe(self, topology: NodeTopology) -> None:
        if topology != self.topology:
            self.topology = replace(topology, generation=self.topology.generation + 1)

    def _used(self, gpu: int, at: Instant) -> int:
        return self.held_on(gpu, at) + self.foreign(gpu, at)

    def _capacity(self, gpu: int) -> Bytes:
        return self._whole.gpus[gpu].memory_bytes
