"""Takes one instance from the order to start to the last of its processes.

Rules:
* Every load is answered once: ready, or failed. An exit while loading is a failed load; later it is an exit.
* After the order to stop, nothing is reported but the stop.
* Facts are reported from tasks and callbacks only, never from within an order: the core is not re-entrant.
"""

import asyncio
from collections.abc import Callable, Coroutine

import structlog

from swapd.core.events import InstanceExited, InstanceReady, LoadFailed, StageEntered
from swapd.core.ids import SECOND, InstanceId, ModelName
from swapd.core.reasons import LoadFailure, Stage
from swapd.engines.base import EngineError, EnginePlan
from swapd.instances import sentences, watch
from swapd.instances.output import LogFileError, Output
from swapd.instances.owner import Owner, owner_of
from swapd.instances.ports import NoPortError
from swapd.instances.probe import wait_until_up
from swapd.instances.run import Phase, Room, Run
from swapd.instances.stop import Ending
from swapd.instances.warm import WarmupError, WarmupLimits, warm_up

_log = structlog.get_logger(__name__)

_LAST_WAIT_S = 10.0


class LoadError(Exception):
    """The load has failed; carries what the core is told."""

    def __init__(self, failure: LoadFailure, detail: str, *, permanent: bool = False) -> None:
        super().__init__(detail)
        self.failure = failure
        self.permanent = permanent


