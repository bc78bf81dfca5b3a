"""Makes the room of the GPUs from the configuration, and says to metrics how asking the driver goes.

With virtual devices there is no room: nothing is discovered and nothing is measured.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swapd.aio.supervise import Tasks
from swapd.config.compile import host_bytes
from swapd.config.schema import Settings
from swapd.core.events import Event
from swapd.core.ids import SECOND, InstanceId, Instant
from swapd.gpus.settings import GpuSettings, sees_host_pids
from swapd.history.store import History
from swapd.metrics.now import DriverStats

if TYPE_CHECKING:
    from swapd.gpus.room import Gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the room is given by the daemon."""

    post: Callable[[Event], None]
    now: Callable[[], Instant]
    tasks: Tasks
    #: the processes of all instances
    owners: Callable[[], Mapping[int, InstanceId]]
    history: History
    #: stands for NVML's bindings; ``None``: the real ones
    library: Any = None


def gpu_room(settings: Settings, around: Surroundings) -> "Gpus | None":
    """Return the room of this node's GPUs; ``None``: its devices are virtual."""
    devices = settings.devices
    if devices.virtual is not None:
        return None
    # NVML's bindings are large: a node without GPUs does without them
    from swapd.gpus.room import Gpus

    return Gpus(
        post=around.post,
        now=around.now,
        tasks=around.tasks,
        settings=GpuSettings(
            expected=devices.expected or 0,
            most_seen=around.history.most_gpus(),
            memory_bytes=devices.memory,
            host_bytes=host_bytes(devices),
            trust_pids=sees_host_pids(),
        ),
        library=around.library,
        owners=around.owners,
        seen=around.history.gpus_seen,
    )


def driver_stats(room: "Gpus | None", now: Instant) -> DriverStats | None:
    """Return how asking the driver goes; ``None``: the devices are virtual."""
    if room is None:
        return None
    stats = room.stats()
    last, stalled = stats.last_good_poll, stats.stalled_since
    return DriverStats(
        up=stats.up,
        stalled_s=0.0 if stalled is None else (now - stalled) / SECOND,
        errors=dict(stats.errors),
        last_read_age_s=None if last is None else (now - last) / SECOND,
    )
