"""Reads and writes complete copies: a folder per model and revision, complete by its marker.

Rules:
* A copy is put together beside its place, its marker is written last, and the folder is then moved into its place in
  one step: what stands there without a marker was put there by somebody else.
* The marker names every file with size, time of change and CRCs. A file that is missing or has another size is gone;
  one with another time is doubted, and counts again only when its content was read and found the same.
* Files are hard links where another copy, or a partial, has the same content: the bytes lie on the disk once.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from swapd.core.ids import Bytes
from swapd.weights.checks import block_crc, digest_for, read_buffer, sync_directory, write_durably
from swapd.weights.sources.base import Checksum, RemoteFile, keepable

MARKER: Final = ".swapd.json"
_CONDEMNED: Final = ".swapd.damaged"
_VERSION: Final = 1
_SHARD: Final = re.compile(r".+-([0-9]{5})-of-[0-9]{5}\.gguf")
Inode = tuple[int, int]
"""Device and inode number: one file, whatever it is called."""


@dataclass(frozen=True, slots=True)
class MarkedFile:
    """One file of a copy, as its marker has it."""

    name: str
    size: Bytes
    #: of its content, see ``RemoteFile.identity``
    identity: str
    block: int
    #: CRC-32 of each block
    crcs: tuple[int, ...]
    #: as the source promised it
    checksum: Checksum | None
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Marker:
    """What stands in a copy's folder beside its files."""

    #: which weights it is a copy of, see ``wanted``
    weights: str
    source: str
    revision: str
    files: tuple[MarkedFile, ...]
    #: bytes that came from the source, and how long that took
    fetched: Bytes
    took_ns: int


@dataclass(frozen=True, slots=True)
class Copy:
    """One folder with a marker, as it was found."""

    path: Path
    marker: Marker
    #: by name: the files that are there with the size and time of the marker
    sound: Mapping[str, Inode] = field(default_factory=dict)
    #: names of the files that are there with another time
    doubted: tuple[str, ...] = ()
    #: a check found it damaged, perhaps in an earlier run
    condemned: bool = False

    @property
    def folder(self) -> str:
        """Return its name in the cache."""
        return self.path.name

    @property
    def whole(self) -> bool:
        """Whether every file is there as it should be."""
        return len(self.sound) == len(self.marker.files)

    @property
    def size(self) -> Bytes:
        """Return the size of all its files, links or not."""
        return Bytes(sum(file.size for file in self.marker.files))

    @property
    def came_ns(self) -> int:
        """Return when the last of its files came."""
        return max((file.mtime_ns for file in self.marker.files), default=0)

    @property
    def blobs(self) -> Mapping[Inode, int]:
        """Return the sizes of what it holds on the disk."""
        sizes = {file.name: file.size for file in self.marker.files}
        return {inode: sizes[name] for name, inode in self.sound.items()}

    def engine_path(self) -> Path:
        """Return what an engine is given: the only file, the first part of a split one, or the folder."""
        names = sorted(file.name for file in self.marker.files)
        if len(names) == 1 or all(_SHARD.fullmatch(name) for name in names):
            return self.path / names[0]
        return self.path


def weight_files(path: Path) -> list[Path]:
    """Return the files that an engine reads which is given a path: it, the other parts of it, or all below it.

    Blocks. Raises ``OSError``.
    """
    if path.is_dir():
        return [file for file in sorted(path.rglob("*")) if file.is_file()]
    if _SHARD.fullmatch(path.name) is None:
        return [path]
    stem = path.name[: -len("-00001-of-00001.gguf")]
    rest = path.name[-len("-of-00001.gguf") :]
    return [file for file in sorted(path.parent.iterdir()) if file.name.startswith(stem) and file.name.endswith(rest)]


