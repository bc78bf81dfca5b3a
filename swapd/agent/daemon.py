"""The daemon's life on one page: compose the rooms, serve, leave.

Start: the core exists before a listener opens; pinned models load after. Stop: readiness turns off, then the listener
closes, then running requests end, then the engines, then the process. A second signal ends everything at once.
"""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from typing import Any, Final, cast

import structlog
from aiohttp import web

from swapd import __version__
from swapd.admin.events import EventHub
from swapd.admin.server import AdminServer
from swapd.admin.status import Extras
from swapd.agent import readiness
from swapd.agent.control import AgentControl, config_info, process_infos
from swapd.agent.demand import Stocktaking
from swapd.agent.directory import Directory
from swapd.agent.execute import Executor
from swapd.agent.gpus import Surroundings, driver_stats, gpu_room
from swapd.agent.narrate import narrate
from swapd.agent.notes import Notes
from swapd.agent.operators import Operators
from swapd.agent.places import Places
from swapd.agent.pump import Pump
from swapd.agent.recorder import FlightRecorder
from swapd.agent.reload import Reloader
from swapd.agent.requests import RequestObserver
from swapd.agent.signals import Signals
from swapd.agent.timelines import Timelines
from swapd.agent.translate import exit_limit, instance_settings, listen, proxy_settings
from swapd.agent.weights import WeightDesk, cache_settings
from swapd.aio.clock import monotonic_now
from swapd.aio.supervise import Tasks
from swapd.config.compile import compile_catalog, compile_topology, with_sizes
from swapd.config.load import Loaded
from swapd.config.schema import OnExit, Settings
from swapd.core.catalog import Catalog
from swapd.core.commands import Grant
from swapd.core.events import (
    CatalogChanged,
    Event,
    FootprintsKnown,
    LoadTimesKnown,
    NodeDrainOrdered,
    RequestArrived,
)
from swapd.core.ids import Bytes, Duration, InstanceId, Instant, ModelName, RequestId
from swapd.core.scheduler import Scheduler
from swapd.core.view import NodeView, WeightStanding
from swapd.history.arrivals import Arrivals
from swapd.history.store import History
from swapd.instances import Instances
from swapd.instances.output import existing_log
from swapd.metrics.collect import Metrics
from swapd.metrics.server import metrics_app
from swapd.proxy.app import FrontDoor
from swapd.proxy.engine_metrics import engine_metrics_handler
from swapd.proxy.services import Endpoint, Services

EXIT_OK, EXIT_FAILED, EXIT_FORCED, EXIT_BROKEN = 0, 1, 130, 70

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("swapd")


