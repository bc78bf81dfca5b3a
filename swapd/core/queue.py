"""Orders the waiting requests of one model: priority class before age, first come first served within a class.

Every operation is O(1), except that putting a request back looks at the few heads that are older than it.
"""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from swapd.core.catalog import Priority
from swapd.core.ids import Instant, RequestId


class Waiter(Protocol):
    """What the queue needs to know of a request."""

    id: RequestId
    arrived: Instant
    priority: Priority


W = TypeVar("W", bound=Waiter)


class ModelQueue(Generic[W]):
    """The waiting requests of one model."""

    __slots__ = ("_classes", "count")

    def __init__(self) -> None:
        self._classes: tuple[OrderedDict[RequestId, W], ...] = tuple(OrderedDict() for _ in Priority)
        #: its length; for steps so frequent that the call counts
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[W]:
        """Yield the waiters in the order in which they will be served."""
        for waiters in self._classes:
            yield from waiters.values()

    def __contains__(self, request: W) -> bool:
        return request.id in self._classes[request.priority]

    def push(self, request: W) -> None:
        """Put a request last in its class."""
        self._classes[request.priority][request.id] = request
        self.count += 1

    def put_back(self, request: W) -> None:
        """Put a request that was granted before the younger ones of its class."""
        waiters = self._classes[request.priority]
        older = []
        for other in waiters.values():
            if (other.arrived, other.id) > (request.arrived, request.id):
                break
            older.append(other.id)
        self.push(request)
        waiters.move_to_end(request.id, last=False)
        for other_id in reversed(older):
            waiters.move_to_end(other_id, last=False)

    def pop(self) -> W:
        """Take the request that is served next; the queue must not be empty."""
        for waiters in self._classes:
            if waiters:
                self.count -= 1
                return waiters.popitem(last=False)[1]
        raise IndexError("the queue is empty")

    def remove(self, request: W) -> None:
        """Take a request out, wherever it stands."""
        del self._classes[request.priority][request.id]
        self.count -= 1

    def youngest(self) -> W:
        """Return the request that would be served last; the queue must not be empty."""
        last = next(waiters for waiters in reversed(self._classes) if waiters)
        return next(reversed(last.values()))

    def oldest(self) -> W:
        """Return the request that has waited longest, whatever its class; the queue must not be empty."""
        heads = [next(iter(waiters.values())) for waiters in self._classes if waiters]
        return heads[0] if len(heads) == 1 else min(heads, key=_age)

    def rank(self) -> tuple[Priority, Instant]:
        """Return the class of the first waiter and its arrival; the queue must not be empty."""
        for waiters in self._classes:
            if waiters:
                head = next(iter(waiters.values()))
                return head.priority, head.arrived
        raise IndexError("the queue is empty")


def _age(request: Waiter) -> tuple[Instant, RequestId]:
    return request.arrived, request.id
