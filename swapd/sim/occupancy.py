"""Measures how much of the node nobody has any use of; an observer of the virtual node.

Three means over time, in GPUs: *empty*, nobody is on them; *stranded*, they are empty while somebody waits for room
that they cannot give; *unneeded*, a model was given them but makes no use of them, because its number was rounded up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from swapd.core.commands import Command, Transitioned
from swapd.core.events import Event, RequestArrived, RequestEnded, Tick
from swapd.core.ids import GpuSet, InstanceId, Instant, ModelName, RequestId, gpu_indices
from swapd.core.reasons import State

_LEAVING = (State.UNLOADING, State.LEAKED, State.GONE)


@dataclass(frozen=True, slots=True)
class Waste:
    """GPUs without use, means over the run."""

    empty: float = 0.0
    stranded: float = 0.0
    unneeded: float = 0.0


@dataclass(slots=True)
class Occupancy:
    """What is on the GPUs, and who waits for room."""

    gpus: int
    #: of the GPUs of each model, how many it makes use of; one that is not named uses all
    needs: Mapping[ModelName, int] = field(default_factory=dict)
    _first: Instant | None = None
    _at: Instant = Instant(0)
    #: by GPU: how many instances are on it, those included that wait for another one to leave
    _on: list[int] = field(default_factory=list)
    _unneeded: int = 0
    #: models with an instance that serves them or will
    _placed: dict[ModelName, InstanceId] = field(default_factory=dict)
    #: open requests by model; of a model that is not placed all of them wait for room
    _open: dict[RequestId, ModelName] = field(default_factory=dict)
    _asked: dict[ModelName, int] = field(default_factory=dict)
    _roomless: int = 0
    _sums: list[int] = field(default_factory=lambda: [0, 0, 0])

    def __post_init__(self) -> None:
        self._on = [0] * self.gpus

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Add up the time since the last event, then note what has changed."""
        if self._first is None:
            self._first = self._at = event.at
        if not isinstance(event, Tick):
            self._pass(event.at)
        if isinstance(event, RequestArrived):
            self._ask(event.model, event.request)
        elif isinstance(event, RequestEnded):
            self._answered(event.request)
        for command in commands:
            if isinstance(command, Transitioned):
                self._moved(command)

    def waste(self) -> Waste:
        """Return the means so far."""
        window = max(1, self._at - (self._first or 0))
        return Waste(*(total / window for total in self._sums))

    def _pass(self, now: Instant) -> None:
        since = now - self._at
        self._at = now
        empty = self._on.count(0) * since
        self._sums[0] += empty
        self._sums[1] += empty if self._roomless else 0
        self._sums[2] += self._unneeded * since

    def _ask(self, model: ModelName, request: RequestId) -> None:
        self._open[request] = model
        asked = self._asked.get(model, 0)
        self._asked[model] = asked + 1
        self._roomless += not asked and model not in self._placed

    def _answered(self, request: RequestId) -> None:
        model = self._open.pop(request)
        self._asked[model] -= 1
        self._roomless -= not self._asked[model] and model not in self._placed

    def _moved(self, note: Transitioned) -> None:
        asked = bool(self._asked.get(note.model))
        count = note.gpus.bit_count()
        unneeded = count - self.needs.get(note.model, count)
        if note.before is None:
            self._stand(note.gpus, 1)
            self._unneeded += unneeded
            self._placed[note.model] = note.instance
            self._roomless -= asked
        if note.after is State.GONE:
            self._stand(note.gpus, -1)
        if note.after in _LEAVING and self._placed.get(note.model) == note.instance:
            del self._placed[note.model]
            self._unneeded -= unneeded
            self._roomless += asked

    def _stand(self, gpus: GpuSet, change: int) -> None:
        for gpu in gpu_indices(gpus):
            self._on[gpu] += change
