"""Follows the chunks of an engine's answer exactly, and takes their framing off.

The end of an answer is never guessed from its last bytes: a wrong guess would leak one user's answer into another's.
Sizes are hexadecimal digits and nothing else; extensions and trailers are read over and dropped, both of bounded
length. Pieces of unfinished chunks are handed out as they come.
"""

import functools
import re
from typing import Final

LAST: Final = b"0\r\n\r\n"
"""What ends a body in chunks."""
_LINE: Final = re.compile(rb"([0-9a-fA-F]{1,15})(?:[ \t]*;[^\r\n\0]*)?\r\n")
_PLAIN: Final = re.compile(rb"[1-9a-fA-F][0-9a-fA-F]{0,7}")
_LONGEST_PLAIN: Final = 8
"""Digits."""
_MAX_LINE: Final = 4 << 10
_MAX_TRAILERS: Final = 16 << 10
_TRAILERS: Final = re.compile(rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n")


def _start(length: int) -> bytes:
    for digits in range(1, 4):
        start = b"%x\r\n" % max(0, length - digits - 4)
        if len(start) == digits + 2 and not start.startswith(b"0"):
            return start
    return _NEVER


SHORT: Final = 1 << 10
_NEVER: Final = bytes(SHORT)
STARTS: Final = tuple(_start(length) for length in range(SHORT))
"""With what a chunk of so many bytes, its framing included, begins as engines write it.

There are lengths that no chunk has: what stands there is longer than such a chunk.
"""
SIZES: Final = tuple(length - len(start) - 2 for length, start in enumerate(STARTS))
"""Bytes of the body in such a chunk."""


class ChunkError(Exception):
    """The framing is broken; what comes after it has no meaning."""


class Chunks:
    """Where one answer stands between its first chunk and its last."""

    __slots__ = ("_held", "_left", "_trailing", "ended", "rest")

    def __init__(self) -> None:
        #: the last chunk and what belongs to it is complete
        self.ended = False
        #: bytes beyond the end
        self.rest = b""
        self._held = b""
        #: bytes of the current chunk that are still to come
        self._left = 0
        #: the last size was zero
        self._trailing = False

    @property
    def between(self) -> bool:
        """Tell whether the next byte begins a chunk."""
        return not (self._held or self._left or self._trailing)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the pieces of the body in ``data``; raises ``ChunkError``."""
        if self._held:
            data, self._held = self._held + data, b""
        pieces: list[bytes] = []
        at = 0
        while at < len(data) and not self.ended:
            if self._trailing:
                at = self._trailers(data, at)
            elif self._left > 2:
                piece = data[at : at + self._left - 2]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
            elif self._left:
                at = self._line_end(data, at)
            else:
                at = self._size(data, at)
        if self.ended:
            self.rest = data[at:]
        return pieces

    def _line_end(self, data: bytes, at: int) -> int:
        """Pass over the line end behind a chunk's data."""
        expected = b"\r\n"[2 - self._left :]
        found = data[at : at + self._left]
        if not expected.startswith(found):
            raise ChunkError("a chunk is longer than its size")
        self._left -= len(found)
        return at + len(found)

    def _size(self, data: bytes, at: int) -> int:
        found = _LINE.match(data, at)
        if found is None:
            if data.find(b"\n", at) >= 0 or len(data) - at > _MAX_LINE:
                raise ChunkError("the size of a chunk cannot be read")
            self._held = data[at:]
            return len(data)
        size = int(found[1], 16)
        self._left = size + 2 if size else 0
        self._trailing = size == 0
        return found.end()

    def _trailers(self, data: bytes, at: int) -> int:
        found = _TRAILERS.match(data, at)
        if found is not None:
            self.ended = True
            return found.end()
        if data.find(b"\r\n\r\n", at) >= 0 or len(data) - at > _MAX_TRAILERS:
            raise ChunkError("the trailers cannot be read")
        self._held = data[at:]
        return len(data)


def whole_chunks(data: bytes) -> tuple[int, int, bool]:
    """Look at the plain and whole chunks with which ``data`` begins, the last one excepted.

    Return where they end, the bytes of the body in them, and whether each of them ends with a line.
    """
    at = total = 0
    in_lines = True
    length = len(data)
    while at < length:
        line_end = data.find(b"\r\n", at)
        size = _plain_size(data[at:line_end]) if 0 < line_end - at <= _LONGEST_PLAIN else 0
        end = line_end + size + 4
        if not size or end > length:
            break
        last = data[end - 3 : end]
        if last != b"\n\r\n":
            if not last.endswith(b"\r\n"):
                break
            in_lines = False
        total += size
        at = end
    return at, total, in_lines


@functools.lru_cache(maxsize=1024)
def _plain_size(line: bytes) -> int:
    """Return the size that a chunk's first line says in plain hexadecimal digits; 0: it does not, or is the last."""
    return int(line, 16) if _PLAIN.fullmatch(line) else 0


def unframed(chunks: bytes) -> bytes:
    """Return what is in whole chunks."""
    return b"".join(Chunks().feed(chunks))


def framed(payload: bytes) -> bytes:
    """Return the payload as one chunk."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)
