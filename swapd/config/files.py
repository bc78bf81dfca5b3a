"""Looks at the files a configuration names: finds programs, measures weights."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from swapd.core.ids import Bytes

MAX_FILES: Final = 10_000
_SHARD: Final = re.compile(r"(.+)-00001-of-([0-9]{5})\.gguf")


class TooManyFilesError(Exception):
    """A directory of weights holds more files than any model."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a model as they lie on the disk."""

    size: Bytes
    #: changes with the path, and with the size or the modification time of any file
    fingerprint: str


def weigh(path: Path) -> Weights:
    """Measure a file, a directory, or all shards of a split GGUF. Raises OSError, TooManyFilesError."""
    size, digest = 0, hashlib.blake2b(str(path).encode(errors="surrogateescape"), digest_size=16)
    for name, status in _files(path):
        size += status.st_size
        digest.update(f"\0{name}\0{status.st_size}\0{status.st_mtime_ns}".encode(errors="surrogateescape"))
    return Weights(Bytes(size), digest.hexdigest())


def _files(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    if path.is_dir():
        found = sorted(_below(path))
    elif shard := _SHARD.fullmatch(path.name):
        found = [path.with_name(f"{shard[1]}-{number:05}-of-{shard[2]}.gguf") for number in range(1, int(shard[2]) + 1)]
    else:
        found = [path]
    for file in found:
        yield file.name if file == path else os.path.relpath(file, path), file.stat()


def _below(path: Path) -> Iterator[Path]:
    count = 0
    for directory, _, names in os.walk(path):
        for name in names:
            count += 1
            if count > MAX_FILES:
                raise TooManyFilesError
            file = Path(directory, name)
            if file.exists():
                yield file


def find_program(program: str, directory: Path, env_path: str | None) -> str | None:
    """Return the path of an executable: relative to ``directory`` if it has a slash, else looked up on PATH."""
    if "/" in program:
        return shutil.which(directory / Path(program).expanduser())
    return shutil.which(program, path=env_path)