class Daemon:
    """All rooms of one running daemon."""

    def __init__(
        self, loaded: Loaded, history: History, places: Places, signals: Signals, *, library: Any = None
    ) -> None:
        """Compose everything; nothing runs and nothing listens yet. ``library`` stands for NVML's bindings."""
        settings = loaded.settings
        self._settings = settings
        self._history = history
        self._places = places
        self._started_at = _now()
        self._tasks = Tasks()
        self._signals = signals
        self._broken: BaseException | None = None
        self._not_ready: str | None = "the daemon is starting"
        self._next_request = cast("Callable[[], RequestId]", itertools.count(1).__next__)
        self._verbose = _log.is_enabled_for(logging.DEBUG)
        catalog, topology = compile_catalog(settings), compile_topology(settings)
        self._catalog = catalog
        #: of the copies in the weight cache, as far as they were ever known
        self._sizes: dict[ModelName, Bytes] = {}
        self._max_waits = {name: spec.max_wait for name, spec in catalog.models.items()}
        self._scheduler = Scheduler(topology, catalog, _now(), history.first_instance())
        self._weights = WeightDesk(
            cache_settings(settings), post=self._post, now=_now, standings=self._standings, sized=self._sized
        )
        self._directory = Directory(settings, created=int(time.time()), cached=self._weights.path)
        self._recorder = FlightRecorder()
        self._arrivals = Arrivals(places.state.parent / "arrivals", report=_recording_trouble)
        self._instances = Instances(
            post=self._post, now=_now, tasks=self._tasks, settings=instance_settings(settings, places.logs)
        )
        self._gpus = gpu_room(settings, self._surroundings(library))
        self._metrics = self._first_metrics()
        self._timelines = Timelines(now=_now, wall=time.time)
        self._requests = RequestObserver(
            self._metrics,
            max_wait=self._max_waits.get,
            arrived=self._arrivals.record,
            first_byte=self._timelines.first_byte,
            later=asyncio.get_running_loop().call_later,
        )
        self._pump = self._decider()
        services = self._proxy_services()
        self._front = FrontDoor(services, proxy_settings(settings))
        self._operators = Operators(post=self._post, next_request=self._next_request)
        self._hub = EventHub()
        self._execute = self._executor()
        self._stock = Stocktaking(history, post=self._post, now=_now, view=self._view, record=self._scheduler.demand)
        self._reloader = Reloader(
            loaded, now=_now, applied=self._apply, outcome=lambda ok: self._metrics.config_reloaded(ok=ok)
        )
        self._data_runner = self._front.runner()
        self._metrics_runner = web.AppRunner(
            metrics_app(self._metrics, engine_metrics=engine_metrics_handler(services)), access_log=None
        )
        self._control = self._agent_control()
        self._admin = AdminServer(places.admin, self._control, self._hub)
        self._listeners: dict[str, str] = {}

    def _agent_control(self) -> AgentControl:
        return AgentControl(
            now=_now,
            operators=self._operators,
            directory=self._directory,
            reloader=self._reloader,
            extras=self._extras,
            view=self._view,
            arrivals=self._read_arrivals,
            timelines=self._timelines,
            weights=self._weights,
            driver=self._gpus,
        )

    def _decider(self) -> Pump:
        return Pump(
            self._scheduler,
            now=_now,
            execute=lambda command: self._execute(command),  # noqa: PLW0108 - it is made later
            recorder=self._recorder,
            broken=self._law_broken,
        )

    def _surroundings(self, library: Any) -> Surroundings:
        return Surroundings(
            post=self._post,
            now=_now,
            tasks=self._tasks,
            owners=self._instances.owners,
            history=self._history,
            library=library,
        )

    def _first_metrics(self) -> Metrics:
        metrics = Metrics(
            view=self._view,
            now=_now,
            not_ready=self.not_ready,
            version=__version__,
            driver=lambda: driver_stats(self._gpus, _now()),
            cache=self._weights.figures,
            settle=lambda: self._requests.tell(),  # noqa: PLW0108 - it is made later
        )
        metrics.configure(self._directory.names)
        metrics.config_reloaded(ok=True)
        return metrics

    def _executor(self) -> Executor:
        return Executor(
            gate=self._front.gate,
            instances=self._instances,
            planner=self._directory,
            cache=self._weights,
            answered=self._operators.answered,
            noted=Notes(self._metrics, self._hub, self._timelines, self._history).take,
            started=self._history.instance_used,
            read_memory=self._read_memory,
        )

    def _proxy_services(self) -> Services:
        return Services(
            post=self._pump.post,
            admit=self._admit if self._verbose else self._pump.admit,
            now=_now,
            next_request_id=self._next_request,
            directory=self._directory,
            offer=lambda name: self._scheduler.offer(name, _now()),
            model=lambda name: self._scheduler.model(name, _now()),
            endpoint=self._endpoint,
            options=self._directory.route_options,
            allowed=self._directory.allowed,
            finished=self._requests.finished,
            tasks=self._tasks,
            random=random.Random().random,  # noqa: S311 - spreads retries, guards nothing
        )

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> None:
        """Open the listeners; raises OSError or AdminSocketError with one sentence."""
        await self._admin.start()
        self._listeners["admin"] = str(self._places.admin)
        await self._metrics_runner.setup()
        self._listeners["metrics"] = await listen(self._metrics_runner, "metrics", self._settings.metrics.listen)
        await self._data_runner.setup()
        self._listeners["http"] = await listen(self._data_runner, "http", self._settings.http.listen)

    async def live(self) -> int:
        """Serve until told to stop, then leave; return the exit status."""
        _ = self._tasks.start(self._metrics.heartbeat.run(), name="heartbeat")
        _ = self._tasks.start(self._reloader.watch(self._signals.stop), name="config-watch")
        _ = self._tasks.start(self._reload_on_hangup(), name="config-hangup")
        self._weights.serve(self._settings)
        await self._weights.start(self._tasks)
        self._remember()
        _ = self._tasks.start(self._stock.run(), name="stocktaking")
        if self._gpus is not None:
            self._gpus.start()
        self._not_ready = None
        _log.info("serving", version=__version__, models=len(self._directory.names), **self._listeners)
        await self._signals.stop.wait()
        self._not_ready = "the daemon is exiting"
        _log.info("exiting", on_exit=self._settings.engines.on_exit.value)
        forced = self._broken is not None or not await self._drain()
        await self.leave(force=forced)
        if self._broken is not None:
            return EXIT_BROKEN
        return EXIT_FORCED if forced else EXIT_OK

    async def _drain(self) -> bool:
        """Let running requests and engines end; ``False`` when a second signal came first."""
        for site in tuple(self._data_runner.sites):
            await site.stop()
        order = self._tasks.start(
            self._operators.order(
                lambda request: NodeDrainOrdered(
                    at=_now(),
                    request=request,
                    timeout=exit_limit(self._settings),
                    stop_engines=self._settings.engines.on_exit is OnExit.STOP,
                    final=True,
                )
            ),
            name="drain",
        )
        forced = self._tasks.start(self._signals.force.wait(), name="second-signal")
        done, _ = await asyncio.wait((order, forced), return_when=asyncio.FIRST_COMPLETED)
        return order in done

    async def leave(self, *, force: bool) -> None:
        """Close every room; with ``force`` engines are killed at once."""
        if force:
            await self._instances.aclose(force=True)
        await self._data_runner.cleanup()
        await self._front.aclose()
        if self._settings.engines.on_exit is OnExit.KEEP and not force:
            await self._instances.detach()
        else:
            await self._end_engines(force=force)
        if self._gpus is not None:
            await self._gpus.aclose()
        await self._weights.aclose()
        self._pump.close()
        await self._reloader.aclose()
        await self._admin.aclose()
        await self._metrics_runner.cleanup()
        await self._tasks.aclose()
        # an answer that is read to its end without its client ends with its task
        self._requests.tell()
        if self._broken is None:
            self._stock.end()
        await self._arrivals.aclose()
        await self._history.aclose()
        _log.info("exited", forced=force)

    async def _end_engines(self, *, force: bool) -> None:
        """Stop what still runs; a second signal that comes now forces, too."""
        if not force:
            stopped = self._tasks.start(self._instances.aclose(), name="stop-engines")
            forced = self._tasks.start(self._signals.force.wait(), name="second-signal")
            done, _ = await asyncio.wait((stopped, forced), return_when=asyncio.FIRST_COMPLETED)
            if stopped in done:
                return
        await self._instances.aclose(force=True)

    def _remember(self) -> None:
        """Tell the core what earlier runs have measured."""
        self._post(LoadTimesKnown(at=_now(), load_times=self._history.load_times()))
        revisions = {name: spec.revision for name, spec in self._catalog.models.items()}
        self._post(FootprintsKnown(at=_now(), bytes_per_gpu=self._history.footprints(revisions)))
        self._stock.begin()

    async def _reload_on_hangup(self) -> None:
        while True:
            await self._signals.hangup.wait()
            self._signals.hangup.clear()
            _ = await self._reloader.reload()

    # ── what the rooms are given ─────────────────────────────────────────────────────────────────────────────────

    def _view(self) -> Generator[None, None, NodeView]:
        return self._scheduler.view_in_steps(_now())

    def not_ready(self) -> tuple[str, ...]:
        """Say why the node takes no requests, one sentence each; ``()`` is ready."""
        if self._not_ready is not None:
            return (self._not_ready,)
        return readiness.not_ready(self._scheduler.bare_view())

    def _post(self, event: Event) -> None:
        self._pump.post(event)

    def _admit(self, event: RequestArrived) -> Grant | None:
        grant = self._pump.admit(event)
        if grant is not None and self._verbose:
            narrate(grant)
        return grant

    def _endpoint(self, instance: InstanceId) -> Endpoint | None:
        found = self._instances.endpoint(instance)
        return None if found is None else Endpoint(host=found.host, port=found.port)

    def _read_memory(self) -> None:
        if self._gpus is not None:
            self._gpus.read_memory()

    def _read_arrivals(self) -> AsyncGenerator[bytes, None]:
        self._requests.tell()
        return self._arrivals.read()

    def _apply(self, settings: Settings, catalog: Catalog) -> None:
        # while the names of their models are known
        self._requests.tell()
        catalog = with_sizes(catalog, settings, self._sizes)
        self._settings, self._catalog = settings, catalog
        self._directory.apply(settings)
        self._max_waits.clear()
        self._max_waits.update({name: spec.max_wait for name, spec in catalog.models.items()})
        self._metrics.configure(self._directory.names)
        self._front.reconfigure(proxy_settings(settings))
        self._weights.serve(settings)
        self._post(CatalogChanged(at=_now(), catalog=catalog))

    def _sized(self, cached: Mapping[ModelName, Bytes]) -> None:
        """Take the sizes of copies, from which deadlines and first guesses of load times follow."""
        self._sizes.update(cached)
        catalog = with_sizes(self._catalog, self._settings, self._sizes)
        if catalog != self._catalog:
            self._catalog = catalog
            self._post(CatalogChanged(at=_now(), catalog=catalog))

    def _standings(self) -> Mapping[ModelName, WeightStanding]:
        return self._scheduler.standings(_now())

    def _extras(self, view: NodeView) -> Extras:
        return Extras(
            version=__version__,
            uptime=Duration(view.at - self._started_at),
            config=config_info(self._reloader, view.at),
            listeners=self._listeners,
            not_ready=self.not_ready(),
            aliases=self._directory.aliases(),
            processes=process_infos(view, self._instances),
            log=lambda model: existing_log(self._places.logs, model),
        )

    def _law_broken(self, error: BaseException) -> None:
        """Keep the evidence and end everything: the core cannot be trusted any more."""
        self._broken = error
        self._signals.force.set()
        self._signals.stop.set()
        path = self._places.state.parent / f"flight-{int(time.time())}.jsonl"
        try:
            facts = self._recorder.dump(path)
        except OSError as failure:
            _log.error("law_broken", exc_info=error, dump=f"not written: {failure}")
        else:
            _log.error("law_broken", exc_info=error, dump=str(path), facts=facts)


def _recording_trouble(trouble: str) -> None:
    _log.warning("arrivals", detail=trouble)


_now: Final = cast("Callable[[], Instant]", monotonic_now)
"""Asked several times for each request: a call less counts."""
