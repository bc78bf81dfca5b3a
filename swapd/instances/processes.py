"""Reads the process table: which processes belong to an instance, however they tried to get away.

A process belongs to the instance whose leader it descends from, whose group or session it is in, or whose mark it
carries in its environment. The mark finds those that left group and session by forking twice: the daemon is their
subreaper, so they become its children. A process is remembered once seen, with its start time against reused ids.
"""

import ctypes
import errno
import os
import signal
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "SWAPD_INSTANCE"
_PR_SET_CHILD_SUBREAPER = 36
#: what a failed look says of this process, and not of the one looked at
_OWN_TROUBLE = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
#: longer than any ``stat`` of a process
_STAT_BYTES = 4096


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
    text = _stat(pid)
    if not text:
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


def mark_of(pid: int) -> str | None:
    """Return the mark the process was started with; ``None``: it has none or cannot be read, but see ``read``."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError as error:
        if error.errno in _OWN_TROUBLE:
            raise
        return None
    for variable in environ.split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == MARK.encode():
            return value.decode(errors="replace")
    return None


def _stat(pid: int) -> bytes:
    """Return the line of a process, or nothing; by system calls alone, because a node has thousands of processes."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _STAT_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno in _OWN_TROUBLE:
            raise  # a process must not seem to be gone because we cannot look
        return b""


class Family:
    """All processes of one instance."""

    def __init__(self, leader: int, mark: str) -> None:
        self.leader = leader
        self.mark = mark
        #: id and start of each member at the last look
        self.seen: frozenset[tuple[int, int]] = frozenset()

    def members(self) -> tuple[Process, ...]:
        """Return those alive or dead but not reaped, oldest first; reads the process table."""
        everyone = table()
        return tuple(sorted(map(everyone.__getitem__, tell_apart((self,), everyone)), key=_age))

    def living(self) -> tuple[Process, ...]:
        """Return the members that are not zombies."""
        return tuple(process for process in self.members() if not process.zombie)


def tell_apart(families: Collection[Family], everyone: Mapping[int, Process]) -> dict[int, Family]:
    """Return the family that each process of a table belongs to, those of none left out; families remember it.

    One walk for all of them: what says so itself (leader, group, session, seen before, mark), then what descends from
    it.
    """
    leaders = {family.leader: family for family in families}
    seen = {identity: family for family in families for identity in family.seen}
    marks = {family.mark: family for family in families}
    us = os.getpid()
    found: dict[int, Family] = {}
    children: dict[int, list[int]] = {}
    for pid, process in everyone.items():
        family = leaders.get(pid) or leaders.get(process.group) or leaders.get(process.session)
        family = family or seen.get((pid, process.start))
        if family is None and process.parent == us:
            family = marks.get(mark_of(pid) or "")
        if family is not None:
            found[pid] = family
        else:
            children.setdefault(process.parent, []).append(pid)
    heads = list(found)
    for pid in heads:  # grows; each process is taken out once, so a loop in a table read over a while ends
        for child in children.pop(pid, ()):
            found[child] = found[pid]
            heads.append(child)
    for family in families:
        family.seen = frozenset((pid, everyone[pid].start) for pid, owner in found.items() if owner is family)
    return found


def _age(process: Process) -> tuple[int, int]:
    return process.start, process.pid


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
