"""Carries out the core's orders about instances, and answers for all processes the daemon has started.

Orders are synchronous and report nothing themselves; the facts follow through ``post``.
"""

import asyncio
import os
import secrets
from collections.abc import Callable
from functools import partial

import structlog

from swapd.aio.supervise import Tasks
from swapd.core.events import Event
from swapd.core.ids import SECOND, InstanceId, Instant, ModelName
from swapd.engines.base import EnginePlan
from swapd.instances.ports import Ports
from swapd.instances.processes import Adopted, become_subreaper, table, tell_apart
from swapd.instances.run import Phase, Room
from swapd.instances.settings import Endpoint, InstanceSettings, ProcessView
from swapd.instances.supervisor import Supervisor

_log = structlog.get_logger(__name__)


class Instances:
    """All instances of the node; made and used on one event loop."""

    def __init__(
        self, *, post: Callable[[Event], None], now: Callable[[], Instant], tasks: Tasks, settings: InstanceSettings
    ) -> None:
        """``tasks`` may be shared; it must be closed after this."""
        become_subreaper()
        ports = Ports(settings.first_port, settings.last_port, reserved=settings.reserved_ports)
        token = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._room = Room(post, now, tasks, ports, settings, token)
        self._supervisors: dict[InstanceId, Supervisor] = {}
        #: the last answer of ``owners``
        self._owners: dict[int, InstanceId] = {}
        self._closed = False
        self._sweeper = tasks.start(self._sweep(), name="sweep")

    def start(self, instance: InstanceId, model: ModelName, plan_for_port: Callable[[int], EnginePlan]) -> None:
        """Start an engine by the plan for the port that it is given; ``plan_for_port`` may raise ``EngineError``."""
        assert instance not in self._supervisors, f"instance {instance} was started before"
        if self._closed:
            _log.warning("start_after_close", model=model, instance=instance)
            return
        supervisor = Supervisor(self._room, instance, model, partial(self._supervisors.pop, instance, None))
        self._supervisors[instance] = supervisor
        supervisor.start(plan_for_port)

    def check(self, instance: InstanceId) -> None:
        """Find out whether a ready instance still answers."""
        supervisor = self._known(instance, "check")
        if supervisor is not None:
            supervisor.check()

    def stop(self, instance: InstanceId) -> None:
        """Run the stop hook, then send the stop signal; nothing is killed."""
        supervisor = self._known(instance, "stop")
        if supervisor is not None:
            supervisor.stop()

    def kill(self, instance: InstanceId) -> None:
        """Kill every process of an instance."""
        supervisor = self._known(instance, "kill")
        if supervisor is not None:
            supervisor.kill()

    def endpoint(self, instance: InstanceId) -> Endpoint | None:
        """Return where an instance listens, or will; ``None``: unknown, or not planned yet."""
        supervisor = self._supervisors.get(instance)
        plan = supervisor.run.plan if supervisor is not None else None
        return Endpoint(plan.host, plan.port) if plan is not None else None

    def describe(self, instance: InstanceId) -> ProcessView | None:
        """Return what is known of an instance's process."""
        supervisor = self._supervisors.get(instance)
        if supervisor is None:
            return None
        run = supervisor.run
        port = run.plan.port if run.plan is not None else run.port
        return ProcessView(run.child.pid if run.child is not None else None, port, run.output.path)

    def owners(self) -> dict[int, InstanceId]:
        """Return the instance that each process belongs to, from one look at the process table.

        Dead processes that are not reaped yet are in it: of a process whose leading thread has ended, others may still
        hold memory. A server that is not a descendant of ours (external, in a container) is not. When out of
        descriptors, the last answer is given again: half of one would make strangers of our own.
        """
        runs = [supervisor.run for supervisor in self._supervisors.values()]
        # the ids of one that is gone may be other processes' by now
        instances = {run.family: run.instance for run in runs if run.family is not None and run.phase is not Phase.GONE}
        try:
            found = tell_apart(instances, table()) if instances else {}
        except OSError as error:
            _log.warning("owners_not_known", error=str(error))
            there = frozenset(instances.values())
            self._owners = {pid: instance for pid, instance in self._owners.items() if instance in there}
        else:
            self._owners = {pid: instances[family] for pid, family in found.items()}
        return dict(self._owners)

    def log_tail(self, instance: InstanceId, lines: int) -> tuple[str, ...]:
        """Return the last lines that an instance has printed; none for an unknown one."""
        supervisor = self._supervisors.get(instance)
        return supervisor.run.output.tail(lines) if supervisor is not None else ()

    async def aclose(self, *, force: bool = False) -> None:
        """End every instance, in order (hook, signal, grace, kill) or by force; no process is left afterwards.

        May be called again with ``force`` while it runs. Nothing is started any more.
        """
        self._close()
        await asyncio.gather(*(supervisor.aclose(force=force) for supervisor in tuple(self._supervisors.values())))
        self._supervisors.clear()

    async def detach(self) -> None:
        """Leave the engines running: the daemon ends without them."""
        self._close()
        for supervisor in self._supervisors.values():
            supervisor.forget()
        self._supervisors.clear()
        await asyncio.sleep(0)

    def _close(self) -> None:
        self._closed = True
        self._sweeper.cancel()

    async def _sweep(self) -> None:
        adopted = Adopted()
        while True:
            await asyncio.sleep(self._room.settings.sweep_period / SECOND)
            runs = [supervisor.run for supervisor in self._supervisors.values()]
            own = frozenset(child.pid for run in runs for child in (run.child, *run.hooks) if child is not None)
            try:
                adopted.reap(own)
            except OSError as error:  # out of descriptors: the next round may read the process table
                _log.warning("not_swept", error=str(error))

    def _known(self, instance: InstanceId, order: str) -> Supervisor | None:
        supervisor = self._supervisors.get(instance)
        if supervisor is None:
            _log.info("order_for_unknown_instance", order=order, instance=instance)
        return supervisor
