"""Computes checksums of files and of blocks, and makes what was written durable. Blocks; for threads."""

import ctypes
import hashlib
import os
from pathlib import Path
from typing import Final, Protocol

from isal.isal_zlib import crc32

from swapd.weights.sources.base import Checksum

MIB: Final = 2**20
_SMALL: Final = 1024 * MIB
_READ: Final = 1 * MIB
_LIBC: Final = ctypes.CDLL(None)
_SYNC_FILE_RANGE_WRITE: Final = 2


class Digest(Protocol):
    """What ``hashlib`` makes."""

    def update(self, data: memoryview, /) -> None:
        """Take the next bytes."""
        ...

    def hexdigest(self) -> str:
        """Return the checksum of all bytes so far."""
        ...


def digest_for(checksum: Checksum, size: int) -> Digest:
    """Start a checksum of a file of ``size`` bytes."""
    if checksum.algorithm == "git":
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    return hashlib.new(checksum.algorithm)


def block_bytes(size: int) -> int:
    """Return how large the blocks are by which a file's transfer is recorded."""
    return MIB if size < _SMALL else 4 * MIB


def block_crc(descriptor: int, start: int, stop: int, buffer: memoryview) -> int:
    """Return the CRC-32 of a range of a file; of less, if the file ends early. Raises ``OSError``."""
    crc, at = 0, start
    while at < stop:
        count = os.preadv(descriptor, [buffer[: min(len(buffer), stop - at)]], at)
        if count == 0:
            break
        crc = crc32(buffer[:count], crc)
        at += count
    return crc


def read_buffer() -> memoryview:
    """Make a buffer to read files with."""
    return memoryview(bytearray(_READ))


def begin_writing(descriptor: int) -> None:
    """Let the kernel begin to write what it keeps of a file in memory; returns at once, and promises nothing."""
    begin = getattr(_LIBC, "sync_file_range", None)
    if begin is not None:
        begin(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _SYNC_FILE_RANGE_WRITE)


def write_durably(path: Path, content: bytes) -> None:
    """Put a file there whole: after a crash it has its old content or the new one. Raises ``OSError``."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
