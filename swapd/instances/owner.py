"""Finds out whether the server that answers on a port is our child, and not something that was there before.

A listening socket has an inode; whoever holds that inode open is the server. If the listener cannot be seen (another
network namespace) or a process of the instance cannot be inspected, the answer is unknown.
"""

import enum
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from swapd.instances.processes import Process

_LISTEN = "0A"
#: addresses, as in /proc/net/tcp and tcp6, on which a connection to 127.0.0.1 arrives; the more specific ones win
_LOOPBACK = frozenset({"0100007F", "0000000000000000FFFF00000100007F"})
_ANY = frozenset({"00000000", "0" * 32, "0000000000000000FFFF000000000000"})


class Owner(enum.Enum):
    """Whose server it is."""

    OURS = "ours"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"


def owner_of(port: int, processes: Iterable[Process]) -> Owner:
    """Say who listens on a loopback port; every listener there must be one of ``processes``."""
    listeners = _listeners(port)
    if not listeners:
        return Owner.UNKNOWN
    hidden = False
    for process in processes:
        held = _sockets(process.pid)
        if held is None:
            hidden = True
        else:
            listeners -= held
        if not listeners:
            return Owner.OURS
    return Owner.UNKNOWN if hidden else Owner.FOREIGN


def _listeners(port: int) -> set[str]:
    """Return the inodes of the sockets that a connection to this port of 127.0.0.1 can reach."""
    listening = [fields for fields in _tcp_sockets() if fields[3] == _LISTEN]
    for addresses in (_LOOPBACK, _ANY):
        found = {fields[9] for fields in listening if _at(fields[1], addresses, port)}
        if found:
            return found
    return set()


def _tcp_sockets() -> Iterator[list[str]]:
    for table in ("tcp", "tcp6"):
        try:
            text = Path(f"/proc/net/{table}").read_text(encoding="ascii")
        except OSError:
            continue
        yield from (line.split() for line in text.splitlines()[1:])


def _at(local: str, addresses: frozenset[str], port: int) -> bool:
    address, _, hex_port = local.partition(":")
    return address in addresses and int(hex_port, 16) == port


def _sockets(pid: int) -> set[str] | None:
    """Return the inodes of a process's sockets; ``None``: it may not be inspected."""
    inodes = set()
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                try:
                    target = os.readlink(entry.path)  # noqa: PTH115 - thousands of them, no path objects
                except FileNotFoundError:
                    continue
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    except PermissionError:
        return None
    except OSError:
        return set()
    return inodes
