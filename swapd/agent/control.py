"""Turns what an operator asks for on the admin socket into events, and the core's answers into results."""

import csv
import io
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Protocol

from swapd.admin.cache import cache_document
from swapd.admin.control import Result
from swapd.admin.report import report_document
from swapd.admin.status import ConfigInfo, Extras, ProcessInfo, status_document
from swapd.admin.timeline import timeline_document
from swapd.agent.directory import Directory
from swapd.agent.operators import Operators
from swapd.agent.reload import Reloader
from swapd.agent.timelines import Timelines
from swapd.agent.weights import WeightDesk
from swapd.aio.turns import in_turns
from swapd.config.units import approximate_size
from swapd.core.commands import Answer
from swapd.core.events import (
    LoadOrdered,
    NodeDrainOrdered,
    NodeUndrainOrdered,
    PinOrdered,
    PrefetchOrdered,
    UnloadOrdered,
)
from swapd.core.ids import SECOND, Duration, InstanceId, Instant, ModelName
from swapd.core.view import NodeView
from swapd.instances import Instances
from swapd.kube.annotations import annotations

LINGER = Duration(5 * SECOND)
"""After a drain order, requests for resident models are served for this long: placers need to notice first."""


class Driver(Protocol):
    """What an operator may have done with the GPU driver; it answers why that could not be done, ``""`` when it was."""

    async def release(self) -> str:
        """Let go of it."""

    async def acquire(self) -> str:
        """Take it back."""


