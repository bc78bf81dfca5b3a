"""Finds out whether the server that answers on a port is our child, and not something that was there before.

A listening socket has an inode; whoever holds that inode open is the server. If the listener cannot be seen (another
network namespace) or a process of the instance cannot be inspected, the answer is unknown.
"""

import enum
import os
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address

from swapd.instances.listeners import listeners
from swapd.instances.processes import Process

#: on which a connection to 127.0.0.1 arrives; the more specific ones win
_LOOPBACK = frozenset({IPv4Address("127.0.0.1"), IPv6Address("::ffff:127.0.0.1")})
_ANY = frozenset({IPv4Address("0.0.0.0"), IPv6Address("::"), IPv6Address("::ffff:0.0.0.0")})  # noqa: S104 - compared


class Owner(enum.Enum):
    """Whose server it is."""

    OURS = "ours"
    FOREIGN = "foreign"
    UNKNOWN = "unknown"


def owner_of(port: int, processes: Iterable[Process]) -> Owner:
    """Say who listens on a loopback port; every listener there must be one of ``processes``."""
    inodes = _inodes(port)
    if not inodes:
        return Owner.UNKNOWN
    hidden = False
    for process in processes:
        held = _sockets(process.pid)
        if held is None:
            hidden = True
        else:
            inodes -= held
        if not inodes:
            return Owner.OURS
    return Owner.UNKNOWN if hidden else Owner.FOREIGN


def _inodes(port: int) -> set[int]:
    """Return the inodes of the sockets that a connection to this port of 127.0.0.1 can reach."""
    try:
        there = [listener for listener in listeners() if listener.port == port]
    except OSError:
        return set()
    for addresses in (_LOOPBACK, _ANY):
        found = {listener.inode for listener in there if listener.address in addresses}
        if found:
            return found
    return set()


def _sockets(pid: int) -> set[int] | None:
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
                    inodes.add(int(target[8:-1]))
    except PermissionError:
        return None
    except OSError:
        return set()
    return inodes
