"""Starts a process in its own session and group, and notices its end at once.

Its output goes straight to a file, never to a pipe: a pipe's reader can die, and the engine with it. Its end is an
event on a pidfd: no watcher thread, no polling. The dead leader of a group is kept as a zombie until ``reap``, so that
its process id, which is also the id of its group, cannot be reused while the group is still being signalled.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress

from swapd.engines.base import LaunchSpec
from swapd.instances.binding import start_bound


class Child:
    """One started process; its ``exited`` event is set with its end, after which ``status`` holds."""

    def __init__(
        self, spec: LaunchSpec, *, output: int, extra_env: Mapping[str, str], reap_at_exit: bool = False
    ) -> None:
        """Start it with standard output and error on the descriptor ``output``; raises ``OSError``.

        With ``reap_at_exit`` its group is not looked after once it has ended.
        """
        self._loop = asyncio.get_running_loop()
        started = start_bound(spec.binding, lambda: _popen(spec, output=output, extra_env=extra_env))
        self._popen = started.result
        #: what it was not bound to, and why; empty: nothing
        self.unbound = started.trouble
        self.pid = self._popen.pid
        self.exited = asyncio.Event()
        #: as from ``waitpid``: negative for a signal; ``None`` before the end
        self.status: int | None = None
        self._reaped = False
        self._reap_at_exit = reap_at_exit
        try:
            self._pidfd = self._watched()
        except BaseException:
            # it would run on without an owner
            os.killpg(self.pid, signal.SIGKILL)
            self._popen.wait()
            raise

    def _watched(self) -> int:
        pidfd = os.pidfd_open(self.pid)
        try:
            self._loop.add_reader(pidfd, self._ended)
        except BaseException:
            os.close(pidfd)
            raise
        return pidfd

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        result = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOWAIT)
        if result is not None:
            self.status = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        self.exited.set()
        if self._reap_at_exit:
            self.reap()

    def signal(self, signum: int) -> None:
        """Signal the leader alone; no error when it has ended."""
        if not self._reaped:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signum)

    def signal_group(self, signum: int) -> None:
        """Signal the whole group; no error when nobody is left."""
        if not self._reaped:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)

    def kill_group(self) -> None:
        """Kill the whole group."""
        self.signal_group(signal.SIGKILL)

    def reap(self) -> None:
        """Give up the process id; call it when nothing of the group is left. May be called again."""
        if self._reaped or not self.exited.is_set():
            return
        self._reaped = True
        with suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        # Popen must not wait for this id again: it may be another process by then
        self._popen.returncode = self.status
        os.close(self._pidfd)

    def forget(self) -> None:
        """Let the process run on without us."""
        if self._reaped:
            return
        self._reaped = True
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._popen.returncode = 0  # or its destructor would warn of a process that still runs


def _popen(spec: LaunchSpec, *, output: int, extra_env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - an argument list from the operator's configuration; no shell
        spec.argv,
        env={**spec.env, **extra_env},
        cwd=spec.cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        close_fds=True,
    )
