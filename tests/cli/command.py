"""Runs commands in this process, beside an admin server on the test's own loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner, Result

from swapd.admin.events import EventHub
from swapd.admin.server import AdminServer
from swapd.cli.root import swapd
from tests.fakes.control import FakeControl

#: nothing of this machine's own: no daemon may be found by accident
NOWHERE = {
    "SWAPD_ADMIN": None,
    "RUNTIME_DIRECTORY": "/nonexistent",
    "XDG_RUNTIME_DIR": "/nonexistent",
    "TMPDIR": "/nonexistent",
}


def invoke(*arguments: str, env: dict[str, str | None] | None = None) -> Result:
    return CliRunner().invoke(swapd, arguments, env={**NOWHERE, **(env or {})})


@dataclass
class Node:
    """A fake daemon with a real admin socket."""

    path: Path
    control: FakeControl
    hub: EventHub

    async def swapd(self, *arguments: str, env: dict[str, str | None] | None = None) -> Result:
        return await asyncio.to_thread(invoke, *arguments, env=env or {"SWAPD_ADMIN": str(self.path)})


@asynccontextmanager
async def node(path: Path) -> AsyncIterator[Node]:
    control, hub = FakeControl(), EventHub()
    server = AdminServer(path, control, hub)
    await server.start()
    try:
        yield Node(path, control, hub)
    finally:
        await server.aclose()
