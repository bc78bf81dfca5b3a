"""Drives the room ``instances`` as the core would, and waits for facts instead of for time.

    async with bench(tmp_path) as room:
        room.start(1, "--load-s", "0.2")
        await room.fact(1, InstanceReady)

Leaving the block closes the room and asserts that no process of its instances is left.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from swapd.aio.clock import monotonic_now
from swapd.aio.supervise import Tasks
from swapd.core.events import EngineGone, Event, InstanceReady
from swapd.core.ids import MILLISECOND, Duration, InstanceId, Instant, ModelName, seconds
from swapd.engines.base import EngineOptions, EnginePlan
from swapd.engines.registry import plan
from swapd.instances import Instances, InstanceSettings
from swapd.instances.processes import MARK, table

SCRIPTED = Path(__file__).with_name("engine_scripted.py")
#: other test runs may share the machine: finite is all that a deadline has to be
DEADLINE_S = 60.0

E = TypeVar("E")


def quick(log_dir: Path, **changes: Any) -> InstanceSettings:
    """Return settings whose periods suit a test."""
    return InstanceSettings(
        log_dir=log_dir,
        **{
            "watch_period": Duration(50 * MILLISECOND),
            "look_period": Duration(50 * MILLISECOND),
            "warmup_patience": seconds(1.5),
            **changes,
        },
    )


@dataclass(slots=True)
class Bench:
    """One room, everything it has reported, and orders in short."""

    instances: Instances = field(init=False)
    #: told of every fact, as the core would be
    on_fact: Callable[[Event], None] = field(default=lambda _event: None)
    facts: list[Event] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    #: errors of tasks; must stay empty
    errors: list[tuple[str, BaseException]] = field(default_factory=list)

    def post(self, event: Event) -> None:
        assert not self.facts or event.at >= self.facts[-1].at, "time went back"
        self.facts.append(event)
        self.changed.set()
        self.on_fact(event)

    def start(self, instance: int, *switches: str, **options: Any) -> None:
        """Start the scripted server; ``options`` are those of ``EngineOptions``."""
        options.setdefault(
            "command", (sys.executable, str(SCRIPTED), "--port", "{port}", "--name", "{name}", *switches)
        )
        options.setdefault("engine", "command")
        options.setdefault("name", ModelName(f"m{instance:02}"))
        wanted = EngineOptions(**options)
        self.order(
            instance, wanted.name, lambda port: plan(wanted, port=port, devices=("virtual-0",), environ=os.environ)
        )

    def order(self, instance: int, model: str, plan_for_port: Callable[[int], EnginePlan]) -> None:
        """Give the order to start."""
        self.instances.start(InstanceId(instance), ModelName(model), plan_for_port)

    def give_port(self, port: int) -> None:
        """Let every instance from now on get this port, used or not."""
        vars(self.instances._room.ports)["take"] = lambda: port

    def port(self, instance: int) -> int:
        """Return the port of an instance that has one."""
        endpoint = self.instances.endpoint(InstanceId(instance))
        assert endpoint is not None
        return endpoint.port

    def pid(self, instance: int) -> int:
        """Return the id of an instance's leading process."""
        view = self.instances.describe(InstanceId(instance))
        assert view is not None
        assert view.pid is not None
        return view.pid

    def stop(self, instance: int) -> None:
        """Give the order to stop."""
        self.instances.stop(InstanceId(instance))

    def kill(self, instance: int) -> None:
        """Give the order to kill."""
        self.instances.kill(InstanceId(instance))

    async def ready(self, instance: int, *switches: str, **options: Any) -> int:
        """Start an instance, wait until it is ready, and return the id of its leading process (0: none)."""
        self.start(instance, *switches, **options)
        await self.fact(instance, InstanceReady)
        view = self.instances.describe(InstanceId(instance))
        assert view is not None
        return view.pid or 0

    async def stopped(self, instance: int) -> None:
        """Stop an instance and wait until nothing is left of it."""
        self.stop(instance)
        await self.fact(instance, EngineGone)

    def seen(self, instance: int, kind: type[E]) -> list[E]:
        """Return the facts of one kind about an instance, so far."""
        return [fact for fact in self.facts if isinstance(fact, kind) and getattr(fact, "instance", None) == instance]

    async def fact(self, instance: int, kind: type[E], *, nth: int = 1) -> E:
        """Wait for the nth fact of a kind about an instance."""
        async with asyncio.timeout(DEADLINE_S):
            while len(found := self.seen(instance, kind)) < nth:
                self.changed.clear()
                await self.changed.wait()
        return found[nth - 1]

    def names(self, instance: int) -> list[str]:
        """Return the kinds of all facts about an instance but progress, in order."""
        facts = [fact for fact in self.facts if getattr(fact, "instance", None) == instance]
        return [type(fact).__name__ for fact in facts if type(fact).__name__ != "LoadProgressed"]

    def processes(self) -> list[int]:
        """Return every living process that carries this room's mark, wherever it is."""
        mark = f"{MARK}={self.instances._room.token}".encode()
        return [process.pid for process in table().values() if not process.zombie and mark in _environ(process.pid)]


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def bench(tmp_path: Path, *, force: bool = True, **settings: Any) -> AsyncIterator[Bench]:
    """Open a room; at the end nothing of it may be left."""
    made = Bench()
    tasks = Tasks(on_failure=lambda name, error: made.errors.append((name, error)))
    made.instances = Instances(
        post=made.post,
        now=lambda: Instant(monotonic_now()),
        tasks=tasks,
        settings=quick(tmp_path / "logs", **settings),
    )
    try:
        yield made
    finally:
        await made.instances.aclose(force=force)
        await tasks.aclose()
        left = made.processes()
    assert left == []
    assert made.errors == []
