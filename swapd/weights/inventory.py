"""Finds out what lies in the cache's folder. Blocks; for threads; changes nothing but what an earlier run left behind.

    PATH/NAME-REVISION-DIGEST/   a copy, see ``copies``
    PATH/.swapd/partial/ID/      a file on its way, see ``partial``
    PATH/.swapd/staging/         a copy that is being put together
    PATH/.swapd/trash/           what is being removed

Everything else is foreign: it is counted, and never touched.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from swapd.core.catalog import CopyKey, copy_key
from swapd.weights.copies import Copy, Inode, read_copy, remove_tree
from swapd.weights.settings import Weights
from swapd.weights.sources.http import shown

_OWN: Final = ".swapd"
_SECTOR: Final = 512
"""Bytes of one block of ``st_blocks``, whatever the file system's are."""
_NAME_LENGTH: Final = 80


@dataclass(frozen=True, slots=True)
class Layout:
    """Where what lies."""

    path: Path

    @property
    def own(self) -> Path:
        """Return the folder of all that is not finished."""
        return self.path / _OWN

    @property
    def partials(self) -> Path:
        """Return the folder of the files on their way."""
        return self.own / "partial"

    @property
    def staging(self) -> Path:
        """Return the folder in which copies are put together."""
        return self.own / "staging"

    @property
    def trash(self) -> Path:
        """Return the folder of what is being removed."""
        return self.own / "trash"

    def make(self) -> None:
        """Create the folders, as far as they are not there. Raises ``OSError``."""
        for folder in (self.staging, self.trash, self.partials):
            folder.mkdir(parents=True, exist_ok=True)

    def tidy(self) -> None:
        """Take apart what an earlier run was putting together, or was removing. Raises ``OSError``."""
        for half in self.staging.iterdir():
            remove_tree(half)  # links alone
        for partial in self.partials.iterdir():
            if _is_done(partial):
                remove_tree(partial)

    def rubbish(self) -> Mapping[Path, int]:
        """Return what an earlier run was removing, with its bytes on the disk."""
        return {path: on_disk(path) for path in sorted(self.trash.iterdir())}

    def place(self, weights: Weights, revision: str) -> Path:
        """Return where the copy of a revision belongs."""
        if weights.source.startswith("hf://"):
            words = _words(weights.source.removeprefix("hf://").partition("@")[0])
        else:
            parts = urlsplit(shown(weights.source))
            words = _words(f"{parts.netloc}{parts.path}")
        return self.path / f"{words[-_NAME_LENGTH:].lstrip('-.') or 'weights'}-{_words(revision)}-{wanted(weights)[:8]}"


def _words(text: str) -> str:
    """Return what may stand in the name of a folder."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")


def wanted(weights: Weights) -> CopyKey:
    """Name weights: models that ask for the same share one copy."""
    return copy_key(weights.source, include=weights.include, sha256=weights.sha256)


@dataclass(frozen=True, slots=True)
class Found:
    """What lies in the folder."""

    #: by folder
    copies: Mapping[str, Copy]
    #: bytes on the disk that are nobody else's, by the name of the partial
    partials: Mapping[str, int]
    #: bytes of what is not the cache's own
    foreign: int


def scan(layout: Layout) -> Found:
    """Look at everything below the cache's folder. Raises ``OSError`` if that is there and cannot be read."""
    copies: dict[str, Copy] = {}
    foreign = 0
    if not layout.path.exists():
        return Found(copies, {}, foreign)
    with os.scandir(layout.path) as entries:
        for entry in entries:
            if entry.name == _OWN:
                continue
            copy = read_copy(Path(entry.path)) if entry.is_dir(follow_symlinks=False) else None
            if copy is not None:
                copies[entry.name] = copy
            else:
                foreign += on_disk(Path(entry.path))
    partials = {}
    if layout.partials.is_dir():
        partials = {path.name: 0 if _is_done(path) else on_disk(path) for path in sorted(layout.partials.iterdir())}
    return Found(dict(sorted(copies.items())), partials, foreign)


def _is_done(partial: Path) -> bool:
    """Whether a copy has the bytes of a partial, or nobody any more: it is what is left, and to be removed."""
    try:
        return (partial / "data").stat().st_nlink > 1
    except OSError:
        return True


def on_disk(path: Path) -> int:
    """Return the bytes that a file, or all below a folder, takes on the disk; each inode once."""
    seen: dict[Inode, int] = {}
    for file in _walk(path):
        try:
            status = os.lstat(file)
        except OSError:
            continue
        seen[status.st_dev, status.st_ino] = status.st_blocks * _SECTOR
    return sum(seen.values())


def _walk(path: Path) -> Iterator[str]:
    yield str(path)
    if path.is_symlink():
        return  # what it points to lies elsewhere
    for directory, folders, names in os.walk(path):
        for name in (*folders, *names):
            yield f"{directory}/{name}"
