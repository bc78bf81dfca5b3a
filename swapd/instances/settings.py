"""Names what the room is told at its start and what it shows of an instance."""

from dataclasses import dataclass
from pathlib import Path

from swapd.core.ids import SECOND, Bytes, Duration
from swapd.core.moves import HOOK_ALLOWANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceSettings:
    """How instances are run on this node."""

    #: one log file per model, and one older one beside it; created if absent
    log_dir: Path
    #: engines listen on these ports of the loopback address, both ends included
    first_port: int = 20_000
    last_port: int = 29_999
    #: never given to an engine: the daemon's own
    reserved_ports: frozenset[int] = frozenset()
    #: a log file that has grown beyond this is moved aside
    log_bytes: Bytes = Bytes(16 * 2**20)
    #: how often a ready instance is probed …
    watch_period: Duration = Duration(10 * SECOND)
    #: … and how many probes in a row must fail before it counts as unresponsive
    watch_failures: int = 3
    #: how often log and I/O of a loading instance are looked at, and the size of every log
    look_period: Duration = SECOND
    #: for one warm-up request
    warmup_timeout: Duration = Duration(60 * SECOND)
    #: a server that answers its warm-up with errors for this long has failed
    warmup_patience: Duration = Duration(10 * SECOND)
    #: how often dead descendants that nobody else reaps are reaped
    sweep_period: Duration = Duration(10 * SECOND)
    #: a stop hook that runs longer is killed; the core must hear of the signal that follows before its own allowance
    #: for both ends, or it would order the kill of a server that has just been asked to end
    hook_timeout: Duration = Duration(HOOK_ALLOWANCE - 5 * SECOND)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where an instance listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ProcessView:
    """What the status shows of an instance."""

    #: of the leading process; ``None``: not started, or nothing to start
    pid: int | None
    port: int
    log: Path
