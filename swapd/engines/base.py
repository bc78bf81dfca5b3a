"""Says in which words an engine describes how its server is started, probed, warmed up and stopped.

Everything here is a value: complete before anything is started, and the same for the same input. The room
``instances`` carries plans out; no engine opens a file, a socket or a process.
"""

import enum
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from swapd.core.ids import SECOND, Duration, ModelName

LOOPBACK = "127.0.0.1"
"""Where engines listen: nobody reaches one but through swapd."""


class EngineError(ValueError):
    """The options of a model cannot become a plan; one sentence that says what to change."""

    def __init__(self, sentence: str, *, permanent: bool = True) -> None:
        """``permanent``: trying again cannot help."""
        super().__init__(sentence)
        self.permanent = permanent


class Warmup(enum.Enum):
    """How a model proves that it can answer, short of a request written by hand."""

    #: a one-token request on the first inference route that the server has
    AUTO = "auto"
    #: the health endpoint alone counts
    NONE = "none"


@dataclass(frozen=True, slots=True)
class WarmupRequest:
    """One small real request."""

    path: str
    #: JSON text
    body: bytes
    method: str = "POST"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What the configuration says of one model, as far as its engine is concerned."""

    name: ModelName
    #: a key of ``registry.ENGINES``
    engine: str
    #: ``command``: the whole command; ``llama-server``, ``vllm``: what comes before the engine's own arguments, empty
    #: for the usual executable; ``external``: a start hook, or empty
    command: tuple[str, ...] = ()
    #: appended after the arguments that the engine adds, so that they win
    args: tuple[str, ...] = ()
    #: absolute path of a file or directory
    weights: str | None = None
    #: wins over every other variable
    env: Mapping[str, str] = field(default_factory=dict)
    #: working directory; ``None``: the daemon's
    cwd: str | None = None
    aliases: tuple[str, ...] = ()
    #: requests that the engine gets at once
    concurrency: int = 16
    health_path: str = "/health"
    #: for one probe
    health_timeout: Duration = Duration(2 * SECOND)
    warmup: Warmup | WarmupRequest = Warmup.AUTO
    stop_signal: int = signal.SIGTERM
    #: from the stop signal to the kill
    stop_grace: Duration = Duration(10 * SECOND)
    #: runs to its end before the stop signal goes out
    stop_command: tuple[str, ...] | None = None
    #: ``external`` only: where the server listens; a path in it is the health path
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """What lies near the GPUs of an instance; its processes run there as far as the system allows it."""

    #: ids of CPUs; empty: all will do
    cpus: tuple[int, ...] = ()
    #: NUMA nodes whose host memory is preferred; empty: all will do
    numa: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """A process to start."""

    argv: tuple[str, ...]
    #: the complete environment
    env: Mapping[str, str]
    cwd: str | None
    #: the part of it that the model's configuration names; never shown
    own_env: Mapping[str, str] = field(default_factory=dict)
    binding: Binding = Binding()


@dataclass(frozen=True, slots=True)
class ReadinessProbe:
    """The cheap request that says whether the server is up."""

    path: str
    #: for one probe
    timeout: Duration
    accepted: frozenset[int] = frozenset({200})


@dataclass(frozen=True, slots=True)
class WarmupPlan:
    """The requests that may prove that inference works, in order; none: the health endpoint alone counts."""

    attempts: tuple[WarmupRequest, ...]
    #: a route that the server lacks is no reason to try the next one: this very request must succeed
    exact: bool = False


@dataclass(frozen=True, slots=True)
class StopSpec:
    """How the server ends."""

    signal: int
    #: from the signal to the kill
    grace: Duration
    #: a hook that runs to its end first; ``None``: none
    command: LaunchSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """Everything that must be known to run one instance."""

    #: ``None``: nothing is started
    launch: LaunchSpec | None
    #: the launched process is (or leads) the server; else it is a hook that must end with status 0 before probing
    serves: bool
    host: str
    port: int
    readiness: ReadinessProbe
    warmup: WarmupPlan
    stop: StopSpec

    @property
    def owns_listener(self) -> bool:
        """Whether the listening socket must belong to a process of the instance.

        Not so when the server lives outside its processes: an external one, or a container behind a command line
        tool, which is what a stop hook is for.
        """
        return self.serves and self.stop.command is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One instance that is to be described."""

    options: EngineOptions
    #: free on the loopback address
    port: int
    #: full UUIDs of its GPUs, or names of virtual devices
    devices: tuple[str, ...]
    #: the daemon's own environment
    environ: Mapping[str, str]
    binding: Binding = Binding()


class Engine(Protocol):
    """One kind of model server."""

    def plan(self, given: Assignment) -> EnginePlan:
        """Describe one instance; raises ``EngineError``."""
        ...
