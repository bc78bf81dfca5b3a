"""Each order to read memory has one answer, and it is no older than the order."""

from pathlib import Path

from swapd.core.events import GpuMemoryRead
from swapd.core.ids import Instant
from swapd.gpus.orders import MemoryOrders
from tests.fakes.engine_bench import until
from tests.gpus.room_bench import LONG, SOON, bench, hanging, turns


async def test_every_order_to_read_memory_is_answered_by_one_fact(tmp_path: Path) -> None:
    async with bench(tmp_path, poll_period=LONG, hurry=LONG) as room:
        await room.polled()
        assert len(room.of(GpuMemoryRead)) == 1
        for number in range(2, 6):
            room.room.read_memory()
            await until(lambda: len(room.of(GpuMemoryRead)) >= number)  # noqa: B023 - awaited at once
            await turns()
            assert len(room.of(GpuMemoryRead)) == number
            assert len(room.of(GpuMemoryRead)[-1].readings) == 8


async def test_a_reading_that_began_before_an_order_does_not_answer_it(tmp_path: Path) -> None:
    async with bench(tmp_path, poll_period=LONG) as room:
        await room.polled()
        with hanging(room.library, "DeviceGetMemoryInfo_v2") as hang:
            room.room.read_memory()
            await hang.until_it_hangs()
            room.room.read_memory()
        await until(lambda: len(room.of(GpuMemoryRead)) == 3)
        _, first, second = room.of(GpuMemoryRead)
        assert second.taken > first.taken


async def test_an_order_that_nvml_does_not_answer_in_time_is_answered_empty(tmp_path: Path) -> None:
    async with bench(tmp_path, poll_period=LONG, poll_deadline=SOON) as room:
        await room.polled()
        with hanging(room.library, "DeviceGetMemoryInfo_v2"):
            room.room.read_memory()
            await until(lambda: len(room.of(GpuMemoryRead)) == 2)
            assert room.of(GpuMemoryRead)[-1].readings == ()
        await until(lambda: len(room.of(GpuMemoryRead)) == 3)  # the late answer is told, too, as a reading like any


async def test_orders_before_the_first_discovery_are_answered_empty(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        room.room.read_memory()
        assert [read.readings for read in room.of(GpuMemoryRead)] == [()]


async def test_an_order_that_was_answered_has_no_deadline_any_more() -> None:
    posted: list[GpuMemoryRead] = []
    orders = MemoryOrders(post=posted.append, now=lambda: Instant(1), deadline=LONG)
    orders.add()
    (timer,) = orders._waiting.values()
    orders.publish(orders.waiting(), GpuMemoryRead(at=Instant(1), taken=Instant(1)))
    assert (timer.cancelled(), orders.waiting(), len(posted)) == (True, (), 1)
