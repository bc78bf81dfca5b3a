"""Plays the devices in a dialogue: true memory, readings that are made early and told late, GPUs that come and go.

The moves take plain numbers, as those of the dialogue. What is true of the devices is kept by the simulator's driver;
nothing false is read of it, but readings come early, late, or never.
"""

from dataclasses import dataclass, field

from swapd.core.commands import Command, ReadMemory, Start
from swapd.core.events import Event, GpuMemoryRead, InstanceReady, LoadFailed, ProcessesGone, TopologyChanged
from swapd.core.ids import Bytes, Instant, seconds
from swapd.core.reasons import LoadFailure
from swapd.core.topology import DriverState, GpuHealth, NodeTopology
from swapd.sim.driver import DriverTurns, ForeignMemory, HealthTurns, Incident, ListsTurn, VirtualDriver

#: an engine that is not ready by then holds all it wants all the same
LOAD = seconds(8)

_HEALTH = (GpuHealth.LOST, GpuHealth.FAILED, GpuHealth.DEGRADED, GpuHealth.MIG)
_OUTAGES = (DriverState.STALLED, DriverState.RELEASED, DriverState.NOT_LOADED)


@dataclass(slots=True)
class DeviceTalk:
    """The devices of one dialogue."""

    driver: VirtualDriver
    #: the devices as the core was told of them last
    told: NodeTopology
    #: readings ordered and not begun
    asked: int = 0
    #: readings begun and not told
    begun: list[GpuMemoryRead] = field(default_factory=list)

    def happens(self, event: Event) -> Event:
        """Book what is true of a fact that is being told; return what is told instead if it cannot be true."""
        match event:
            case InstanceReady() if event.instance in self.driver.engines:
                if not self.driver.fits(event.instance, event.at):
                    return LoadFailed(event.at, event.instance, LoadFailure.EXITED, "out of memory")
                self.driver.ready(event.instance)
            case ProcessesGone():
                self.driver.end(event.instance, event.at, None)
            case TopologyChanged():
                self.told = event.topology
            case _:
                pass
        return event

    def carry_out(self, command: Command, now: Instant) -> None:
        """Take an order that concerns the devices."""
        match command:
            case Start():
                self.driver.start(command, now, Instant(now + LOAD))
            case ReadMemory():
                self.asked += 1
            case _:
                pass

    def begin(self, now: Instant) -> None:
        """Make a reading: the one that was ordered, or a regular one."""
        self.asked = max(0, self.asked - 1)
        self.begun.append(GpuMemoryRead(now, now, self.driver.read(now)))

    def end(self, which: int, now: Instant) -> GpuMemoryRead:
        """Return one of the readings that were begun, to be told now."""
        reading = self.begun.pop(which % len(self.begun))
        return GpuMemoryRead(now, reading.taken, reading.readings)

    def release(self, which: int, now: Instant) -> None:
        """Give back the memory of one of the engines that have ended."""
        ended = [key for key, engine in self.driver.engines.items() if engine.ended is not None and engine.held(now)]
        if ended:
            self.driver.give_back(ended[which % len(ended)], now)

    def befall(self, kind: int, gpu: int, now: Instant) -> None:
        """Let something happen to the devices, or be over."""
        gpus = self.driver.topology.gpus
        gpu %= len(gpus)
        sound = gpus[gpu].health is GpuHealth.HEALTHY
        up = self.driver.topology.driver is DriverState.UP
        which, how = kind % 5, kind // 5
        incidents: tuple[Incident, ...] = (
            ForeignMemory(now, gpu, Bytes(gpus[gpu].memory_bytes * (how % 8) // 8)),
            ForeignMemory(now, gpu, Bytes(0)),
            HealthTurns(now, gpu, _HEALTH[how % 4] if sound else GpuHealth.HEALTHY),
            DriverTurns(now, _OUTAGES[how % 3] if up else DriverState.UP),
            ListsTurn(now, trusted=not self.driver.trusted),
        )
        self.driver.befall(incidents[which])

    def recover(self, gpu: int, now: Instant) -> None:
        """Undo what is wrong with the driver, or else with a GPU."""
        topology = self.driver.topology
        if topology.driver is not DriverState.UP:
            self.driver.befall(DriverTurns(now, DriverState.UP))
        else:
            self.driver.befall(HealthTurns(now, gpu % len(topology.gpus), GpuHealth.HEALTHY))

    def news(self, now: Instant) -> TopologyChanged | None:
        """Return the devices as they are, if the core was told otherwise."""
        return None if self.told == self.driver.topology else TopologyChanged(now, self.driver.topology)

    def heal(self, now: Instant) -> None:
        """Make every device sound."""
        self.driver.heal(now)
        self.driver.befall(ListsTurn(now, trusted=True))
