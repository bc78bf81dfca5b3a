"""Names what a connection to an engine tells whoever has sent a request on it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from swapd.proxy.front.answers import AnswerHead
from swapd.proxy.front.chunks import unframed


class Sink(Protocol):
    """Whoever has sent a request. After ``ends``, ``unanswered``, ``malformed`` or ``breaks`` nothing more is told."""

    def begins(self, head: AnswerHead) -> None:
        """Take the head of the answer."""

    def whole(self, head: AnswerHead, body: bytes) -> None:
        """Take an answer that has come in one piece: the same as ``begins``, ``piece`` and ``ends``."""
        self.begins(head)
        if body:
            self.piece(body, body)
        self.ends()

    def piece(self, payload: bytes, framed: bytes) -> None:
        """Take a piece of the body; ``framed`` is the same in chunks, or itself if its length was announced."""

    def in_chunks(self, framed: bytes, size: int, in_lines: bool) -> Callable[[bytes], None] | None:  # noqa: ARG002, FBT001 - for who knows how
        """Take pieces of the body that came as whole chunks, ``size`` bytes in all, perhaps each of whole lines.

        Return what writes the next short chunks of whole lines, which are told later by ``passed``; ``None``: nothing.
        """
        self.piece(unframed(framed), framed)
        return None

    def passed(self, chunks: Sequence[bytes]) -> None:
        """Take it that short chunks, each of whole lines, have been written; told before anything else is."""
        assert not chunks, "what takes them was never named"

    def pause_point(self) -> None:
        """Take it that all has been told that has come so far."""

    def ends(self) -> None:
        """Take it that the answer is complete."""

    def unanswered(self) -> None:
        """Take it that the connection was lost before a byte of an answer."""

    def malformed(self, why: str) -> None:
        """Take it that what has come is no head of an answer."""

    def breaks(self, why: str) -> None:
        """Take it that the answer has broken off in its body."""

    def fails(self, error: Exception) -> None:
        """Take it that one of these calls, or the reading itself, has raised."""
