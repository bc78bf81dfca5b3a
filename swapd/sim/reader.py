"""Plays the room that asks the driver: readings at regular times and when ordered, and news of the devices.

Every fact comes a while after the moment it speaks of, and no reading begins at the moment of another fact: what is
in it is never in doubt. A reading that could not be made is answered without readings; regular readings are left out
meanwhile.
"""

from dataclasses import dataclass

from swapd.core.events import GpuMemoryRead, TopologyChanged
from swapd.core.ids import MILLISECOND, Duration, Instant, seconds
from swapd.core.topology import DriverState
from swapd.sim.driver import VirtualDriver


@dataclass(frozen=True, slots=True)
class ReadingBegins:
    """An ordered reading is made now."""

    at: Instant


@dataclass(slots=True)
class Reader:
    """Reads one driver."""

    driver: VirtualDriver
    #: between regular readings
    interval: Duration = seconds(5)
    #: from the first call of a reading to the core's ear
    latency: Duration = Duration(20 * MILLISECOND)
    #: from a call that hangs to the answer that it does
    patience: Duration = seconds(5)
    #: from a change of devices to the core's ear
    notice: Duration = seconds(1)
    #: when the next regular reading begins
    due: Instant = Instant(1)

    def regular(self) -> tuple[GpuMemoryRead, ...]:
        """Begin the reading that is due."""
        now = self.due
        self.due = Instant(now + self.interval)
        return (self._reading(now),) if self.driver.topology.driver is DriverState.UP else ()

    def ordered(self, now: Instant) -> ReadingBegins:
        """Say when a reading begins that the core has asked for now."""
        return ReadingBegins(Instant(now + 1))

    def begin(self, now: Instant) -> GpuMemoryRead:
        """Make an ordered reading."""
        if self.driver.topology.driver is DriverState.STALLED:
            return GpuMemoryRead(Instant(now + self.patience), now)
        return self._reading(now)

    def news(self, now: Instant) -> TopologyChanged:
        """Tell how the devices are now."""
        return TopologyChanged(Instant(now + self.notice), self.driver.topology)

    def _reading(self, now: Instant) -> GpuMemoryRead:
        return GpuMemoryRead(Instant(now + self.latency), now, self.driver.read(now))