def read_copy(folder: Path) -> Copy | None:
    """Look at a folder; ``None``: it has no marker, or none that can be read."""
    try:
        marker = _parsed(json.loads((folder / MARKER).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    sound: dict[str, Inode] = {}
    doubted = []
    for file in marker.files:
        try:
            status = (folder / file.name).stat()
        except OSError:
            continue
        if status.st_size == file.size and status.st_mtime_ns == file.mtime_ns:
            sound[file.name] = (status.st_dev, status.st_ino)
        elif status.st_size == file.size:
            doubted.append(file.name)
    return Copy(folder, marker, sound, tuple(doubted), (folder / _CONDEMNED).exists())


def condemn(copy: Copy) -> None:
    """Mark a copy as damaged, for later runs too. Raises ``OSError``."""
    (copy.path / _CONDEMNED).touch()


def check_file(folder: Path, file: MarkedFile) -> str:
    """Read a file through; return what is wrong with it in one sentence, or nothing. Blocks for long."""
    buffer = read_buffer()
    try:
        with (folder / file.name).open("rb", buffering=0) as opened:
            descriptor = opened.fileno()
            if os.fstat(descriptor).st_size != file.size:
                return f"{file.name} has {os.fstat(descriptor).st_size} bytes instead of {file.size}"
            for number, crc in enumerate(file.crcs):
                start = number * file.block
                if block_crc(descriptor, start, min(start + file.block, file.size), buffer) != crc:
                    return f"{file.name} is damaged between the bytes {start} and {start + file.block}"
            if file.checksum is None:
                return ""
            digest = digest_for(file.checksum, file.size)
            while count := opened.readinto(buffer) or 0:
                digest.update(buffer[:count])
    except OSError as error:
        return f"{file.name} cannot be read: {error.strerror}"
    if digest.hexdigest() != file.checksum.digest.lower():
        return f"{file.name} has another checksum than its source promised"
    return ""


def settle_doubts(copy: Copy) -> Copy:
    """Read the doubted files; accept those with the right content, in the marker too. Blocks. Raises ``OSError``."""
    files, sound = list(copy.marker.files), dict(copy.sound)
    for index, file in enumerate(files):
        if file.name in copy.doubted and not check_file(copy.path, file):
            status = (copy.path / file.name).stat()
            files[index] = replace(file, mtime_ns=status.st_mtime_ns)
            sound[file.name] = (status.st_dev, status.st_ino)
    marker = replace(copy.marker, files=tuple(files))
    if marker != copy.marker:
        write_durably(copy.path / MARKER, _text(marker))
    return Copy(copy.path, marker, sound)


@dataclass(frozen=True, slots=True)
class Piece:
    """A file that a new copy is made of."""

    file: RemoteFile
    #: where its content lies now
    path: Path
    block: int
    crcs: tuple[int, ...]


def assemble(place: Path, staging: Path, pieces: Sequence[Piece], marker: Marker) -> Copy:
    """Put a copy together and move it into its place, or a place named alike if somebody is there.

    The marker's files are filled in here. Raises ``OSError``.
    """
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    marked = []
    directories = {staging}
    for piece in pieces:
        target = staging / piece.file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        directories.update(parent for parent in target.parents if staging in parent.parents)
        link_or_move(piece.path, target)
        file = piece.file
        mtime_ns = target.stat().st_mtime_ns
        marked.append(MarkedFile(file.name, file.size, file.identity, piece.block, piece.crcs, file.checksum, mtime_ns))
    marker = replace(marker, files=tuple(marked))
    for directory in sorted(directories, reverse=True):
        sync_directory(directory)
    write_durably(staging / MARKER, _text(marker))
    number = 1
    while place.exists():  # an older copy that cannot be used, but has to stay or is only just leaving
        number += 1
        place = place.with_name(f"{place.name.partition('~')[0]}~{number}")
    staging.rename(place)
    sync_directory(place.parent)
    made = read_copy(place)
    assert made is not None, "a copy that was just written can be read"
    return made


def link_or_move(path: Path, target: Path) -> None:
    """Give a file a second name; where the file system has no links, another name. Raises ``OSError``."""
    try:
        target.hardlink_to(path)
    except OSError:
        if not path.exists():
            raise
        path.rename(target)


def remove_tree(path: Path) -> None:
    """Remove a folder as far as possible; what cannot be removed stays and is counted. Never raises ``OSError``."""
    with contextlib.suppress(OSError):
        shutil.rmtree(path)


def _text(marker: Marker) -> bytes:
    files = [
        {
            "name": file.name,
            "size": file.size,
            "identity": file.identity,
            "checksum": [file.checksum.algorithm, file.checksum.digest] if file.checksum else None,
            "mtime_ns": file.mtime_ns,
            "block": file.block,
            "crc32": "".join(f"{crc:08x}" for crc in file.crcs),
        }
        for file in marker.files
    ]
    told = {
        "version": _VERSION,
        "weights": marker.weights,
        "source": marker.source,
        "revision": marker.revision,
        "fetched": marker.fetched,
        "took_ns": marker.took_ns,
        "files": files,
    }
    return json.dumps(told, indent=1).encode()


def _parsed(told: Mapping[str, Any]) -> Marker:
    if told["version"] != _VERSION:
        raise ValueError("a marker of another version")
    files = tuple(
        MarkedFile(
            name=str(file["name"]),
            size=Bytes(int(file["size"])),
            identity=str(file["identity"]),
            block=int(file["block"]),
            crcs=tuple(int(file["crc32"][at : at + 8], 16) for at in range(0, len(file["crc32"]), 8)),
            checksum=Checksum(*file["checksum"]) if file["checksum"] else None,
            mtime_ns=int(file["mtime_ns"]),
        )
        for file in told["files"]
    )
    if not all(keepable(file.name) for file in files):
        raise ValueError("a file outside of the copy")
    return Marker(
        str(told["weights"]), str(told["source"]), str(told["revision"]), files, Bytes(told["fetched"]), told["took_ns"]
    )
