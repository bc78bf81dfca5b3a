"""Ends an instance: stop hook, stop signal, and, on the order to kill, the whole family at once.

Rules:
* No signal goes out while the stop hook runs (unless the order is to kill).
* The signal goes to the leader alone: it knows how to end its workers. What it leaves behind gets the signal next.
* ``ProcessesGone`` means that the group is empty and no marked stray is left, not that the leader has ended.
* What still listens on the port afterwards is a server that our processes only stood for (a container, for example):
  the stop hook runs again, and the memory is not reported free while it listens.

It does not know how long to wait: grace and deadlines are the core's.
"""

import asyncio
import signal
from collections.abc import Callable

import structlog

from swapd.aio.backoff import Backoff
from swapd.core.events import EngineGone, ProcessesGone, StopSignalled
from swapd.core.ids import SECOND
from swapd.engines.base import LaunchSpec
from swapd.instances.http import accepts
from swapd.instances.launch import Child
from swapd.instances.processes import Family, reap, send
from swapd.instances.run import Phase, Run

_log = structlog.get_logger(__name__)

_PAUSE_S = Backoff(first=0.005, cap=0.25, factor=1.5)
_LISTENING_PAUSE_S = Backoff(first=0.25, cap=10.0)
_CONNECT_S = 1.0


class Ending:
    """The end of one instance, from the first order to stop until nothing is left of it."""

    def __init__(self, run: Run, on_finished: Callable[[], object]) -> None:
        """``on_finished`` is called once, when nothing is left."""
        self._run = run
        self._on_finished = on_finished
        self._task: asyncio.Task[None] | None = None
        self._killed = False
        self._hook_ran = False
        #: what the leader has left behind got the stop signal
        self._rest_signalled = False
        #: set with ProcessesGone
        self.gone = asyncio.Event()
        #: set with EngineGone
        self.finished = asyncio.Event()

    def stop(self) -> None:
        """Begin; a second call changes nothing."""
        if self._task is None and not self.gone.is_set():
            self._run.phase = Phase.ENDING
            self._task = self._run.task(self._end(), "stop")

    def kill(self) -> None:
        """Kill everything at once, a running hook included."""
        if self.gone.is_set():
            return
        self._killed = True
        for hook in self._run.hooks:
            hook.kill_group()
        self._kill_family()
        self.stop()

    def cancel(self) -> None:
        """Leave it as it is: the daemon ends."""
        if self._task is not None:
            self._task.cancel()

    async def _end(self) -> None:
        run = self._run
        if not self._killed:
            await self._hook()
        if not self._killed:
            self._signal()
            run.room.post(StopSignalled(run.room.now(), run.instance))
        await self._until_gone()
        run.phase = Phase.GONE
        self.gone.set()
        run.room.post(ProcessesGone(run.room.now(), run.instance))
        if not self._hook_ran:  # the kill came first, and the hook may be what ends the server
            await self._hook()
        await self._until_silent()
        run.room.ports.give_back(run.port)
        self._on_finished()
        self.finished.set()
        run.room.post(EngineGone(run.room.now(), run.instance))

    def _signal(self) -> None:
        run = self._run
        if run.child is None or run.plan is None:
            return
        if run.child.exited.is_set():
            return  # what it left behind is signalled in _until_gone
        run.child.signal(run.plan.stop.signal)
        run.child.signal_group(signal.SIGCONT)  # a frozen process acts on a signal only once it goes on

    def _kill_family(self) -> None:
        run = self._run
        if run.child is not None:
            run.child.kill_group()
            try:
                send(run.living(), signal.SIGKILL)
            except OSError as error:  # out of descriptors; _until_gone repeats it
                _log.warning("not_all_killed", model=run.model, instance=run.instance, error=str(error))

    async def _until_gone(self) -> None:
        run = self._run
        if run.child is None or run.family is None:
            return
        await run.child.exited.wait()
        repetition = 0
        while True:
            try:
                if self._nobody_left(run.child, run.family):
                    return
            except OSError as error:  # out of descriptors: nothing is known, so nothing is over
                _log.warning("not_looked_at", model=run.model, instance=run.instance, error=str(error))
            await asyncio.sleep(_PAUSE_S.delay(repetition))
            repetition += 1

    def _nobody_left(self, child: Child, family: Family) -> bool:
        """Look once, and signal those that the leader has left behind; raises ``OSError``."""
        members = family.members()
        reap(process for process in members if process.pid != child.pid)
        living = [process for process in members if not process.zombie]
        plan = self._run.plan
        if not living:
            child.reap()
        elif self._killed:
            child.kill_group()
            send(living, signal.SIGKILL)
        elif not self._rest_signalled and plan is not None:
            send(living, plan.stop.signal)
            send(living, signal.SIGCONT)
            self._rest_signalled = True
        return not living

    async def _until_silent(self) -> None:
        """Return when nothing of the server answers on its port any more."""
        run = self._run
        if not await self._still_listens():
            return
        _log.warning("still_listening", model=run.model, instance=run.instance, port=run.port)
        await self._hook()
        repetition = 0
        while await self._still_listens():
            await asyncio.sleep(_LISTENING_PAUSE_S.delay(repetition))
            repetition += 1

    async def _still_listens(self) -> bool:
        plan = self._run.plan
        # a foreign server on the port of a failed load is none of ours, and stays
        if plan is None or (plan.owns_listener and not self._run.listener_verified):
            return False
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await accepts(plan.host, plan.port)
        except TimeoutError:
            return True  # a full backlog: it listens

    async def _hook(self) -> None:
        plan = self._run.plan
        if plan is None or plan.stop.command is None:
            return
        self._hook_ran = True
        await self._run_hook(plan.stop.command)

    async def _run_hook(self, command: LaunchSpec) -> None:
        run = self._run
        limit_s = run.room.settings.hook_timeout / SECOND
        try:
            async with asyncio.timeout(limit_s):
                status = await run.run_hook(command)
        except TimeoutError:
            _log.error("stop_hook_killed", model=run.model, instance=run.instance, after_s=limit_s)
            return
        except OSError as error:
            _log.error("stop_hook_not_started", model=run.model, instance=run.instance, error=str(error))
            return
        if status != 0:
            _log.warning("stop_hook_failed", model=run.model, instance=run.instance, status=status)
