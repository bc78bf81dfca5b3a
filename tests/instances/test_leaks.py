"""Starting and stopping many times leaves processes, descriptors, ports and tasks where they were."""

import asyncio
from pathlib import Path

import psutil
import uvloop

from swapd.core.events import EngineGone, InstanceReady
from tests.fakes.engine_bench import Bench, bench, until

AT_ONCE = 10


def books() -> tuple[int, int, int]:
    """Count descriptors, processes and tasks."""
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    return descriptors, len(psutil.Process().children(recursive=True)), len(asyncio.all_tasks())


async def cycle(room: Bench, instance: int) -> None:
    room.start(instance, *(("--stray",) if instance % 5 == 0 else ()))
    if instance % 3:
        await room.fact(instance, InstanceReady)
    (room.kill if instance % 2 else room.stop)(instance)
    await room.fact(instance, EngineGone)


async def many_cycles(tmp_path: Path, cycles: int) -> None:
    async with bench(tmp_path) as room:
        await cycle(room, 1)
        before = books()
        for first in range(2, cycles + 2, AT_ONCE):
            await asyncio.gather(*(cycle(room, instance) for instance in range(first, first + AT_ONCE)))
        await until(lambda: books() == before)
        assert room.instances._room.ports._taken == set()
        assert room.instances._supervisors == {}


async def test_fifty_cycles_leave_nothing(tmp_path: Path) -> None:
    await many_cycles(tmp_path, 50)


def test_nor_do_they_on_the_loop_that_the_daemon_uses(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(many_cycles(tmp_path, 20))
