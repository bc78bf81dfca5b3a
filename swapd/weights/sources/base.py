"""Defines what a source of weights is.

Everything here blocks and is called on threads of its own, several at a time on one source. A source keeps nothing on
the disk, retries nothing, and raises ``SourceError`` alone.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Final, Protocol

from swapd.core.ids import Bytes

MAX_FILES: Final = 10_000
"""More files than any model has."""
_MOST_BYTES: Final = 10**18
"""A larger file is a lie."""
_MOST_NAME: Final = 1000
_MOST_PART: Final = 255
_SHOWN: Final = 80


class SourceError(Exception):
    """The source did not give what was asked for; one sentence."""

    def __init__(self, sentence: str, *, permanent: bool = False, after_s: float = 0.0) -> None:
        """``permanent``: trying again cannot help; ``after_s``: the source does not want to be asked earlier."""
        super().__init__(sentence)
        self.permanent = permanent
        self.after_s = after_s


class ChangedError(SourceError):
    """The source has another version of the file than it had when it was listed."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """What the content of a file must amount to."""

    #: ``sha256``, or ``git`` for the name that git gives to a file's content (SHA-1 over a header and the content)
    algorithm: str
    digest: str


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file as a source has it."""

    #: relative path below the copy's folder
    name: str
    size: Bytes
    #: where the source finds it
    where: str
    #: changes with the content (ETag, time of the last change); empty: the source does not tell versions apart
    tag: str
    checksum: Checksum | None = None
    #: any range of it can be had
    ranges: bool = True

    @property
    def identity(self) -> str:
        """Return a name for the content: files with equal ones are the same bytes."""
        told = self.checksum
        parts = (told.algorithm, told.digest) if told is not None else (self.where, self.tag)
        return hashlib.sha256("\0".join((*parts, str(self.size))).encode()).hexdigest()[:32]

    @property
    def recognisable(self) -> bool:
        """Whether a later part of it can be told to belong to an earlier one."""
        return bool(self.tag) or self.checksum is not None


@dataclass(frozen=True, slots=True)
class Listing:
    """All that a source has of one model."""

    #: names this version, in words that may stand in a path
    revision: str
    files: tuple[RemoteFile, ...]
    #: the addresses name the version as well: what is found there never changes
    lasting: bool = False


class Stream(Protocol):
    """A range of a file on its way."""

    def readinto(self, buffer: memoryview) -> int:
        """Wait for some bytes; return how many, 0 at the end. Raises ``SourceError``."""
        ...

    def close(self) -> None:
        """End it; from any thread, also while ``readinto`` waits, which then returns or raises."""
        ...


class Source(Protocol):
    """Where the weights of one model come from."""

    def list(self) -> Listing:
        """Ask for the files. Raises ``SourceError``."""
        ...

    def open(self, file: RemoteFile, start: int, stop: int) -> Stream:
        """Ask for bytes ``start`` up to ``stop`` of a file. Raises ``SourceError``, ``ChangedError``."""
        ...


def revision_of(files: Iterable[RemoteFile]) -> str:
    """Name the version of files that have no revision of their own."""
    told = "\0".join(f"{file.name}\0{file.identity}" for file in sorted(files, key=lambda file: file.name))
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def select(files: Iterable[RemoteFile], include: tuple[str, ...], *, source: str) -> tuple[RemoteFile, ...]:
    """Return the wanted files, by name.

    Raises ``SourceError`` where there are none, too many, or some that cannot be kept under their names.
    """
    chosen = [file for file in files if not include or any(fnmatchcase(file.name, pattern) for pattern in include)]
    if not chosen:
        wanted = f"that matches {', '.join(include)}" if include else "at all"
        raise SourceError(f"{source} has no file {wanted}", permanent=True)
    if len(chosen) > MAX_FILES:
        raise SourceError(f"{source} has {len(chosen)} files; a model has at most {MAX_FILES}", permanent=True)
    for file in chosen:
        if not keepable(file.name):
            raise SourceError(f"{source} has a file named {_cut(file.name)}, which cannot be kept", permanent=True)
        if not 0 <= file.size <= _MOST_BYTES:
            raise SourceError(f"{source} says that {_cut(file.name)} has {file.size} bytes", permanent=True)
    places = sorted(PurePosixPath(file.name).parts for file in chosen)
    for one, next_one in pairwise(places):
        if next_one[: len(one)] == one:
            raise SourceError(f"{source} has two files at {_cut('/'.join(one))}", permanent=True)
    return tuple(sorted(chosen, key=lambda file: file.name))


def keepable(name: str) -> bool:
    """Whether a file can have this name below the copy's folder, on every file system."""
    parts = PurePosixPath(name).parts
    try:
        lengths = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return False
    if not parts or sum(lengths) > _MOST_NAME or max(lengths) > _MOST_PART:
        return False
    return name.isprintable() and ".." not in parts and not parts[0].startswith(("/", ".swapd"))


def _cut(name: str) -> str:
    return repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…")
