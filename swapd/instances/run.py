"""Holds what all instances share, and what is known of one of them; decides nothing."""

import asyncio
import enum
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

import structlog

from swapd.aio.supervise import Tasks
from swapd.core.events import Event
from swapd.core.ids import Duration, InstanceId, Instant, ModelName
from swapd.engines.base import EnginePlan, LaunchSpec
from swapd.instances.launch import Child
from swapd.instances.output import Output
from swapd.instances.ports import Ports
from swapd.instances.processes import MARK, Family, Process, read
from swapd.instances.sentences import TAIL_LINES, secret_values, with_log
from swapd.instances.settings import InstanceSettings

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Room:
    """The way to the core, the clock, the tasks' owner, the ports."""

    post: Callable[[Event], None]
    now: Callable[[], Instant]
    tasks: Tasks
    ports: Ports
    settings: InstanceSettings
    #: tells this daemon's instances from those of any other, in the mark that their processes carry
    token: str


class Phase(enum.Enum):
    """What was last told to the core."""

    LOADING = enum.auto()
    READY = enum.auto()
    #: the load failed, or the leading process ended unordered; the core will order the stop
    BROKEN = enum.auto()
    #: stop or kill was ordered
    ENDING = enum.auto()
    #: its processes are gone
    GONE = enum.auto()


@dataclass(slots=True)
class Run:
    """One instance."""

    room: Room
    instance: InstanceId
    model: ModelName
    output: Output
    started: Instant
    phase: Phase = Phase.LOADING
    #: held from the start until nothing listens on it any more; 0: none
    port: int = 0
    plan: EnginePlan | None = None
    #: the leading process; none for an external server
    child: Child | None = None
    family: Family | None = None
    #: the listening socket was seen in the hands of one of our processes
    listener_verified: bool = False
    #: hooks that are running
    hooks: list[Child] = field(default_factory=list)

    @property
    def elapsed(self) -> Duration:
        """Time since the start."""
        return Duration(self.room.now() - self.started)

    def leading(self) -> tuple[Process, ...]:
        """Return the leading process, if there is one."""
        leader = read(self.child.pid) if self.child is not None else None
        return () if leader is None else (leader,)

    def living(self) -> tuple[Process, ...]:
        """Return its living processes; reads the process table."""
        return self.family.living() if self.family is not None else ()

    def launch(self, spec: LaunchSpec) -> None:
        """Start the leading process; raises ``OSError``."""
        mark = f"{self.room.token}-{self.instance}"
        with self.output.writable() as descriptor:
            self.child = Child(spec, output=descriptor, extra_env={MARK: mark})
        self.family = Family(self.child.pid, mark)
        if self.child.unbound:
            _log.info("not_bound", model=self.model, instance=self.instance, detail=self.child.unbound)

    async def run_hook(self, spec: LaunchSpec) -> int | None:
        """Run a hook to its end and return its status; raises ``OSError`` when it cannot be started.

        When this is cancelled, the hook is killed with its group.
        """
        with self.output.writable() as descriptor:
            hook = Child(spec, output=descriptor, extra_env={}, reap_at_exit=True)
        self.hooks.append(hook)
        try:
            await hook.exited.wait()
        finally:
            self.hooks.remove(hook)
            hook.kill_group()
        return hook.status

    def described(self, sentence: str) -> str:
        """Add the last lines of the log to a sentence about a failure."""
        specs = (self.plan.launch, self.plan.stop.command) if self.plan is not None else ()
        hidden = secret_values(spec for spec in specs if spec is not None)
        if self.output.out_of_space():
            sentence = f"{sentence}; the disk of its log {self.output.path} is full"
        return with_log(sentence, self.output.tail(TAIL_LINES), hidden)

    def task(self, work: Coroutine[object, object, None], what: str) -> asyncio.Task[None]:
        """Start a task of this instance."""
        return self.room.tasks.start(work, name=f"{what} {self.model} #{self.instance}")
