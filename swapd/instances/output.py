"""Keeps what an engine prints: one file per model, bounded in size, with its last lines at hand.

The engine writes to the file itself (append mode), so nothing of ours stands between it and its output. A file that
has grown too large is copied to ``<model>.log.1`` and emptied in place; the writer goes on at its beginning. What is
written between the copy and the emptying is lost: a few lines, once per file, against a daemon that must relay all.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

_TAIL_BYTES = 65_536
_LINE_CHARS = 2_000
#: terminal control sequences, and control characters but the tab
_NOISE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class Output:
    """The log of one run of a model."""

    def __init__(self, log_dir: Path, model: str, *, limit: int) -> None:
        """``limit`` is the size in bytes beyond which the file is moved aside."""
        self.path = log_dir / f"{quote(model, safe='')}.log"
        self._older = self.path.with_suffix(".log.1")
        self._limit = limit
        self._start = 0
        self._looked = 0
        self._rotated = False

    def begin(self) -> None:
        """Begin a new run: what is in the file so far belongs to earlier ones. Raises ``OSError``."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._start = self._looked = 0
        self._rotated = False
        with suppress(FileNotFoundError):
            size = self.path.stat().st_size
            if size > self._limit:
                self.path.replace(self._older)
            else:
                self._start = self._looked = size

    @contextmanager
    def writable(self) -> Iterator[int]:
        """Open the file for a process that is started meanwhile; raises ``OSError``."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def fresh(self) -> bytes:
        """Return what was written since the last call (at most the last 64 KiB of it), and keep the file bounded."""
        with suppress(OSError):
            size = self.path.stat().st_size
            fresh = _read(self.path, start=max(self._looked, size - _TAIL_BYTES)) if size > self._looked else b""
            self._looked = size
            if size > self._limit:
                self._move_aside()
            return fresh
        return b""

    def tail(self, lines: int) -> tuple[str, ...]:
        """Return the last lines of this run, whatever bytes they are: readable, and each cut at 2000 characters."""
        text = self._last_bytes().decode("utf-8", "replace")
        # a progress bar redraws its line after a carriage return: only its last state counts
        redrawn = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
        clean = (_NOISE.sub("", line).rstrip()[:_LINE_CHARS] for line in redrawn)
        return tuple([line for line in clean if line][-lines:]) if lines > 0 else ()

    def _last_bytes(self) -> bytes:
        last = b""
        with suppress(OSError):
            size = self.path.stat().st_size
            last = _read(self.path, start=max(self._start, size - _TAIL_BYTES))
            if self._rotated and len(last) < _TAIL_BYTES:
                older = self._older.stat().st_size
                last = _read(self._older, start=max(0, older - _TAIL_BYTES + len(last))) + last
        return last

    def _move_aside(self) -> None:
        shutil.copyfile(self.path, self._older)
        os.truncate(self.path, 0)
        self._start = self._looked = 0
        self._rotated = True


def _read(path: Path, *, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(_TAIL_BYTES)