class Supervisor:
    """One instance; ``finished`` is called once, when nothing is left of it."""

    def __init__(self, room: Room, instance: InstanceId, model: ModelName, finished: Callable[[], object]) -> None:
        output = Output(room.settings.log_dir, model, limit=room.settings.log_bytes)
        self.run = Run(room, instance, model, output, room.now())
        self._ending = Ending(self.run, finished)
        #: those that have not ended: a cancelled one holds the frames it was cancelled in, and they hold this
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, plan_for_port: Callable[[int], EnginePlan]) -> None:
        """Begin the load."""
        self._begin(self._load(plan_for_port), "load")

    def check(self) -> None:
        """Find out whether it answers."""
        run = self.run
        if run.phase is Phase.READY and run.plan is not None:
            self._begin(watch.check(run, run.plan), "check")

    def stop(self) -> None:
        """Run the hook, send the signal, wait until it is gone."""
        self._cancel_tasks()
        self._ending.stop()

    def kill(self) -> None:
        """Kill all its processes."""
        self._cancel_tasks()
        self._ending.kill()

    def forget(self) -> None:
        """Leave its processes running and know nothing of them any more."""
        self._cancel_tasks()
        self._ending.cancel()
        if self.run.child is not None:
            self.run.child.forget()

    async def aclose(self, *, force: bool) -> None:
        """End it: by stop and, after its grace, kill; with ``force`` by kill at once."""
        if force:
            self.kill()
        else:
            self.stop()
            await _within(self._ending.gone, self._patience_s())
            self.kill()
        if not await _within(self._ending.gone, _LAST_WAIT_S):
            _log.error("cannot_be_killed", model=self.run.model, instance=self.run.instance)
        elif not await _within(self._ending.finished, _LAST_WAIT_S):
            _log.error("still_listening_at_exit", model=self.run.model, instance=self.run.instance, port=self.run.port)
        self._ending.cancel()

    def _patience_s(self) -> float:
        plan = self.run.plan
        if plan is None:
            return 0.0
        hook = self.run.room.settings.hook_timeout if plan.stop.command is not None else 0
        return (plan.stop.grace + hook) / SECOND

    async def _load(self, plan_for_port: Callable[[int], EnginePlan]) -> None:
        run = self.run
        try:
            await self._become_ready(plan_for_port)
        except LoadError as error:
            self._fail(error)
        except Exception as error:
            # whatever it was, the core must not wait for its deadline to learn of it
            self._fail(LoadError(LoadFailure.SPAWN, f"{run.model} could not be loaded: {error!r}"))
            raise

    async def _become_ready(self, plan_for_port: Callable[[int], EnginePlan]) -> None:
        run = self.run
        await self._enter(Stage.SPAWN)
        plan = run.plan = self._plan(plan_for_port)
        await self._spawn(plan)
        await self._enter(Stage.LOAD)
        self._begin(watch.look(run, plan), "look after")
        await wait_until_up(plan.host, plan.port, plan.readiness)
        self._verify_owner(plan)
        await self._enter(Stage.WARMUP)
        await self._warm_up(plan)
        run.phase = Phase.READY
        self._begin(watch.watch(run, plan), "watch")
        run.room.post(InstanceReady(run.room.now(), run.instance))

    def _plan(self, plan_for_port: Callable[[int], EnginePlan]) -> EnginePlan:
        run = self.run
        try:
            run.port = run.room.ports.take()
        except NoPortError as error:
            raise LoadError(LoadFailure.SPAWN, f"{run.model} could not be started: {error}") from error
        try:
            return plan_for_port(run.port)
        except EngineError as error:
            detail = f"{run.model} could not be started: {error}"
            raise LoadError(LoadFailure.SPAWN, detail, permanent=error.permanent) from error

    async def _spawn(self, plan: EnginePlan) -> None:
        run, spec = self.run, plan.launch
        if spec is None:
            return
        try:
            run.output.begin()
            if plan.serves:
                run.launch(spec)
                self._begin(self._notice_exit(), "exit of")
                return
            status = await run.run_hook(spec)
        except LogFileError as error:
            raise LoadError(LoadFailure.SPAWN, sentences.log_not_writable(run.model, error)) from error
        except OSError as error:
            detail, permanent = sentences.not_started(run.model, error, spec)
            raise LoadError(LoadFailure.SPAWN, detail, permanent=permanent) from error
        if status != 0:
            sentence = sentences.hook_failed(run.model, status, run.elapsed)
            raise LoadError(LoadFailure.EXITED, run.described(sentence))

    async def _notice_exit(self) -> None:
        run = self.run
        assert run.child is not None
        await run.child.exited.wait()
        loading = run.phase is Phase.LOADING
        sentence = sentences.exited(run.model, run.child.status, run.elapsed, loading=loading)
        if loading:
            self._fail(LoadError(LoadFailure.EXITED, run.described(sentence)))
        elif run.phase is Phase.READY:
            self._break()
            run.room.post(InstanceExited(run.room.now(), run.instance, run.child.status, run.described(sentence)))

    def _verify_owner(self, plan: EnginePlan) -> None:
        run = self.run
        if not plan.owns_listener:
            return
        try:
            owner = owner_of(plan.port, run.leading())
            if owner is not Owner.OURS:
                owner = owner_of(plan.port, run.living())  # one of its workers, then; this reads the process table
        except OSError:  # out of descriptors
            owner = Owner.UNKNOWN
        if owner is Owner.FOREIGN:
            detail = run.described(sentences.foreign_server(run.model, plan.port))
            raise LoadError(LoadFailure.FOREIGN_SERVER, detail)
        if owner is Owner.UNKNOWN:
            _log.info("listener_not_verified", model=run.model, instance=run.instance, port=plan.port)
        run.listener_verified = owner is Owner.OURS

    async def _warm_up(self, plan: EnginePlan) -> None:
        run, settings = self.run, self.run.room.settings
        limits = WarmupLimits(request=settings.warmup_timeout, errors=settings.warmup_patience)
        try:
            proven = await warm_up(plan.host, plan.port, plan.warmup, limits)
        except WarmupError as error:
            raise LoadError(LoadFailure.WARMUP, run.described(f"{run.model} {error}")) from error
        if plan.warmup.attempts and not proven:
            _log.warning("not_warmed_up", model=run.model, instance=run.instance, why="no known inference route")

    async def _enter(self, stage: Stage) -> None:
        self.run.room.post(StageEntered(self.run.room.now(), self.run.instance, stage))
        await asyncio.sleep(0)  # a stop that was ordered in answer takes effect here

    def _fail(self, error: LoadError) -> None:
        run = self.run
        if run.phase is not Phase.LOADING:
            return
        self._break()
        run.room.post(
            LoadFailed(run.room.now(), run.instance, error.failure, detail=str(error), permanent=error.permanent)
        )

    def _break(self) -> None:
        self.run.phase = Phase.BROKEN
        self._cancel_tasks()

    def _begin(self, work: Coroutine[object, object, None], what: str) -> None:
        task = self.run.task(work, what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()


async def _within(event: asyncio.Event, limit_s: float) -> bool:
    try:
        async with asyncio.timeout(limit_s):
            return await event.wait()
    except TimeoutError:
        return False
