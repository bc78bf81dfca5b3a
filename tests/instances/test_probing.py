"""A loading engine is probed often at first and patiently later, and no probe holds up the next."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from swapd.core.events import InstanceReady
from swapd.core.ids import Duration
from swapd.engines.base import ReadinessProbe
from swapd.instances import probe
from tests.fakes.engine_bench import bench

MUTE_AT_FIRST = """
import asyncio, sys
met = []
async def serve(reader, writer):
    met.append(writer)
    await reader.readuntil(b"\\r\\n\\r\\n")
    if len(met) <= 3:
        return
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\n{}")
    await writer.drain()
    writer.close()
async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
"""


class Clock:
    """A loop's clock that moves by sleeping alone."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def time(self) -> float:
        return self.now

    async def sleep(self, delay: float) -> None:
        self.slept.append(delay)
        self.now += delay


async def test_probes_are_5_to_10_ms_apart_for_a_second_then_back_off_to_one_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()

    async def down_for_a_minute(*_: object) -> str | None:
        return "is down" if clock.now < 160 else None

    monkeypatch.setattr(probe, "problem", down_for_a_minute)
    monkeypatch.setattr(probe, "asyncio", SimpleNamespace(get_running_loop=lambda: clock, sleep=clock.sleep))
    await probe.wait_until_up("127.0.0.1", 1, ReadinessProbe(path="/health", timeout=Duration(1)))

    starts = [sum(clock.slept[:number]) for number in range(len(clock.slept))]
    eager = [delay for start, delay in zip(starts, clock.slept, strict=True) if start < 0.99]
    patient = clock.slept[len(eager) :]
    assert len(eager) >= 99
    assert all(0.005 <= delay <= 0.010 for delay in eager)
    assert max(patient) == pytest.approx(1.0)
    assert patient[-10:] == pytest.approx([1.0] * 10)


async def test_an_engine_that_accepts_and_never_answers_its_first_probes_is_found_ready_by_a_later_one(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as room:
        command = (sys.executable, "-c", MUTE_AT_FIRST, "{port}")
        room.start(1, command=command, health_timeout=100_000_000)
        await room.fact(1, InstanceReady)
