"""A daemon behind the admin socket: answers as told, remembers what it was asked."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from swapd.admin.cache import CacheInfo, cache_document
from swapd.admin.control import Result
from swapd.admin.report import report_document
from swapd.admin.status import ConfigInfo, Extras, status_document
from swapd.admin.timeline import Timeline, timeline_document
from swapd.aio.turns import in_turns
from swapd.core.ids import SECOND, Duration, ModelName
from swapd.core.view import NodeView
from swapd.kube.annotations import annotations
from tests.fakes.node_views import instance_view, model_view, node_view


def extras(**changes: object) -> Extras:
    fields: dict[str, object] = {
        "version": "1.2.3",
        "uptime": Duration(90 * SECOND),
        "config": ConfigInfo(path="/etc/swapd.yaml", ok=True, age=Duration(60 * SECOND)),
        "listeners": {"http": "127.0.0.1:8090"},
    }
    return Extras(**(fields | changes))  # type: ignore[arg-type]  # the caller names fields of Extras


@dataclass
class FakeControl:
    """Implements `swapd.admin.control.Control`; `gate` holds every order back until it is set."""

    view: NodeView = field(default_factory=lambda: node_view(model_view("m01", instance=instance_view("m01"))))
    extras: Extras = field(default_factory=extras)
    names: dict[str, str] = field(default_factory=lambda: {"m01": "m01", "tiny": "m01", "org/model-7b": "org/model-7b"})
    result: Result = field(default_factory=lambda: Result(ok=True, detail="done"))
    #: other results than `result`, by name of the order
    results: dict[object, Result] = field(default_factory=dict)
    #: what `timelines` tells of
    kept: list[Timeline] = field(default_factory=list)
    #: what `arrivals` yields
    recorded: list[bytes] = field(default_factory=list)
    #: how the weight cache stands
    kept_weights: CacheInfo | None = None
    #: a prefetch that nobody waits for is not over at once
    slow: bool = True
    asked: list[tuple[object, ...]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    entered: asyncio.Event = field(default_factory=asyncio.Event)

    def resolve(self, name: str) -> ModelName | None:
        return ModelName(self.names[name]) if name in self.names else None

    async def status(self) -> dict[str, object]:
        return await in_turns(status_document(self.view, self.extras))

    async def topology(self) -> dict[str, object]:
        return dict(annotations(self.view, not_ready=self.extras.not_ready))

    async def report(self) -> dict[str, object]:
        return await in_turns(report_document(self.view))

    def timelines(self, model: ModelName | None) -> dict[str, object]:
        return timeline_document([one for one in self.kept if model is None or one.load.model == model])

    async def arrivals(self) -> AsyncGenerator[bytes, None]:
        for chunk in self.recorded:
            yield chunk

    async def model_list(self) -> str:
        return "model,gpus,load_s\nm01,2,18.7\n"

    async def cache(self) -> dict[str, object]:
        return cache_document(self.view, self.kept_weights)

    async def prefetch(self, model: ModelName, *, wait: bool) -> Result | None:
        result = await self._answer("prefetch", model, wait)
        return self.results.get(model, result) if wait or not self.slow else None

    async def verify(self, model: ModelName) -> Result:
        return await self._answer("verify", model)

    async def remove(self, model: ModelName) -> Result:
        return await self._answer("remove", model)

    async def load(self, model: ModelName) -> Result:
        return await self._answer("load", model)

    async def unload(self, model: ModelName, cut_after: Duration | None) -> Result:
        return await self._answer("unload", model, cut_after)

    async def pin(self, model: ModelName, pinned: bool) -> Result:
        return await self._answer("pin", model, pinned)

    async def drain(self, cut_after: Duration | None) -> Result:
        return await self._answer("drain", cut_after)

    async def undrain(self) -> Result:
        return await self._answer("undrain")

    async def reload(self) -> Result:
        return await self._answer("reload")

    async def release_gpus(self) -> Result:
        return await self._answer("release_gpus")

    async def acquire_gpus(self) -> Result:
        return await self._answer("acquire_gpus")

    async def _answer(self, *asked: object) -> Result:
        self.asked.append(asked)
        self.entered.set()
        if self.gate is not None:
            await self.gate.wait()
        return self.results.get(asked[0], self.result)
