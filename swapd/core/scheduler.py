"""Takes every decision: one event in, orders and notes out."""

from swapd.core.catalog import Catalog
from swapd.core.commands import Command
from swapd.core.events import Event
from swapd.core.ids import InstanceId, Instant
from swapd.core.topology import NodeTopology
from swapd.core.view import NodeView

_FIRST = InstanceId(1)


class Scheduler:
    """The state machine of one node."""

    def __init__(
        self, topology: NodeTopology, catalog: Catalog, at: Instant, first_instance: InstanceId = _FIRST
    ) -> None:
        raise NotImplementedError

    def handle(self, event: Event) -> tuple[Command, ...]:
        """Apply one fact; ``event.at`` never goes back."""
        raise NotImplementedError

    @property
    def next_wakeup(self) -> Instant | None:
        """When to post the next Tick; the shell keeps exactly one timer."""
        raise NotImplementedError

    def view(self) -> NodeView:
        """Return the node as it is now."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise if any law is broken."""
        raise NotImplementedError
