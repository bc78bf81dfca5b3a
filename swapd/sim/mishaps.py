"""Makes what befalls the devices of a run: GPUs lost and healed, faults, memory others take, a driver that fails."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from swapd.core.ids import Bytes, Duration, Instant, seconds
from swapd.core.topology import DriverState, GpuHealth, NodeTopology
from swapd.sim.driver import DriverTurns, ForeignMemory, HealthTurns, Incident, ListsTurn

_OUTAGES = (DriverState.STALLED, DriverState.RELEASED, DriverState.FAILED, DriverState.MISMATCH)


@dataclass(frozen=True, slots=True)
class Mishaps:
    """How many of each are strewn over the run; each is over after a while."""

    #: a GPU leaves the bus
    losses: int = 0
    #: a GPU reports a fault
    faults: int = 0
    #: processes of others take memory, up to all of a GPU
    foreigners: int = 0
    #: the driver cannot be asked
    outages: int = 0
    #: the process lists cannot be trusted
    mistrusts: int = 0
    #: none of them lasts longer
    longest: Duration = seconds(300)

    def incidents(self, topology: NodeTopology, duration: Duration, chance: random.Random) -> Iterator[Incident]:
        """Yield them, in no particular order."""
        gpus = topology.gpus
        for health, count in ((GpuHealth.LOST, self.losses), (GpuHealth.FAILED, self.faults)):
            for _ in range(count):
                at, over = self._span(duration, chance)
                gpu = chance.choice(gpus).index
                yield HealthTurns(at, gpu, health)
                yield HealthTurns(over, gpu, GpuHealth.HEALTHY)
        for _ in range(self.foreigners):
            at, over = self._span(duration, chance)
            taken = chance.choice(gpus)
            yield ForeignMemory(at, taken.index, Bytes(chance.randrange(1, taken.memory_bytes)))
            yield ForeignMemory(over, taken.index, Bytes(0))
        for _ in range(self.outages):
            at, over = self._span(duration, chance)
            yield DriverTurns(at, chance.choice(_OUTAGES))
            yield DriverTurns(over, DriverState.UP)
        for _ in range(self.mistrusts):
            at, over = self._span(duration, chance)
            yield ListsTurn(at, trusted=False)
            yield ListsTurn(over, trusted=True)

    def _span(self, duration: Duration, chance: random.Random) -> tuple[Instant, Instant]:
        at = Instant(chance.randrange(duration))
        return at, Instant(at + chance.randrange(1, self.longest))
