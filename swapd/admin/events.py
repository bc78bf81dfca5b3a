"""Hands the core's notes to whoever watches, and never waits for a watcher.

Each reader has its own bounded buffer. A reader that stalls loses its oldest lines and is told how many; the daemon
goes on as if it were not there. Without readers a note costs one comparison.
"""

import asyncio
import dataclasses
import enum
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from swapd.admin.timeline import stages_document
from swapd.core.commands import Note
from swapd.core.ids import SECOND, Bytes, Duration, GpuSet, Instant, gpu_indices

BUFFERED_LINES: Final = 1000
MAX_READERS: Final = 64
_MAX_TEXT: Final = 2000
"""Characters of one text; a load's failure carries the last lines of the engine's log."""

_NAMES: dict[type, str] = {}


class TooManyReadersError(Exception):
    """The limit on concurrent readers is reached."""


class Reader:
    """One watcher's buffer. Lines are whole JSON objects that end with a newline."""

    def __init__(self, leave: Callable[["Reader"], None], lines: int) -> None:
        self._leave = leave
        self._lines: deque[bytes] = deque()
        self._limit = lines
        self._dropped = 0
        self._arrived = asyncio.Event()
        self._closed = False

    def put(self, line: bytes) -> None:
        """Buffer a line; the oldest one goes when there is no room."""
        if len(self._lines) >= self._limit:
            self._lines.popleft()
            self._dropped += 1
        self._lines.append(line)
        self._arrived.set()

    async def take(self) -> bytes:
        """Wait for lines and return all that are buffered; ``b""`` once the stream has ended.

        Lost lines are told first: ``{"event": "dropped", "lines": <number>}``.
        """
        if not self._lines and not self._closed:
            self._arrived.clear()
            await self._arrived.wait()
        taken = b"".join(self._lines)
        if self._dropped:
            taken = _encode({"event": "dropped", "lines": self._dropped}) + taken
        self._lines.clear()
        self._dropped = 0
        return taken

    def end(self) -> None:
        """End the stream after the lines that are buffered."""
        self._closed = True
        self._arrived.set()

    def close(self) -> None:
        """Stop reading; may be called again."""
        self.end()
        self._leave(self)


class EventHub:
    """The event stream of one daemon; used on the loop thread."""

    def __init__(self, *, wall: Callable[[], float] = time.time, buffered_lines: int = BUFFERED_LINES) -> None:
        self._wall = wall
        self._buffered_lines = buffered_lines
        self._readers: list[Reader] = []

    def publish(self, note: Note) -> None:
        """Give a note to every reader."""
        if not self._readers:
            return
        line = _encode({"time": round(self._wall(), 3), **event_document(note)})
        for reader in self._readers:
            reader.put(line)

    def subscribe(self) -> Reader:
        """Begin to read; the caller closes the reader. Raises TooManyReadersError."""
        if len(self._readers) >= MAX_READERS:
            raise TooManyReadersError(f"{MAX_READERS} event readers are connected; end one of them first")
        reader = Reader(self._left, self._buffered_lines)
        self._readers.append(reader)
        return reader

    def close(self) -> None:
        """End every stream."""
        for reader in self._readers:
            reader.end()

    def __len__(self) -> int:
        """Return the number of readers."""
        return len(self._readers)

    def _left(self, reader: Reader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)


def event_document(note: Note) -> dict[str, object]:
    """Return a note as a JSON object: ``event`` names it, its fields follow.

    Durations are in seconds and end in ``_s``, sizes end in ``_bytes``, GPUs are a list.
    """
    document: dict[str, object] = {"event": _name(type(note))}
    for item in dataclasses.fields(note):
        value = getattr(note, item.name)
        if item.type is GpuSet:
            document[item.name] = list(gpu_indices(value))
        elif item.type is Duration:
            document[f"{item.name}_s"] = round(value / SECOND, 3)
        elif item.type is Bytes:
            document[f"{item.name}_bytes"] = value
        elif item.name == "timeline":
            document["timeline"] = stages_document(value)
        elif item.name == "stages":
            document["stages_s"] = {stage.value: round(duration / SECOND, 3) for stage, duration in value.items()}
        elif item.type is not Instant:  # a moment of the daemon's own clock means nothing outside
            document[item.name] = _plain(value)
    return document


def _name(kind: type) -> str:
    """``LoadFinished`` -> ``load_finished``."""
    if kind not in _NAMES:
        _NAMES[kind] = "".join(f"_{c.lower()}" if c.isupper() else c for c in kind.__name__).lstrip("_")
    return _NAMES[kind]


def _plain(value: object) -> object:
    match value:
        case enum.Enum():
            return value.value
        case str():
            return value if len(value) <= _MAX_TEXT else f"{value[:_MAX_TEXT]}…"
        case tuple():
            return list(value)
        case _:
            return value


def _encode(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
