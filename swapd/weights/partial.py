"""Keeps one file while it is fetched, so that a fetch that was cut off at any point goes on where it was.

Rules:
* The data file grows in blocks, in any order. A block counts once its line stands in the journal, with its CRC. Neither
  is synced: after a crash of the machine each block in the journal is read again, and counts only if its CRC fits.
* A partial belongs to one content (``RemoteFile.identity``): another version of the file has another partial. Where the
  source does not tell versions apart, nothing of an earlier try is used.
* One process and one transfer at a time: a lock on a file of its own, which ends with its holder. A transfer that was
  told to stop may still be in the middle of a write; the next one waits for it.
* Being all here is not being complete: that is said by the marker of the copy alone.
"""

import errno
import fcntl
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Final, Self

from swapd.aio.threads import Stop
from swapd.weights.checks import MIB, begin_writing, block_bytes, block_crc, read_buffer
from swapd.weights.sources.base import RemoteFile

_LOCK_PAUSE_S: Final = 0.1
_BEGIN: Final = 8 * MIB
"""The disk is told to begin when so much has come."""


class Partial:
    """One file on its way; opened by one thread, written by several."""

    def __init__(self, directory: Path, file: RemoteFile, lock: int) -> None:
        self.file = file
        self.block = block_bytes(file.size)
        self.data_path = directory / "data"
        self._directory = directory
        self._lock = lock
        self._data = os.open(self.data_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._journal = -1
        #: moves when what had come is forgotten
        self.begun = 0
        #: CRC by block; ``None``: not here yet
        self._crcs: list[int | None] = [None] * -(-file.size // self.block)
        #: blocks from the start without a gap
        self._prefix = 0
        #: bytes that have come since the disk was told to begin
        self._fresh = 0
        #: somebody waits for bytes behind this
        self._awaited = 0
        self._changed = threading.Condition()

    @classmethod
    def open(cls, directory: Path, file: RemoteFile, stop: Stop) -> Self:
        """Open or begin a partial, and find out what of it is good. Raises ``OSError``, ``StoppedError``."""
        while True:
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except FileExistsError:
                if directory.exists():
                    raise
                continue  # it was removed just then
            lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                while not _locked(lock):
                    stop.pause(_LOCK_PAUSE_S)
                if _is_at(lock, directory / "lock"):
                    break
                os.close(lock)  # whoever held it has removed the folder
            except BaseException:
                os.close(lock)
                raise
        try:
            partial = cls(directory, file, lock)
        except BaseException:
            os.close(lock)
            raise
        try:
            partial._resume(stop)
        except BaseException:
            partial.close()
            raise
        return partial

    def close(self) -> None:
        """Close the files and let go of the lock."""
        for descriptor in (self._journal, self._data, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._journal = self._data = self._lock = -1

    @property
    def present(self) -> int:
        """Return how many bytes of it are here."""
        with self._changed:
            blocks = sum(crc is not None for crc in self._crcs)
            last_here = bool(self._crcs) and self._crcs[-1] is not None
        return blocks * self.block - (-self.file.size % self.block if last_here else 0)

    @property
    def crcs(self) -> tuple[int, ...]:
        """Return the CRC of each block of a file that is all here."""
        assert None not in self._crcs, "a file that is not all here has no checksums"
        return tuple(crc for crc in self._crcs if crc is not None)

    def missing(self, start: int, stop: int) -> tuple[int, int] | None:
        """Return the first range of blocks from ``start`` (of a block) to ``stop`` that is not here."""
        with self._changed:
            block, last = start // self.block, -(-stop // self.block)
            while block < last and self._crcs[block] is not None:
                block += 1
            if block == last:
                return None
            end = block
            while end < last and self._crcs[end] is None:
                end += 1
        return block * self.block, min(end * self.block, self.file.size)

    def write(self, data: memoryview, at: int) -> None:
        """Write bytes at their place. Raises ``OSError``."""
        while data:
            count = os.pwrite(self._data, data, at)
            data, at = data[count:], at + count

    def add(self, at: int, crc: int) -> None:
        """Note that the block that begins at ``at`` was written in full. Raises ``OSError``."""
        block = at // self.block
        os.write(self._journal, b"%d %08x\n" % (block, crc))
        with self._changed:
            self._crcs[block] = crc
            self._fresh += self.block
            self._advance()
            if self._worth_waking():
                self._changed.notify_all()

    def forget(self) -> None:
        """Begin anew. Raises ``OSError``."""
        with self._changed:
            self._crcs = [None] * len(self._crcs)
            self._prefix = 0
            self.begun += 1
        os.ftruncate(self._data, 0)
        self._begin_journal()

    def here(self) -> int:
        """Return up to where it is here without a gap."""
        with self._changed:
            return self._here()

    def wait_beyond(self, at: int, seconds: float) -> int:
        """Wait for bytes behind ``at``, for some time, or until the disk should begin to write.

        Return up to where it is here without a gap.
        """
        with self._changed:
            self._awaited = at
            self._changed.wait_for(self._worth_waking, seconds)
            return self._here()

    def _worth_waking(self) -> bool:
        """Tell whether who waits has to do something: waking it for each block takes turns of the processors."""
        return self._here() > self._awaited or self._fresh >= _BEGIN

    def _here(self) -> int:
        return min(self._prefix * self.block, self.file.size)

    def read(self, buffer: memoryview, at: int) -> int:
        """Read back what is here. Raises ``OSError``."""
        return os.preadv(self._data, [buffer], at)

    def begin_writing(self) -> None:
        """Let the disk begin with what has come, or all would have to be waited for at the end. May block.

        Nothing is done before enough has come. Raises ``FileNotFoundError`` if somebody has removed it.
        """
        with self._changed:
            if self._fresh < _BEGIN:
                return
            self._fresh = 0
        self._assert_there()
        begin_writing(self._data)

    def sync(self) -> None:
        """Make the data durable. Raises ``OSError``, as ``FileNotFoundError`` if somebody has removed it."""
        os.fsync(self._data)
        self._assert_there()

    def _assert_there(self) -> None:
        if not _is_at(self._data, self.data_path):
            raise FileNotFoundError(errno.ENOENT, "somebody has removed it while it was fetched", str(self.data_path))

    def _header(self) -> bytes:
        told = {"identity": self.file.identity, "size": self.file.size, "block": self.block}
        return json.dumps(told).encode() + b"\n"

    def _resume(self, stop: Stop) -> None:
        known = self._journalled() if self.file.recognisable else {}
        buffer, written = read_buffer(), os.fstat(self._data).st_size
        for block, crc in known.items():
            stop.check()
            start, end = block * self.block, min((block + 1) * self.block, self.file.size)
            if end <= written and block_crc(self._data, start, end, buffer) == crc:
                self._crcs[block] = crc
        self._advance()
        os.ftruncate(self._data, self.file.size if any(crc is not None for crc in self._crcs) else 0)
        self._begin_journal()

    def _journalled(self) -> dict[int, int]:
        """Return what the journal says; a line that was cut off by a crash, and all behind it, says nothing."""
        try:
            content = (self._directory / "journal").read_bytes()
        except FileNotFoundError:
            return {}
        header, _, rest = content.partition(b"\n")
        known: dict[int, int] = {}
        if header + b"\n" != self._header():
            return known
        for line in rest.split(b"\n")[:-1]:
            try:
                block, crc = line.split()
                known[int(block)] = int(crc, 16)
            except ValueError:
                break
        return {block: crc for block, crc in known.items() if 0 <= block < len(self._crcs)}

    def _begin_journal(self) -> None:
        """Write the journal anew with what counts; a crash meanwhile leaves the old one."""
        lines = [b"%d %08x\n" % (block, crc) for block, crc in enumerate(self._crcs) if crc is not None]
        fresh = self._directory / "journal.new"
        fresh.write_bytes(self._header() + b"".join(lines))
        fresh.replace(self._directory / "journal")
        if self._journal >= 0:
            os.close(self._journal)
        self._journal = os.open(self._directory / "journal", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _advance(self) -> None:
        while self._prefix < len(self._crcs) and self._crcs[self._prefix] is not None:
            self._prefix += 1


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def discard(directory: Path) -> bool:
    """Remove a partial that nobody writes; ``False``: somebody does. Raises ``OSError``."""
    try:
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        shutil.rmtree(directory, ignore_errors=True)
        return True
    try:
        if not _locked(lock):
            return False
        shutil.rmtree(directory)
    finally:
        os.close(lock)
    return True
