"""Plays GPUs whose memory is measured: engines fill them, give them back late, others come and go, drivers fail.

``GpuWorld`` keeps the truth about memory. The core learns of it by readings only, ``latency`` after they were taken.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from swapd.core import events as ev
from swapd.core.catalog import ModelSpec
from swapd.core.commands import Command, ReadMemory, Start
from swapd.core.ids import SECOND, Bytes, InstanceId, gpu_indices
from swapd.core.topology import DriverState, Gpu, GpuHealth, NodeTopology, PcieLevel
from swapd.core.view import GpuView
from tests.core.driver import GIB, Engine, World

LATENCY = 0.02


def gib(amount: float) -> Bytes:
    return Bytes(round(amount * GIB))


def node(
    count: int = 2, *, size: float = 80, links: Sequence[Sequence[int]] = (), host: float | None = None, **more: Any
) -> NodeTopology:
    """Return a node of equal GPUs whose driver is up; ``more`` goes to each GPU."""
    look = {"name": "NVIDIA H100 80GB HBM3", "compute_capability": (9, 0), "measured": True} | more
    gpus = tuple(Gpu(i, f"GPU-{i}", gib(size), numa=0 if i < (count + 1) // 2 else 1, **look) for i in range(count))
    levels = tuple(
        tuple(PcieLevel.NODE if gpus[i].numa == gpus[j].numa else PcieLevel.SYS for j in range(count))
        for i in range(count)
    )
    return NodeTopology(
        gpus,
        links=tuple(tuple(row) for row in links),
        levels=levels,
        host_bytes=None if host is None else gib(host),
        driver=DriverState.UP,
        generation=1,
    )


def linked(count: int, *groups: Iterable[int], links: int = 18) -> list[list[int]]:
    """Return the link matrix of GPUs that are fully linked within these groups."""
    rows = [[0] * count for _ in range(count)]
    for group in groups:
        members = list(group)
        for one in members:
            for two in members:
                if one != two:
                    rows[one][two] = links
    return rows


def with_gpu(devices: NodeTopology, index: int, **changes: Any) -> NodeTopology:
    gpus = list(devices.gpus)
    gpus[index] = replace(gpus[index], **changes)
    return replace(devices, gpus=tuple(gpus), generation=devices.generation + 1)


@dataclass
class Held:
    """What an engine holds."""

    gpus: int
    amount: Bytes
    listed: bool = True


class GpuWorld(World):
    """A World with a driver."""

    def __init__(
        self, specs: Iterable[ModelSpec] = (), *, devices: NodeTopology | None = None, **settings: Any
    ) -> None:
        super().__init__(specs, devices=node() if devices is None else devices, **settings)
        self.foreign: dict[int, Bytes] = {}
        self.held: dict[InstanceId, Held] = {}
        #: the driver tells which processes hold memory, and how much each
        self.lists = True
        self.figures = True
        #: … also of engines that have ended, until their memory is back
        self.ghosts = False
        #: share of an engine's memory that the driver tells by process
        self.told = 1.0
        #: readings that were ordered are answered
        self.answers_readings = True
        self.unreadable: set[int] = set()
        #: when readings were ordered
        self.ordered: list[float] = []

    # the truth

    def free(self, gpu: int) -> Bytes:
        taken = sum(held.amount for held in self.held.values() if held.gpus >> gpu & 1)
        return Bytes(self.devices.gpus[gpu].memory_bytes - self.foreign.get(gpu, 0) - taken)

    def _read(self, gpu: int) -> ev.GpuMemory:
        here = {number: held for number, held in self.held.items() if held.gpus >> gpu & 1 and held.listed}
        told = {
            number: Bytes(round(held.amount * self.told)) if self.figures else None
            for number, held in here.items()
            if held.amount
        }
        return ev.GpuMemory(gpu, self.devices.gpus[gpu].memory_bytes, self.free(gpu), told if self.lists else None)

    def reading(self, taken: int, latency: float = LATENCY) -> None:
        """Take a reading now and deliver it a moment later."""
        readable = [gpu.index for gpu in self.devices.gpus if gpu.placeable and gpu.index not in self.unreadable]
        up = self.devices.driver is DriverState.UP
        readings = tuple(self._read(gpu) for gpu in readable) if up else ()
        self.plan(taken / SECOND + latency, lambda: ev.GpuMemoryRead(self.now, type(self.now)(taken), readings))

    # incidents

    def at(self, at: float, change: Any) -> None:
        """Change the truth at a moment, without a word to the core."""

        def make() -> None:
            change()

        self.plan(at, make)

    def others_take(self, gpu: int, amount: float, at: float = 0) -> None:
        self.at(at, lambda: self.foreign.__setitem__(gpu, gib(amount)))

    def read(self, at: float) -> None:
        """Have the shell take one of its regular readings."""
        self.at(at, lambda: self.reading(self.now))

    def change(self, at: float, **changes: Any) -> None:
        """Change something of the topology, and tell the core."""

        def make() -> ev.Event:
            self.devices = replace(self.devices, generation=self.devices.generation + 1, **changes)
            return ev.TopologyChanged(self.now, self.devices)

        self.plan(at, make)

    def turn(self, gpu: int, health: GpuHealth, at: float, **changes: Any) -> None:
        """Give a GPU another health (and more), and tell the core."""

        def make() -> ev.Event:
            self.devices = with_gpu(self.devices, gpu, health=health, **changes)
            return ev.TopologyChanged(self.now, self.devices)

        self.plan(at, make)

    # the engines' side

    def _carry_out(self, command: Command) -> None:
        super()._carry_out(command)
        now = self.now / SECOND
        if isinstance(command, ReadMemory):
            self.ordered.append(round(now, 6))
            if self.answers_readings:
                self.reading(self.now)
        elif isinstance(command, Start):
            self._fill(command, now)

    def _fill(self, order: Start, now: float) -> None:
        """Let an engine take half of its memory at once, and all of it when it is ready."""
        engine = self.engines[str(order.spec.name)]
        size = order.spec.footprint.bytes_per_gpu if engine.size is None else gib(engine.size)
        held = self.held[order.instance] = Held(order.gpus, Bytes(size // 2))
        if not engine.hangs and engine.fails is None:

            def fill() -> None:
                if self.held.get(order.instance) is held and held.listed:
                    held.amount = size

            self.at(now + engine.load - 1e-6, fill)

    def _go(self, instance: InstanceId, moment: float, engine: Engine) -> None:
        held = self.held[instance]
        self.at(moment, lambda: setattr(held, "listed", self.ghosts))
        if engine.lag is not None:
            self.at(moment + engine.lag, lambda: self.held.pop(instance, None))
        super()._go(instance, moment, engine)

    # looking

    def gpu(self, index: int) -> GpuView:
        return self.core.view().gpus[index]

    def gpus_of(self, model: str) -> list[int]:
        """Return where a model is."""
        instance = self.model(model).instance
        assert instance is not None
        return list(gpu_indices(instance.gpus))
