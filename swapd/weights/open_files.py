"""Finds out whether a process has a file of a copy open or mapped, from the process table. Blocks; for threads.

Processes of other users cannot be looked into; of those the core's word is all there is.
"""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from swapd.weights.copies import Inode

_PROC: Final = Path("/proc")


def in_use(inodes: Collection[Inode], *, names: Collection[str]) -> bool:
    """Whether another process has one of the files open or mapped; ``names``: of the files, without folders."""
    own = str(os.getpid())
    with os.scandir(_PROC) as entries:
        pids = [entry.name for entry in entries if entry.name.isdecimal() and entry.name != own]
    numbers = {str(number) for _, number in inodes}
    return any(_has_open(pid, inodes) or _has_mapped(pid, numbers, names) for pid in pids)


def _has_open(pid: str, inodes: Collection[Inode]) -> bool:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    # a stat follows the link into sockets and devices; only paths can be ours
                    if os.readlink(entry.path).startswith("/"):  # noqa: PTH115 - thousands of them
                        status = os.stat(entry.path)  # noqa: PTH116 - see above
                        if (status.st_dev, status.st_ino) in inodes:
                            return True
                except OSError:  # closed since it was listed
                    continue
    except OSError:
        return False
    return False


def _has_mapped(pid: str, numbers: Collection[str], names: Collection[str]) -> bool:
    """Look into a process's mappings: an engine may map a file and close it.

    Told by inode and name: the device in this list is not that of ``stat`` on file systems with subvolumes.
    """
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as lines:  # noqa: PTH123 - see above
            for line in lines:
                parts = line.split(maxsplit=5)
                if len(parts) > 5 and parts[4] in numbers and parts[5].rstrip().rpartition("/")[2] in names:
                    return True
    except OSError:
        return False
    return False
