"""Records a run of the core and repeats it: the same events must give the same commands, always."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from swapd.core.catalog import Catalog
from swapd.core.commands import Command
from swapd.core.events import Event
from swapd.core.ids import InstanceId, Instant
from swapd.core.policies import EvictionPolicy
from swapd.core.scheduler import Scheduler
from swapd.core.topology import NodeTopology


@dataclass(frozen=True, slots=True)
class Origin:
    """All that a fresh core is made from."""

    topology: NodeTopology
    catalog: Catalog
    at: Instant = Instant(0)
    first_instance: InstanceId = InstanceId(1)
    #: order of victims instead of the configured one; must keep no state, or a replay differs
    policy: EvictionPolicy | None = None

    def scheduler(self) -> Scheduler:
        """Make a core in its first state."""
        return Scheduler(self.topology, self.catalog, self.at, self.first_instance, policy=self.policy)


@dataclass(slots=True)
class Recording:
    """What a core was told and what it ordered, step by step; an observer of the virtual node."""

    origin: Origin
    steps: list[tuple[Event, tuple[Command, ...]]] = field(default_factory=list)

    def __call__(self, event: Event, commands: tuple[Command, ...]) -> None:
        """Note one step."""
        self.steps.append((event, commands))

    def difference(self) -> "Difference | None":
        """Run the events through a fresh core and return the first step that comes out otherwise."""
        events = (event for event, _ in self.steps)
        for number, (step, again) in enumerate(zip(self.steps, replay(self.origin, events), strict=True)):
            if step[1] != again:
                return Difference(number, step[0], step[1], again)
        return None


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step at which a repeated run went another way."""

    step: int
    event: Event
    before: tuple[Command, ...]
    after: tuple[Command, ...]


def replay(origin: Origin, events: Iterable[Event]) -> Iterator[tuple[Command, ...]]:
    """Yield what a fresh core orders at each of the events."""
    scheduler = origin.scheduler()
    for event in events:
        yield scheduler.handle(event)
