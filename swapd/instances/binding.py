"""Starts a process near its GPUs: on the CPUs of their NUMA nodes, and preferring the host memory there.

Both are inherited from the thread that starts the process. So a thread of its own binds itself, starts it and ends, and
the daemon's own threads never run bound. What the system refuses (a container's seccomp filter, a cpuset without these
CPUs, an old kernel) is left to the system: a process that runs further away is better than none.
"""

import ctypes
import os
import platform
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from swapd.engines.base import Binding

T = TypeVar("T")

#: number of the system call; the C library has no function for it
_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237}
#: ``linux/mempolicy.h``; the latter needs Linux 5.15
_MPOL_PREFERRED: Final = 1
_MPOL_PREFERRED_MANY: Final = 5
_WORD: Final = 8 * ctypes.sizeof(ctypes.c_ulong)


@dataclass(frozen=True, slots=True)
class Started(Generic[T]):
    """What was started."""

    result: T
    #: what could not be bound, and why; empty: all that was asked for
    trouble: str


def start_bound(binding: Binding, start: Callable[[], T]) -> Started[T]:
    """Call ``start`` with this thread's child processes bound; raises what it raises, and nothing for the binding."""
    if not binding.cpus and not binding.numa:
        return Started(start(), "")
    ended: list[Started[T] | BaseException] = []

    def bind_and_start() -> None:
        try:
            trouble = "; ".join(filter(None, (_bind_cpus(binding.cpus), _prefer_nodes(binding.numa))))
            ended.append(Started(start(), trouble))
        except BaseException as error:  # noqa: BLE001 - raised again where the thread is waited for
            ended.append(error)

    thread = threading.Thread(target=bind_and_start, name="start-bound")
    try:
        thread.start()
    except RuntimeError as error:  # no further thread is allowed; perhaps a process still is
        return Started(start(), f"CPUs and memory: {error}")
    thread.join()
    (outcome,) = ended
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _bind_cpus(cpus: Sequence[int]) -> str:
    """Bind this thread to those of the CPUs that it may use; return why not, or nothing."""
    if not cpus:
        return ""
    allowed = os.sched_getaffinity(0)
    near = allowed.intersection(cpus)
    if not near:
        return "CPUs: none of those near its GPUs may be used"
    try:
        os.sched_setaffinity(0, near)
    except OSError as error:
        return f"CPUs: {error.strerror}"
    return ""


def _prefer_nodes(nodes: Sequence[int]) -> str:
    """Let this thread prefer the memory of these NUMA nodes; return why not, or nothing.

    Where the kernel does not know how to prefer several nodes, none is set: their CPUs then take what is near to each.
    """
    if not nodes:
        return ""
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return f"memory: not known how to on {platform.machine()}"
    mask = (ctypes.c_ulong * (max(nodes) // _WORD + 1))()
    for node in nodes:
        mask[node // _WORD] |= 1 << node % _WORD
    mode = _MPOL_PREFERRED if len(nodes) == 1 else _MPOL_PREFERRED_MANY
    libc = ctypes.CDLL(None, use_errno=True)
    # the kernel takes one bit less than it is told
    bits = ctypes.c_ulong(len(mask) * _WORD + 1)
    if libc.syscall(ctypes.c_long(number), ctypes.c_long(mode), ctypes.byref(mask), bits) != 0:
        return f"memory: {os.strerror(ctypes.get_errno())}"
    return ""
