"""Keeps what an engine prints: one file per model, bounded in size, with its last lines at hand.

The engine writes to the file itself (append mode), so nothing of ours stands between it and its output. A file that
has grown too large is copied to ``<model>.log.1`` and emptied in place; the writer goes on at its beginning. What is
written between the copy and the emptying is lost: a few lines, once per file, against a daemon that must relay all.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import structlog

_log = structlog.get_logger(__name__)

_TAIL_BYTES = 65_536
_LINE_CHARS = 2_000
#: of a file's name without ending; file systems allow 255 with it
_NAME_BYTES = 200
_DIGEST_CHARS = 16
#: terminal control sequences, and control characters but the tab
_NOISE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class LogFileError(OSError):
    """The log file cannot be written; ``filename`` names it."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(error.errno, error.strerror or str(error), str(path))


class Output:
    """The log of one run of a model."""

    def __init__(self, log_dir: Path, model: str, *, limit: int) -> None:
        """``limit`` is the size in bytes beyond which the file is moved aside."""
        self.path = log_path(log_dir, model)
        self._older = self.path.with_suffix(".log.1")
        self._limit = limit
        self._start = 0
        self._looked = 0
        self._rotated = False

    def begin(self) -> None:
        """Begin a new run: what is in the file so far belongs to earlier ones. Raises ``LogFileError``."""
        self._start = self._looked = 0
        self._rotated = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                size = self.path.stat().st_size
                if size > self._limit:
                    self.path.replace(self._older)
                else:
                    self._start = self._looked = size
        except OSError as error:
            raise LogFileError(self.path, error) from error

    @contextmanager
    def writable(self) -> Iterator[int]:
        """Open the file for a process that is started meanwhile; raises ``LogFileError``."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise LogFileError(self.path, error) from error
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def out_of_space(self) -> bool:
        """Tell whether the file's disk is full: an engine may fail for the mere want of a place for its output."""
        with suppress(OSError):
            return shutil.disk_usage(self.path.parent).free == 0
        return False

    def fresh(self) -> bytes:
        """Return what was written since the last call (at most the last 64 KiB of it), and keep the file bounded."""
        fresh = b""
        with suppress(OSError):
            size = self.path.stat().st_size
            if size > self._looked:
                fresh = _read(self.path, start=max(self._looked, size - _TAIL_BYTES))
            self._looked = size
            if size > self._limit:
                self._move_aside()
        return fresh

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
        try:
            shutil.copyfile(self.path, self._older)
            copied = True
        except OSError as error:
            # most likely the disk is full: then the copy must not fill it further, nor the log itself
            copied = False
            _log.warning("log_not_kept", path=str(self.path), error=str(error))
            with suppress(OSError):
                self._older.unlink()
        os.truncate(self.path, 0)
        self._start = self._looked = 0
        self._rotated = copied


def existing_log(log_dir: Path, model: str) -> str | None:
    """Return the file with the output of a model's engines; of a model that never was started there is none."""
    path = log_path(log_dir, model)
    with suppress(OSError):
        path.stat()
        return str(path)
    return None


def log_path(log_dir: Path, model: str) -> Path:
    """Return the file with the output of a model's engines."""
    return log_dir / f"{_file_name(model)}.log"


def _file_name(model: str) -> str:
    name = quote(model, safe="")
    if len(name) <= _NAME_BYTES:
        return name
    digest = hashlib.sha256(model.encode()).hexdigest()[:_DIGEST_CHARS]
    # no quoted name holds "=", so a shortened one is never another model's whole name
    return f"{name[: _NAME_BYTES - _DIGEST_CHARS - 1]}={digest}"


def _read(path: Path, *, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(_TAIL_BYTES)