class AgentControl:
    """What an operator may do with this daemon."""

    def __init__(
        self,
        *,
        now: Callable[[], Instant],
        operators: Operators,
        directory: Directory,
        reloader: Reloader,
        extras: Callable[[NodeView], Extras],
        view: Callable[[], Generator[None, None, NodeView]],
        arrivals: Callable[[], AsyncGenerator[bytes, None]],
        timelines: Timelines,
        weights: WeightDesk,
        driver: Driver | None = None,
    ) -> None:
        """Take what the daemon is made of.

        ``extras`` adds to a snapshot what the core does not know; ``view`` builds the snapshot in small steps;
        ``arrivals`` reads the record of requests; ``driver`` is ``None`` with virtual devices.
        """
        self._now = now
        self._operators = operators
        self._directory = directory
        self._reloader = reloader
        self._extras = extras
        self._view = view
        self.arrivals = arrivals
        self._timelines = timelines
        self._weights = weights
        self._driver = driver

    def resolve(self, name: str) -> ModelName | None:
        """Return the configured model that a name or alias stands for."""
        return self._directory.resolve(name)

    async def status(self) -> dict[str, object]:
        """Return the status document."""
        view = await in_turns(self._view())
        return await in_turns(status_document(view, self._extras(view)))

    async def topology(self) -> dict[str, object]:
        """Return ``topology``, ``free``, ``models`` and ``state``, as a placer is told."""
        view = await in_turns(self._view())
        return {**annotations(view, not_ready=self._extras(view).not_ready)}

    async def report(self) -> dict[str, object]:
        """Return the promotion report."""
        return await in_turns(report_document(await in_turns(self._view())))

    def timelines(self, model: ModelName | None) -> dict[str, object]:
        """Return the timelines of a model's last loads, or of everybody's."""
        return timeline_document(self._timelines.of(model))

    async def model_list(self) -> str:
        """Return the models as CSV: ``model,gpus,load_s``, with the load times expected now."""
        expected = {row.model: row.load_estimate for row in (await in_turns(self._view())).models}
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(("model", "gpus", "load_s"))
        for name, gpus in self._directory.gpu_counts().items():
            if name in expected:
                rows.writerow((name, gpus, round(expected[name] / SECOND, 3)))
        return text.getvalue()

    async def cache(self) -> dict[str, object]:
        """Return the document of the weight cache."""
        return cache_document(await in_turns(self._view()), self._weights.info())

    async def prefetch(self, model: ModelName, *, wait: bool) -> Result | None:
        """Have a model's weights in the cache; ``None``: they are being fetched, and nobody is to ``wait`` for them."""
        answer = self._operators.place(
            lambda request: PrefetchOrdered(at=self._now(), request=request, model=model),
        )
        return None if not wait and not answer.done() else _result(await answer)

    async def verify(self, model: ModelName) -> Result:
        """Compare the cached copy of a model with its checksums."""
        fact = await self._weights.verify(model)
        return Result(ok=fact.intact, detail=fact.detail or f"the copy of {model} is intact")

    async def remove(self, model: ModelName) -> Result:
        """Remove the cached copy of a model, unless it has to stay."""
        fact = await self._weights.remove(model)
        return Result(
            ok=not fact.detail, detail=fact.detail or f"{approximate_size(fact.freed)} of {model} are removed"
        )

    async def load(self, model: ModelName) -> Result:
        """Make a model resident; clears its cool-down."""
        return _result(
            await self._operators.order(lambda request: LoadOrdered(at=self._now(), request=request, model=model))
        )

    async def unload(self, model: ModelName, timeout: Duration | None) -> Result:  # noqa: ASYNC109 - the core keeps it
        """Take a model off the GPUs once its in-flight requests have ended, or are cut after ``timeout``."""
        return _result(
            await self._operators.order(
                lambda request: UnloadOrdered(at=self._now(), request=request, model=model, drain_timeout=timeout)
            )
        )

    async def pin(self, model: ModelName, pinned: bool) -> Result:  # noqa: FBT001 - pinned is what the order is about
        """Pin a model, or take its pin away."""
        return _result(
            await self._operators.order(
                lambda request: PinOrdered(at=self._now(), request=request, model=model, pinned=pinned)
            )
        )

    async def drain(self, timeout: Duration | None) -> Result:  # noqa: ASYNC109 - the core keeps it
        """Take the node out of service; in-flight requests end first, or are cut after ``timeout``."""
        return _result(
            await self._operators.order(
                lambda request: NodeDrainOrdered(at=self._now(), request=request, timeout=timeout, linger=LINGER)
            )
        )

    async def undrain(self) -> Result:
        """Bring the node back into service."""
        return _result(await self._operators.order(lambda request: NodeUndrainOrdered(at=self._now(), request=request)))

    async def reload(self) -> Result:
        """Read the configuration file again and apply it."""
        return await self._reloader.reload()

    async def release_gpus(self) -> Result:
        """Let go of the driver, so that an operator can reset or partition GPUs; nothing new is loaded meanwhile."""
        if self._driver is None:
            return _NO_DRIVER
        trouble = await self._driver.release()
        if trouble:
            return Result(ok=False, detail=trouble)
        return Result(ok=True, detail=f"the driver is released{_holders(await in_turns(self._view()))}")

    async def acquire_gpus(self) -> Result:
        """Take the driver back and read the GPUs anew."""
        if self._driver is None:
            return _NO_DRIVER
        trouble = await self._driver.acquire()
        return Result(ok=not trouble, detail=trouble or "the driver is taken back")


_NO_DRIVER = Result(ok=False, detail="the devices are virtual: there is no driver to release or to take back")


def _holders(view: NodeView) -> str:
    """Say who would lose their GPUs in a reset."""
    models = list(dict.fromkeys(instance.model for instance in view.instances))
    if not models:
        return "; nothing is loaded until it is taken back"
    hold, them = ("holds its GPUs", "it") if len(models) == 1 else ("hold their GPUs", "them")
    return f"; {', '.join(models)} still {hold}, and a reset would end {them}: swapd drain comes first"


def config_info(reloader: Reloader, now: Instant) -> ConfigInfo:
    """Return what the status document says of the configuration file."""
    return ConfigInfo(
        path=str(reloader.path),
        ok=not reloader.error,
        error=reloader.error,
        age=Duration(now - reloader.applied_at),
        restart_needed=reloader.restart_needed,
    )


def process_infos(view: NodeView, instances: Instances) -> dict[InstanceId, ProcessInfo]:
    """Return the process of each instance of a snapshot that has one."""
    described = ((instance.instance, instances.describe(instance.instance)) for instance in view.instances)
    return {
        instance: ProcessInfo(pid=process.pid, port=process.port, log=str(process.log))
        for instance, process in described
        if process is not None and process.pid is not None
    }


def _result(answer: Answer) -> Result:
    return Result(ok=answer.ok, detail=answer.detail, reason=answer.reason)
