"""What a reading of memory says, and what it leaves out because nobody knows."""

from dataclasses import replace

from swapd.core.events import GpuMemory
from swapd.core.ids import Bytes, InstanceId, Instant
from swapd.core.topology import Gpu, GpuHealth
from swapd.gpus.health import Answer, Signs
from swapd.gpus.memory import Owners, readings
from swapd.gpus.poll import Poll, Polled
from swapd.gpus.readings import GpuProcess, MemoryReading

GIB = 1 << 30
ONE, TWO = InstanceId(1), InstanceId(2)
GPU = Gpu(index=0, uuid="GPU-0", memory_bytes=Bytes(79 * GIB), measured=True)
MEMORY = MemoryReading(Bytes(80 * GIB), Bytes(50 * GIB), Bytes(GIB))
READ = Signs(Answer.READ)


def process(pid: int, gib: int | None = 1) -> GpuProcess:
    """Return one entry of the driver's list."""
    return GpuProcess(pid, None if gib is None else Bytes(gib * GIB))


def polled(**gpus: Polled) -> Poll:
    """Return a poll in which ``gpu0``, ``gpu1`` … answered so."""
    return Poll(Instant(7), len(gpus), {int(name[3:]): answer for name, answer in gpus.items()})


def owners(**instances: int) -> Owners:
    """Return the owners of ``pid10``, ``pid11`` …"""
    known = Owners()
    known.learn({int(name[3:]): InstanceId(instance) for name, instance in instances.items()})
    return known


def test_a_reading_has_the_free_memory_and_what_is_left_of_the_total_without_the_drivers_reserve() -> None:
    assert readings(polled(gpu0=Polled(READ, MEMORY)), [GPU], Owners()) == (
        GpuMemory(gpu=0, capacity_bytes=Bytes(79 * GIB), free_bytes=Bytes(50 * GIB), processes=None),
    )


def test_a_gpu_that_is_lost_or_unread_or_cannot_tell_is_left_out() -> None:
    gpus = [
        replace(GPU, index=0, health=GpuHealth.LOST),
        replace(GPU, index=1, measured=False),
        replace(GPU, index=2),
        replace(GPU, index=3),
        replace(GPU, index=4, health=GpuHealth.FAILED),
        replace(GPU, index=5, health=GpuHealth.DEGRADED),
    ]
    told = Polled(READ, MEMORY)
    poll = polled(gpu0=told, gpu1=told, gpu2=Polled(Signs(Answer.ERROR, "Unknown")), gpu4=told, gpu5=told)
    assert [reading.gpu for reading in readings(poll, gpus, Owners())] == [4, 5]


def test_processes_are_told_by_instance_and_others_processes_are_nobodys() -> None:
    answer = Polled(READ, MEMORY, (process(10, 5), process(11, 6), process(12, 7), process(99, 8)))
    (reading,) = readings(polled(gpu0=answer), [GPU], owners(pid10=1, pid11=1, pid12=2))
    assert reading.processes == {ONE: 11 * GIB, TWO: 7 * GIB}


def test_an_untrusted_list_is_none_and_an_empty_one_is_empty() -> None:
    for processes, expected in ((None, None), ((), {})):
        (reading,) = readings(polled(gpu0=Polled(READ, MEMORY, processes)), [GPU], owners(pid10=1))
        assert reading.processes == expected


def test_a_size_that_is_not_told_never_enters_a_sum() -> None:
    known = owners(pid10=1, pid11=1, pid12=2)
    assert known.held([process(10, 5), process(11, None), process(12, 2)]) == {ONE: None, TWO: 2 * GIB}
    assert known.held([process(11, None), process(10, 5)]) == {ONE: None}


def test_a_process_in_both_lists_is_counted_once() -> None:
    known = owners(pid10=1)
    assert known.held([process(10, 5), process(10, 5)]) == {ONE: 5 * GIB}
    assert known.held([process(10, None), process(10, 5)]) == {ONE: 5 * GIB}


def test_an_ended_process_keeps_its_owner_for_as_long_as_the_driver_lists_it() -> None:
    known = owners(pid10=1)
    known.learn({})
    known.forget({}, [(process(10),)])
    assert known.held([process(10)]) == {ONE: GIB}
    known.forget({}, [()])
    assert known.held([process(10)]) == {}


def test_a_missing_list_makes_nobody_forgotten() -> None:
    known = owners(pid10=1)
    known.forget({}, [(), None])
    assert known.held([process(10)]) == {ONE: GIB}


def test_a_process_id_that_is_used_again_belongs_to_its_new_owner() -> None:
    known = owners(pid10=1)
    known.learn({10: TWO})
    assert known.held([process(10)]) == {TWO: GIB}
