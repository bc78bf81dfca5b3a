"""Reads objects through the drivers of ``fsspec``: S3 and whatever else has one.

Addresses and credentials are the driver's own affair (for S3: ``AWS_ENDPOINT_URL``, ``AWS_PROFILE``, the instance's
role, …). A driver hands out ranges as whole byte strings, so a range is asked for in pieces.
"""

from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from swapd.core.ids import Bytes
from swapd.weights.sources.base import ChangedError, Listing, RemoteFile, Source, SourceError, Stream, revision_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_PIECE: Final = 8 * 2**20


class StoreSource(Source):
    """``s3://bucket/prefix`` or ``s3://bucket/key``, and alike."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._scheme, _, self._path = url.partition("://")
        self._path = self._path.strip("/")
        try:
            import fsspec

            # its listings are kept for the process otherwise, and would hide what has changed
            self._store: AbstractFileSystem = fsspec.filesystem(self._scheme, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise SourceError(f"{self._scheme}:// needs a driver: install swapd[s3]", permanent=True) from error

    @override
    def list(self) -> Listing:
        try:
            found: dict[str, dict[str, Any]] = self._store.find(self._path, detail=True)
        except Exception as error:
            raise self._failed(error) from error
        files = tuple(
            self._described(path, told)
            for path, told in found.items()
            if told.get("type") == "file" and not path.endswith("/")
        )
        return Listing(revision_of(files), files)

    def _described(self, path: str, told: dict[str, Any]) -> RemoteFile:
        name = path.removeprefix(self._path).strip("/") or path.rpartition("/")[2]
        return RemoteFile(name, Bytes(int(told["size"])), path, _tag(told))

    @override
    def open(self, file: RemoteFile, start: int, stop: int) -> Stream:
        try:
            told = self._store.info(file.where)
        except Exception as error:
            raise self._failed(error) from error
        if _tag(told) != file.tag or int(told["size"]) != file.size:
            raise ChangedError(f"{self._scheme}://{file.where} has changed while it was fetched")
        return _StoreStream(self, file, start, stop)

    def piece(self, file: RemoteFile, start: int, stop: int) -> bytes:
        """Ask for one piece of a file."""
        try:
            return bytes(self._store.cat_file(file.where, start=start, end=stop))
        except Exception as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> SourceError:
        """Put into words what a driver raised; drivers of all kinds map what they know to these two."""
        refused = isinstance(error, FileNotFoundError | PermissionError)
        text = str(error) or type(error).__name__
        return SourceError(f"{self._url} cannot be read: {text}", permanent=refused)


class _StoreStream:
    def __init__(self, source: StoreSource, file: RemoteFile, start: int, stop: int) -> None:
        self._source, self._file = source, file
        self._at, self._stop = start, stop
        self._piece = memoryview(b"")
        self._closed = False

    def readinto(self, buffer: memoryview) -> int:
        if self._closed:
            raise SourceError("closed")
        if not self._piece and self._at < self._stop:
            until = min(self._at + _PIECE, self._stop)
            self._piece = memoryview(self._source.piece(self._file, self._at, until))
            self._at += len(self._piece)
        count = min(len(buffer), len(self._piece))
        buffer[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        return count

    def close(self) -> None:
        """Take no further piece; the one that is on its way is let come."""
        self._closed = True


def _tag(told: dict[str, Any]) -> str:
    """Return what a driver calls the version of an object; drivers differ in the name."""
    for name in ("ETag", "etag", "md5", "LastModified", "last_modified", "mtime"):
        if told.get(name):
            return str(told[name]).strip('"')
    return ""
