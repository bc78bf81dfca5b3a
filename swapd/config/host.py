"""Finds out how much host memory this machine, or the control group the daemon runs in, lets processes take.

Engines are the daemon's children, so whatever limits the daemon limits them; of nested limits the smallest counts.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from swapd.core.ids import Bytes

_RESERVE_LEAST: Final = 2 << 30
_ROOT: Final = Path("/")


def available_memory(root: Path = _ROOT) -> Bytes | None:
    """Return the memory that models may take: the whole, less a tenth (2 GiB at least, half of it at most).

    ``None``: the system does not tell how much it has. ``root`` is where ``proc`` and ``sys`` are found.
    """
    total = _machine(root)
    if total is None:
        return None
    for limit in _limits(root):
        total = min(total, limit)
    return Bytes(total - min(max(total // 10, _RESERVE_LEAST), total // 2))


def _machine(root: Path) -> int | None:
    for line in _text(root / "proc" / "meminfo").splitlines():
        key, _, value = line.partition(":")
        if key == "MemTotal":
            return int(value.split()[0]) << 10
    return None


def _limits(root: Path) -> Iterator[int]:
    """Yield the limit of each control group around this process, of both versions."""
    mounted = root / "sys" / "fs" / "cgroup"
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            # beside version 1, version 2 is mounted below
            places = [(mounted, "memory.max"), (mounted / "unified", "memory.max")]
        elif "memory" in controllers.split(","):
            places = [(mounted / "memory", "memory.limit_in_bytes")]
        else:
            continue
        path = PurePosixPath(group)
        for place, name in places:
            for level in (path, *path.parents):
                # in a container the path may lead nowhere, and the outermost one is the container's own group
                limit = _text(place / str(level).lstrip("/") / name).strip()
                if limit.isdecimal():  # or "max", or no such file
                    yield int(limit)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
