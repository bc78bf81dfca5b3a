"""Reads files into the kernel's page cache, and asks the kernel how much of them is there. Blocks; for threads.

Several threads read at once, the front of the copy first. They announce a piece to the kernel and wait for it, and copy
nothing of it: that leaves the processors to those who serve. They never take memory that somebody else may want:
reading ends when too little is available. What the kernel keeps is its own affair.
"""

import ctypes
import errno
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from swapd.aio.threads import Stop, StoppedError

_PIECE: Final = 8 * 2**20
"""On its way at a time for each thread, so that the disk always has something to do."""
_ANNOUNCED: Final = 256 * 2**10
"""The kernel takes no more of one announcement than the disk takes in one request."""
_READ: Final = 2**20
_WINDOW: Final = 1024 * 2**20
"""Files are asked about in parts, so that the answer (a byte a page) stays small."""
_JOIN_S: Final = 10.0
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return the bytes that may be taken without anybody being swapped out or killed; 0 if that is not told."""
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


def resident_bytes(path: Path) -> int:
    """Return how much of a file is in memory; of a file of another user the kernel claims all. Raises ``OSError``."""
    found = 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for start in range(0, size, _WINDOW):
            found += _resident(file.fileno(), start, min(_WINDOW, size - start))
    return found


def _can_tell(status: os.stat_result, path: Path) -> bool:
    """Whether the kernel says what of a file is in memory; of files of others it claims that all is."""
    return os.geteuid() in (0, status.st_uid) or os.access(path, os.W_OK)


def _resident(descriptor: int, start: int, length: int) -> int:
    pages = -(-length // mmap.PAGESIZE)
    # a private, writable mapping of which nothing is ever touched: only such a one tells its address
    with mmap.mmap(
        descriptor, length, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=start
    ) as area:
        address = ctypes.c_char.from_buffer(area)
        answer = ctypes.create_string_buffer(pages)
        try:
            failed = _LIBC.mincore(ctypes.c_void_p(ctypes.addressof(address)), ctypes.c_size_t(length), answer)
        finally:
            del address  # or the mapping cannot be closed
        if failed:
            raise OSError(ctypes.get_errno(), "mincore failed")
    here = pages - answer.raw.count(0)
    return min(length, here * mmap.PAGESIZE)


@dataclass(frozen=True, slots=True)
class Warmth:
    """What became of reading a copy."""

    read: int
    present: int
    whole: bool


@dataclass(frozen=True, slots=True)
class _Piece:
    path: Path
    start: int
    stop: int
    #: the kernel says what of it is there
    tells: bool


class Warming:
    """One pass over the files of a copy; ``run`` blocks and belongs on a thread of its own."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        readers: int,
        spare: int,
        stop: Stop,
        available: Callable[[], int] = available_memory,
    ) -> None:
        self._paths = tuple(paths)
        self._readers = readers
        self._spare = spare
        self._stop = stop
        self._available = available
        self._lock = threading.Lock()
        self._work: deque[_Piece] = deque()
        self._read = 0
        self._present = 0
        self._all = True

    def run(self) -> Warmth:
        """Read what is not there, until all is, memory runs short or it is told to stop."""
        for path in self._paths:
            self._plan(path)
        count = min(self._readers, len(self._work))
        threads = [threading.Thread(target=self._run, name=f"swapd-warm-{n}", daemon=True) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not self._stop.stopped:
                thread.join(_JOIN_S)
            thread.join(_JOIN_S)
        with self._lock:
            return Warmth(self._read, self._present, self._all and not self._work)

    def _plan(self, path: Path) -> None:
        """Cut a file into pieces."""
        try:
            status = path.stat()
        except OSError:
            self._all = False
            return
        tells = _can_tell(status, path)
        for start in range(0, status.st_size, _PIECE):
            self._work.append(_Piece(path, start, min(start + _PIECE, status.st_size), tells))

    def _run(self) -> None:
        buffer = memoryview(bytearray(_READ))
        try:
            while (piece := self._next()) is not None:
                self._take(piece, buffer)
        except (OSError, StoppedError):
            with self._lock:
                self._all = False

    def _next(self) -> _Piece | None:
        self._stop.check()
        with self._lock:
            return self._work.popleft() if self._work else None

    def _take(self, piece: _Piece, buffer: memoryview) -> None:
        start, length = piece.start, piece.stop - piece.start
        with piece.path.open("rb", buffering=0) as file:
            descriptor = file.fileno()
            if os.fstat(descriptor).st_size < piece.stop:
                raise _shorter(piece)
            present = _resident(descriptor, start, length) if piece.tells else 0
            came = length - present if present < length and self._has_memory() else 0
            self._stop.check()
            if came:
                _announce(descriptor, start, piece.stop)
                if not piece.tells or _resident(descriptor, start, length) < length:
                    self._copy(descriptor, piece, buffer)
        with self._lock:
            self._present += present
            self._read += came

    def _has_memory(self) -> bool:
        """Whether every thread may read a piece; if not, it is over for all of them."""
        if self._available() - self._spare >= _PIECE * self._readers:
            return True
        with self._lock:
            self._all = False
            self._work.clear()
        return False

    def _copy(self, descriptor: int, piece: _Piece, buffer: memoryview) -> None:
        """Read a piece of which the kernel did not take all, or does not say whether it did."""
        at = piece.start
        while at < piece.stop:
            self._stop.check()
            count = os.preadv(descriptor, [buffer[: piece.stop - at]], at)
            if count == 0:
                raise _shorter(piece)
            at += count


def _shorter(piece: _Piece) -> OSError:
    return OSError(errno.ESTALE, "shorter than it was a moment ago", str(piece.path))


def _announce(descriptor: int, start: int, stop: int) -> None:
    """Let the kernel read a range, and wait until it has. Raises ``OSError``."""
    parts = range(start, stop, _ANNOUNCED)
    for at in parts:
        os.posix_fadvise(descriptor, at, min(_ANNOUNCED, stop - at), os.POSIX_FADV_WILLNEED)
    for at in parts:
        os.pread(descriptor, 1, min(at + _ANNOUNCED, stop) - 1)
