"""An instance ends with its last process, whatever its end was: no cycle keeps it until the garbage collector comes."""

import asyncio
import os
import signal
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from swapd.core.events import EngineGone, InstanceExited, LoadFailed
from swapd.core.ids import InstanceId
from swapd.instances.http import UnreachableError, request
from swapd.instances.launch import Child
from swapd.instances.run import Run
from swapd.instances.supervisor import Supervisor
from tests.fakes.engine_bench import Bench, bench, until
from tests.fakes.garbage import alive, no_collector


async def stopped_while_it_loads(room: Bench) -> None:
    room.start(1, "--load-s", "60")
    await until(lambda: room.instances.endpoint(InstanceId(1)))
    room.stop(1)


async def stopped_when_ready(room: Bench) -> None:
    await room.ready(1)
    room.stop(1)


async def killed_by_order(room: Bench) -> None:
    await room.ready(1)
    room.kill(1)


async def killed_by_another(room: Bench) -> None:
    os.kill(await room.ready(1), signal.SIGKILL)
    await room.fact(1, InstanceExited)
    room.stop(1)


async def failed_by_exit(room: Bench) -> None:
    room.start(1, "--health", "503", "--exit-after-s", "0")
    await room.fact(1, LoadFailed)
    room.stop(1)


async def failed_in_warmup(room: Bench) -> None:
    room.start(1, "--script", "status=500")
    await room.fact(1, LoadFailed)
    room.stop(1)


ENDS = [
    stopped_while_it_loads,
    stopped_when_ready,
    killed_by_order,
    killed_by_another,
    failed_by_exit,
    failed_in_warmup,
]


@pytest.mark.parametrize("end", ENDS)
def test_nothing_of_an_instance_that_is_gone_waits_for_the_collector(
    tmp_path: Path, end: Callable[[Bench], Awaitable[None]]
) -> None:
    async def live() -> None:
        async with bench(tmp_path) as room:
            with no_collector():
                await end(room)
                await room.fact(1, EngineGone)
                await until(lambda: not alive(Supervisor, Run, Child))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(live())


async def test_nor_does_a_connection_that_was_reset_before_it_answered() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    server = await asyncio.start_server(reset, "127.0.0.1", 0)
    async with server:
        with no_collector():
            with pytest.raises(UnreachableError):
                await request("127.0.0.1", server.sockets[0].getsockname()[1], method="GET", path="/health")
            await until(lambda: not alive(asyncio.StreamReader))
