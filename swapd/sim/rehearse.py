"""Rehearses where each model of a configuration would go on a node, without starting anything.

Rules that hold here:

* The core decides, as it would in the daemon; engines load and leave in no time.
* Pinned models are placed first, as at the daemon's start. Every other model is then loaded by itself beside them, and
  unloaded again, so that the order of the file does not matter.
* No promise counts: how long a model may be waited for has no part in where it goes.
* The node is empty: nobody else holds memory of a GPU, whatever its driver says just now; and all weights are on it.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from swapd.core.catalog import Catalog
from swapd.core.commands import Answer, Command, Placed, Start, Stop, Transitioned
from swapd.core.events import EngineGone, Event, InstanceReady, LoadOrdered, ProcessesGone, Tick, UnloadOrdered
from swapd.core.ids import NO_GPUS, Duration, GpuSet, Instant, ModelName, RequestId
from swapd.core.reasons import PlacementQuality, State
from swapd.core.scheduler import Scheduler
from swapd.core.topology import NodeTopology
from swapd.sim.shelf import at_hand

_NOW: Final = Instant(0)
_EVER: Final = Duration(1 << 60)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model would go."""

    model: ModelName
    pinned: bool
    #: none: there is no place for it
    gpus: GpuSet
    quality: PlacementQuality | None = None
    #: one sentence: why there is no place; empty: there is one
    why: str = ""


def rehearse(topology: NodeTopology, catalog: Catalog) -> tuple[Place, ...]:
    """Return a place for each model, in the order of the catalogue."""
    node = _Node(topology, at_hand(catalog))
    node.play(Tick(_NOW))
    places = {name: node.kept(name) for name, spec in catalog.models.items() if spec.pinned}
    places |= {name: node.visited(name) for name in catalog.models if name not in places}
    return tuple(places[name] for name in catalog.models)


class _Node:
    """A core, and engines that do at once what they are told."""

    def __init__(self, topology: NodeTopology, catalog: Catalog) -> None:
        gpus = tuple(replace(gpu, measured=False) for gpu in topology.gpus)
        models = {name: replace(spec, max_wait=_EVER) for name, spec in catalog.models.items()}
        self._core = Scheduler(replace(topology, gpus=gpus), replace(catalog, models=models), _NOW)
        self._qualities: dict[ModelName, PlacementQuality] = {}
        #: the models that are on the node
        self._places: dict[ModelName, GpuSet] = {}
        self._answer: Answer | None = None
        self._requests = 0

    def kept(self, name: ModelName) -> Place:
        """Say where a pinned model is (in manual mode: where an operator's load puts it), or why it is not."""
        why = "" if self._gpus(name) else self._load(name)
        return Place(name, pinned=True, gpus=self._gpus(name), quality=self._qualities.get(name), why=why)

    def visited(self, name: ModelName) -> Place:
        """Load a model, say where it went, and unload it."""
        why = self._load(name)
        place = Place(name, pinned=False, gpus=self._gpus(name), quality=self._qualities.get(name), why=why)
        self.play(UnloadOrdered(_NOW, self._next_request(), name))
        return place

    def play(self, event: Event) -> None:
        """Hand in an event and whatever follows from it."""
        events = deque([event])
        while events:
            for command in self._core.handle(events.popleft()):
                events.extend(self._obeyed(command))

    def _obeyed(self, command: Command) -> tuple[Event, ...]:
        match command:
            case Start():
                return (InstanceReady(_NOW, command.instance),)
            case Stop():
                return ProcessesGone(_NOW, command.instance), EngineGone(_NOW, command.instance)
            case Placed():
                self._qualities[command.model] = command.quality
                self._places[command.model] = command.gpus
            case Transitioned(after=State.UNLOADING | State.GONE):
                self._places.pop(command.model, None)
            case Answer():
                self._answer = command
            case _:
                pass
        return ()

    def _load(self, name: ModelName) -> str:
        """Order a load; return why it cannot be, or nothing."""
        self._answer = None
        self.play(LoadOrdered(_NOW, self._next_request(), name))
        answer: Answer | None = self._answer
        if answer is None:
            return f"{name} finds no room beside the pinned models"
        return "" if answer.ok else answer.detail

    def _gpus(self, name: ModelName) -> GpuSet:
        return self._places.get(name, NO_GPUS)

    def _next_request(self) -> RequestId:
        self._requests += 1
        return RequestId(self._requests)
