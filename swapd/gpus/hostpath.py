"""Reads from the host's ``/sys`` how a PCI device is placed, below a root that tests and containers set.

What cannot be read is absent: no file that is missing, odd or unreadable raises.
"""

import re
from pathlib import Path
from typing import Final

_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_BDF: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: the most that Linux is built for, where the host does not say
_MOST_CPUS: Final = 8192
_MOST_NODES: Final = 1024


class HostPath:
    """The host's ``/sys``, read anew at each question."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._sys = root / "sys"

    def numa_node(self, bdf: str) -> int:
        """Return the NUMA node that the kernel puts a device on; -1: not known."""
        text = self._read(f"bus/pci/devices/{bdf}/numa_node") if bdf else None
        return int(text) if text and text.isdecimal() else -1

    def pcie_path(self, bdf: str) -> tuple[str, tuple[str, ...]]:
        """Return the root above a device, and the bridges between its root port and it, outermost first.

        Both are empty when there is no such device. A root port is no bridge in this sense: what only shares one
        does not share a switch.
        """
        if not bdf:
            return "", ()
        try:
            path = (self._sys / "bus/pci/devices" / bdf).resolve(strict=True)
        except (OSError, RuntimeError):
            return "", ()
        places = [place for place, part in enumerate(path.parts) if _ROOT.fullmatch(part)]
        if not places:
            return "", ()
        below = [part for part in path.parts[places[0] + 1 :] if _BDF.fullmatch(part)]
        return path.parts[places[0]], tuple(below[1:-1])

    def has_cpus(self, node: int) -> bool | None:
        """Tell whether a NUMA node has CPUs, or is memory only; ``None``: not known."""
        text = self._read(f"devices/system/node/node{node}/cpulist")
        return None if text is None else bool(text)

    @property
    def cpu_words(self) -> int:
        """How many 64-bit words a set of CPUs has: too few would be cut off without an error."""
        return _words(self._read("devices/system/cpu/possible"), _MOST_CPUS)

    @property
    def node_words(self) -> int:
        """How many 64-bit words a set of NUMA nodes has."""
        return _words(self._read("devices/system/node/possible"), _MOST_NODES)

    def _read(self, path: str) -> str | None:
        try:
            return (self._sys / path).read_text("ascii").strip()
        except (OSError, ValueError):
            return None


def _words(possible: str | None, most: int) -> int:
    """Return the words for a list such as ``0-383``, whose last number is the greatest."""
    last = re.split(r"[-,]", possible or "")[-1]
    return int(last) // 64 + 1 if last.isdecimal() and int(last) < most else most // 64
