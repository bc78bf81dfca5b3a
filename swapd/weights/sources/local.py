"""Reads weights from a path of this machine: a mounted store, or a disk that is slower than the cache's."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from typing_extensions import override

from swapd.core.ids import Bytes
from swapd.weights.sources.base import MAX_FILES, ChangedError, Listing, RemoteFile, Source, SourceError, revision_of


class LocalSource(Source):
    """``file:///path`` of a file or a directory."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost"):
            raise SourceError(f"{url} names a host; a file URL has three slashes", permanent=True)
        self._path = Path(unquote(parts.path))

    @override
    def list(self) -> Listing:
        try:
            files = tuple(self._files())
        except OSError as error:
            raise _refused(error) from error
        return Listing(revision_of(files), files)

    def _files(self) -> Iterator[RemoteFile]:
        if not self._path.is_dir():
            yield _described(self._path, self._path.name)
            return
        for count, path in enumerate(path for path in sorted(self._path.rglob("*")) if path.is_file()):
            if count > MAX_FILES:
                raise SourceError(f"{self._path} has more than {MAX_FILES} files", permanent=True)
            yield _described(path, path.relative_to(self._path).as_posix())

    @override
    def open(self, file: RemoteFile, start: int, stop: int) -> "LocalStream":
        try:
            descriptor = os.open(file.where, os.O_RDONLY | os.O_CLOEXEC)
            if _tag(os.fstat(descriptor)) != file.tag:
                os.close(descriptor)
                raise ChangedError(f"{file.where} has changed while it was read")
        except OSError as error:
            raise _refused(error) from error
        return LocalStream(descriptor, start, stop)


class LocalStream:
    """A range of a file; used by one thread, closed by any."""

    def __init__(self, descriptor: int, start: int, stop: int) -> None:
        self._file = os.fdopen(descriptor, "rb", buffering=0)
        self._at, self._stop = start, stop

    def readinto(self, buffer: memoryview) -> int:
        """Read the next bytes; 0 at the end of the range or of the file."""
        wanted = min(len(buffer), self._stop - self._at)
        if wanted <= 0:
            return 0
        try:
            count = os.preadv(self._file.fileno(), [buffer[:wanted]], self._at)
        except (OSError, ValueError) as error:  # ValueError: closed
            raise SourceError(f"{self._file.name} could not be read: {error}") from error
        self._at += count
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _described(path: Path, name: str) -> RemoteFile:
    status = path.stat()
    return RemoteFile(name, Bytes(status.st_size), str(path), _tag(status))


def _tag(status: os.stat_result) -> str:
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


def _refused(error: OSError) -> SourceError:
    gone = isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError)
    return SourceError(f"{error.filename} cannot be read: {error.strerror}", permanent=gone)
