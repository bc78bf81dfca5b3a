"""Says what carries one request to an engine and its answer back; this is the boundary behind which HTTP may change.

Promises to its user: an answer's body comes in the pieces in which it arrived; reading slowly slows the engine down
(the buffer in between is bounded); ``abort`` closes the connection at once; a connection whose answer was not read to
its end is never used again. Nothing here knows of models, leases or clients.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from multidict import CIMultiDict, CIMultiDictProxy

from swapd.proxy.body import Body
from swapd.proxy.services import Endpoint


class UnansweredError(Exception):
    """Not one byte of an answer came: the connection was refused, reset or closed. Trying again is safe to offer."""


class MalformedAnswerError(Exception):
    """The answer's head is not HTTP, or says two different things about its length."""


class BrokenAnswerError(Exception):
    """The answer broke off in its body."""


@dataclass(frozen=True, slots=True)
class Outbound:
    """One request as the engine is to see it."""

    method: str
    #: path and query, as received
    target: str
    headers: CIMultiDict[str]
    body: Body
    #: do not use a pooled connection: it may be the reason why the first attempt failed
    fresh: bool = False


class Answer(Protocol):
    """An engine's answer, of which the head is in."""

    @property
    def status(self) -> int:
        """Return the status code."""

    @property
    def reason(self) -> str:
        """Return the reason phrase."""

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        """Return the header fields for the client; those of the one connection may be missing."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body's pieces as they come; raises ``BrokenAnswerError``."""

    def abort(self) -> None:
        """Close the connection unless the answer has been read to its end; may be called again."""


class Relay(Protocol):
    """A way to speak HTTP with engines."""

    async def open(self, endpoint: Endpoint, outbound: Outbound) -> Answer:
        """Send a request and return when the head of the answer is in.

        Raises ``UnansweredError`` or ``MalformedAnswerError``; when cancelled, the connection is closed.
        """

    @property
    def connections(self) -> int:
        """Return the number of connections to engines, idle or not."""

    def close(self) -> None:
        """Close every connection that is idle; nothing is opened any more."""
