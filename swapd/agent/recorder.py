"""Keeps the last facts, so that what led to a broken law can be read and run again.

The dump is one JSON line per fact, oldest first: ``{"event": <name>, <fields>}``; times in nanoseconds.
"""

import dataclasses
import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from swapd.core.events import Event

_CAPACITY = 4096


class FlightRecorder:
    """A ring of the last facts, in memory."""

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._events: deque[Event] = deque(maxlen=capacity)
        #: remembers a fact; the oldest one is forgotten when the ring is full
        self.record: Final = self._events.append

    def dump(self, path: Path) -> int:
        """Write the ring to ``path`` and return the number of facts. Raises OSError."""
        lines = [json.dumps({"event": type(event).__name__, **_plain(event)}) for event in self._events]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return len(lines)


def _plain(value: object) -> dict[str, object]:
    assert dataclasses.is_dataclass(value)
    return {field.name: _json(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _json(value: object) -> object:
    """Turn core values into JSON: dataclasses to objects, mappings with composite keys to lists of pairs."""
    if dataclasses.is_dataclass(value):
        return _plain(value)
    if isinstance(value, Mapping):
        return [[_json(key), _json(item)] for key, item in value.items()]
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    return value
