"""Reads the process table: which processes belong to an instance, however they tried to get away.

A process belongs to the instance whose leader it descends from, whose group or session it is in, or whose mark it
carries in its environment. The mark finds those that left group and session by forking twice: the daemon is their
subreaper, so they become its children. A process is remembered once seen, with its start time against reused ids.
"""

import ctypes
import errno
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "SWAPD_INSTANCE"
_PR_SET_CHILD_SUBREAPER = 36
#: what a failed look says of this process, and not of the one looked at
_OWN_TROUBLE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table."""

    pid: int
    #: as in ``ps``: Z is a zombie
    state: str
    parent: int
    group: int
    session: int
    #: clock ticks since boot; with ``pid`` an identity
    start: int

    @property
    def zombie(self) -> bool:
        """Dead, and not yet reaped."""
        return self.state in "ZX"


def become_subreaper() -> None:
    """Make orphaned descendants children of this process instead of process 1; raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def table() -> dict[int, Process]:
    """Return every process that can be seen, by id; raises ``OSError`` when out of descriptors."""
    found = (read(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - names alone
    return {process.pid: process for process in found if process is not None}


def read(pid: int) -> Process | None:
    """Return one process, or ``None`` when it is gone; raises ``OSError`` when out of descriptors."""
    text = _content(pid, "stat")
    if text is None:
        return None
    # the second field is the name in brackets, and may itself hold brackets and blanks
    fields = text[text.rindex(b")") + 2 :].split()
    return Process(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start=int(fields[19]),
    )


def carries_mark(pid: int, mark: str) -> bool:
    """Whether the process was started with this mark; unreadable counts as no, but see ``read``."""
    environ = _content(pid, "environ")
    return environ is not None and f"{MARK}={mark}".encode() in environ.split(b"\0")


def _content(pid: int, name: str) -> bytes | None:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError as error:
        if error.errno in _OWN_TROUBLE:
            raise  # a process must not seem to be gone because we cannot look
        return None


class Family:
    """All processes of one instance."""

    def __init__(self, leader: int, mark: str) -> None:
        self.leader = leader
        self._mark = mark
        self._seen: set[tuple[int, int]] = set()

    def members(self) -> tuple[Process, ...]:
        """Return those alive or dead but not reaped, oldest first."""
        everyone = table()
        inside: dict[int, bool] = {}
        mine = [process for process in everyone.values() if self._belongs(process, everyone, inside)]
        self._seen = {(process.pid, process.start) for process in mine}
        return tuple(sorted(mine, key=lambda process: (process.start, process.pid)))

    def living(self) -> tuple[Process, ...]:
        """Return the members that are not zombies."""
        return tuple(process for process in self.members() if not process.zombie)

    def _belongs(self, process: Process, everyone: dict[int, Process], inside: dict[int, bool]) -> bool:
        known = inside.get(process.pid)
        if known is not None:
            return known
        inside[process.pid] = False  # against a loop, which a table read over a while may show
        belongs = (
            self.leader in {process.pid, process.group, process.session}
            or (process.pid, process.start) in self._seen
            or (process.parent == os.getpid() and carries_mark(process.pid, self._mark))
        )
        if not belongs:
            parent = everyone.get(process.parent)
            belongs = parent is not None and self._belongs(parent, everyone, inside)
        inside[process.pid] = belongs
        return belongs


def send(processes: Iterable[Process], signum: int) -> None:
    """Signal each process that still is the one meant; one that has ended or may not be touched is no error.

    Raises ``OSError`` when out of descriptors: some may not have got it.
    """
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            descriptor = os.pidfd_open(process.pid)
            try:
                current = read(process.pid)
                if current is not None and current.start == process.start:
                    signal.pidfd_send_signal(descriptor, signum)
            finally:
                os.close(descriptor)


def reap(processes: Iterable[Process]) -> None:
    """Collect the dead among these processes that are our children."""
    for process in processes:
        if process.zombie and process.parent == os.getpid():
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG)


class Adopted:
    """The dead that were left to us: whoever is a subreaper must reap descendants it never started.

    Reaps only what was dead at two looks in a row, so that whoever did start it had the time to ask for its status,
    and only from sessions other than our own.
    """

    def __init__(self) -> None:
        self._dead: set[tuple[int, int]] = set()

    def reap(self, started: frozenset[int]) -> None:
        """Look once; ``started`` are the process ids that somebody else reaps."""
        ours = os.getsid(0)
        dead = [
            process
            for process in table().values()
            if process.zombie and process.parent == os.getpid() and process.session != ours
        ]
        reap(process for process in dead if process.pid not in started and (process.pid, process.start) in self._dead)
        self._dead = {(process.pid, process.start) for process in dead}
