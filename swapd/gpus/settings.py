"""Names what the room is told at its start and what it shows to metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from swapd.core.ids import SECOND, Bytes, Duration, Instant
from swapd.core.topology import DriverState
from swapd.gpus.health import Patience

#: inode of the kernel's first process namespace, ``PROC_PID_INIT_INO`` in Linux ``include/linux/proc_ns.h``
_FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """How the GPUs of this node are watched."""

    #: where the host's ``/sys`` is found; another one than ``/`` in a container that has it mounted elsewhere
    host_root: Path = Path("/")
    #: GPUs the node should have, as configured; 0: the most that were ever seen
    expected: int = 0
    #: the most that were ever seen, by earlier runs
    most_seen: int = 0
    #: memory of a GPU whose driver does not tell; ``None``: such a GPU takes no model
    memory_bytes: Bytes | None = None
    #: host memory that models may take; ``None``: not accounted
    host_bytes: Bytes | None = None
    #: the driver's process ids mean the same here: swapd runs in the first process namespace (see ``sees_host_pids``)
    trust_pids: bool = False
    #: between two polls of memory, processes and health
    poll_period: Duration = Duration(5 * SECOND)
    #: between two discoveries when nothing calls for one
    discovery_period: Duration = Duration(300 * SECOND)
    #: … and while a GPU is lost: a poll has no handle for it, so only a discovery can find it back
    search_period: Duration = Duration(30 * SECOND)
    #: a poll that calls for another one, or for a discovery, gets it after this; limits what a storm of Xids can cause
    hurry: Duration = SECOND
    #: a poll, an Init or a Shutdown that takes longer has stalled; also how long an order to read memory may wait
    poll_deadline: Duration = Duration(10 * SECOND)
    #: a discovery makes thousands of calls
    discovery_deadline: Duration = Duration(60 * SECOND)
    #: the event thread looks up from its wait this often; so long may letting go of NVML take
    event_wait: Duration = Duration(SECOND // 4)
    #: before the first and between later tries to reach a driver, doubled each time
    retry_first: Duration = SECOND
    retry_cap: Duration = Duration(60 * SECOND)
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True, slots=True)
class GpuStats:
    """What metrics show of the driver; the GPUs themselves are in the topology."""

    state: DriverState
    #: since when a call has not come back; ``None``: none is late
    stalled_since: Instant | None
    #: polls that came to their end
    polls: int
    #: when the last poll that read at least one GPU ended; ``None``: never
    last_good_poll: Instant | None
    discoveries: int
    #: calls that failed, by function and name of the error
    errors: Mapping[tuple[str, str], int]
    #: Xids by GPU (``None``: could not be told) and number
    xids: Mapping[tuple[int | None, int], int]

    @property
    def up(self) -> bool:
        """Whether the driver can be asked."""
        return self.state is DriverState.UP


def sees_host_pids(proc: Path = Path("/proc")) -> bool:
    """Whether this process lives in the kernel's first process namespace, whose ids the driver lists."""
    try:
        return (proc / "self/ns/pid").readlink().name == f"pid:[{_FIRST_PID_NAMESPACE}]"
    except OSError:
        return False
