"""Records what a picture of a run is drawn from: the life of each instance, and how long each request waited."""

from dataclasses import dataclass, field, replace

from swapd.core.commands import Command, Grant, Transitioned
from swapd.core.events import Event
from swapd.core.ids import GpuSet, InstanceId, Instant, ModelName
from swapd.core.reasons import State


@dataclass(frozen=True, slots=True)
class Life:
    """One instance; a moment that has not come is ``None``."""

    model: ModelName
    gpus: GpuSet
    booked: Instant
    loading: Instant | None = None
    ready: Instant | None = None
    leaving: Instant | None = None
    gone: Instant | None = None


@dataclass(frozen=True, slots=True)
class Waited:
    """One request that was granted."""

    model: ModelName
    granted: Instant
    wait_s: float


@dataclass(slots=True)
class Lives:
    """An observer of the virtual node."""

    waits: list[Waited] = field(default_factory=list)
    end: Instant = Instant(0)
    _lives: dict[InstanceId, Life] = field(default_factory=dict)

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Note one step."""
        self.end = event.at
        for command in commands:
            if isinstance(command, Transitioned):
                self._move(command, event.at)
            elif isinstance(command, Grant):
                self.waits.append(Waited(command.model, event.at, command.waited / 1e9))

    def lives(self) -> tuple[Life, ...]:
        """Return every instance, in the order of its booking."""
        return tuple(self._lives.values())

    def _move(self, note: Transitioned, at: Instant) -> None:
        if note.before is None:
            self._lives[note.instance] = Life(note.model, note.gpus, at)
            return
        life = self._lives[note.instance]
        match note.after:
            case State.LOADING:
                life = replace(life, loading=at)
            case State.READY if life.ready is None:
                life = replace(life, ready=at)
            case State.UNLOADING:
                life = replace(life, leaving=at)
            case State.GONE:
                life = replace(life, gone=at)
            case _:
                return
        self._lives[note.instance] = life
