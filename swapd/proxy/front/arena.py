"""Receives large bodies into memory that is used again: no list of pieces, no second copy.

The memory grows with what has come, never with what was announced, so that a client that announces much and sends
nothing takes nothing from others. The protocol stands in for the connection's own until the body is complete.
"""

import asyncio
from typing import Final, Protocol

from typing_extensions import override

from swapd.proxy.gist import ENOUGH, Gist

LARGE: Final = 64 << 10
"""Larger bodies come here."""
_FIRST: Final = 256 << 10
_STEP: Final = 4 << 20
"""Memory grows twofold up to this step, then by it."""
_READ: Final = 512 << 10
"""At once."""
_BEYOND: Final = 4 << 10
"""So much is read behind a body, that what came with its end is seen before the request is served."""
_MOST_IDLE: Final = 32 << 20
"""Bytes of memory that lie idle, together."""
_MOST_ROOM: Final = 2
"""So many times its length a body may take, beyond what it begins with."""


class Arena:
    """The memory that waits for the next large body."""

    def __init__(self) -> None:
        self._idle: list[bytearray] = []

    def take(self, length: int) -> bytearray:
        """Return memory for a body of so many bytes: the least that has room, or else the largest that has not.

        Never several times what the body takes: it may have to wait, and counts by its own size while it does.
        """
        room = length + _BEYOND
        sizes = [len(memory) for memory in self._idle]
        fitting = [size for size in sizes if size <= max(_FIRST, _MOST_ROOM * room)]
        if not fitting:
            return bytearray(_FIRST)
        with_room = [size for size in fitting if size >= room]
        return self._idle.pop(sizes.index(min(with_room) if with_room else max(fitting)))

    def give(self, memory: bytearray) -> None:
        """Keep memory for another body, if it is not too much and nobody looks at it any more."""
        if sum(map(len, self._idle)) + len(memory) <= _MOST_IDLE and not _is_looked_at(memory):
            self._idle.append(memory)


def _is_looked_at(memory: bytearray) -> bool:
    """Tell whether there is a view of it, be it a transport's that has not written it yet; ``memory`` is not empty."""
    try:
        # refused while there is one
        memory.append(memory.pop())
    except BufferError:
        return True
    return False


class Owner(Protocol):
    """The connection for which a body is received."""

    def body_came(self, count: int, beyond: bytes = b"") -> bool:
        """Take it that bytes have come, perhaps with some beyond; ``False``: no more of this body is wanted."""

    def body_complete(self, body: memoryview) -> None:
        """Take over the whole body, and the transport."""

    def rest(self) -> None:
        """Read no more in this turn of the loop."""

    def pause_writing(self) -> None:
        """See ``asyncio.Protocol``."""

    def resume_writing(self) -> None:
        """See ``asyncio.Protocol``."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``asyncio.Protocol``."""


class BodyReceiver(asyncio.BufferedProtocol):
    """Receives one body."""

    __slots__ = ("_at", "_gist", "_length", "_memory", "_owner", "_view", "_work")

    def __init__(self, owner: Owner, gist: Gist | None, memory: bytearray, length: int, first: bytes) -> None:
        """``first`` has come of it; ``gist`` looks at it, if anybody has to."""
        self._owner = owner
        self._gist = gist
        #: since reading rested
        self._work = 0
        self._length = length
        self._memory = memory
        self._at = len(first)
        while len(memory) < len(first) or length <= len(memory) < length + _BEYOND:
            self._grow()
        memory[: len(first)] = first
        self._view = memoryview(memory)

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        if self._at == len(self._memory):
            self._view.release()
            self._grow()
            self._view = memoryview(self._memory)
        return self._view[self._at : min(self._at + _READ, self._length + _BEYOND)]

    @override
    def buffer_updated(self, nbytes: int) -> None:
        count = min(nbytes, self._length - self._at)
        self._at += nbytes
        wanted = self._owner.body_came(count, bytes(self._view[self._length : self._at]))
        if wanted and self._gist is not None:
            self._work += self._gist.look(self._memory, min(self._at, self._length))
        if wanted and self._at < self._length:
            if self._work >= ENOUGH:
                self._work = 0
                self._owner.rest()
            return
        body = self._view[: self._length]
        # the transport may remember its former protocol for long
        self._memory, self._view = bytearray(), memoryview(b"")
        if wanted:
            self._owner.body_complete(body)

    def _grow(self) -> None:
        size = len(self._memory)
        grown = size + max(1, min(size, _STEP))
        self._memory += bytes((grown if grown < self._length else self._length + _BEYOND) - size)

    @override
    def pause_writing(self) -> None:
        self._owner.pause_writing()

    @override
    def resume_writing(self) -> None:
        self._owner.resume_writing()

    @override
    def eof_received(self) -> None:
        return None

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.connection_lost(exc)
