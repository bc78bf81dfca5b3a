"""The simulated driver tells the truth of its moment, late; the audit notices what goes against that truth."""

from dataclasses import replace

import pytest

from swapd.core.catalog import Catalog
from swapd.core.commands import Command, Evicted, Kill, ReadMemory, Start, Stop, Transitioned
from swapd.core.events import (
    EngineGone,
    Event,
    GpuMemory,
    GpuMemoryRead,
    InstanceExited,
    LoadFailed,
    ProcessesGone,
    RequestArrived,
    TopologyChanged,
)
from swapd.core.ids import MILLISECOND, Bytes, Duration, GpuSet, InstanceId, Instant, ModelName, RequestId, seconds
from swapd.core.reasons import State, UnloadCause
from swapd.core.topology import DriverState, GpuHealth
from swapd.sim.audit import Audit, AuditError
from swapd.sim.driver import DriverTurns, ForeignMemory, HealthTurns, ListsTurn, VirtualDriver
from swapd.sim.node import VirtualNode
from swapd.sim.reader import Reader
from swapd.sim.world import HealthyWorld, Timings
from tests.sim.hgx import GIB, GPU_BYTES, hgx
from tests.sim.rigs import plain

ONE = InstanceId(1)
TWO = InstanceId(2)
UP = replace(hgx(), driver=DriverState.UP)
TIMES = Timings(default_load=seconds(10), stop=seconds(1), release=seconds(0), give_back=seconds(4))


def start(instance: InstanceId, gpus: int = 1, gib: int = 40, name: str = "a") -> Start:
    spec = plain(name)
    footprint = replace(spec.footprint, bytes_per_gpu=Bytes(gib * GIB), gpus=gpus.bit_count())
    return Start(instance, replace(spec, footprint=footprint), GpuSet(gpus))


#: what the audit knows to be configured
CATALOG = Catalog({ModelName("a"): start(ONE).spec})


def at(moment_s: float) -> Instant:
    return Instant(seconds(moment_s))


class Script:
    """A core that gives these orders at these times instead of deciding."""

    def __init__(self, *orders: tuple[float, Command]) -> None:
        self._orders = [(at(moment_s), command) for moment_s, command in orders]
        self.heard: list[Event] = []

    @property
    def next_wakeup(self) -> Instant | None:
        return self._orders[0][0] if self._orders else None

    def handle(self, event: Event) -> tuple[Command, ...]:
        self.heard.append(event)
        due = tuple(command for moment, command in self._orders if moment <= event.at)
        self._orders = self._orders[len(due) :]
        return due

    def free(self, gpu: int = 0) -> list[tuple[float, float]]:
        """Return when each reading was taken and what it said of a GPU, in GiB."""
        readings = [event for event in self.heard if isinstance(event, GpuMemoryRead)]
        return [(r.taken / 1e9, m.free_bytes / GIB) for r in readings for m in r.readings if m.gpu == gpu]


def node(core: Script, driver: VirtualDriver, *, interval_s: float = 5) -> VirtualNode:
    reader = Reader(driver, interval=seconds(interval_s), due=at(0))
    return VirtualNode(core, HealthyWorld(TIMES), reader=reader)


def test_memory_rises_while_an_engine_loads_and_comes_back_after_its_processes_are_gone() -> None:
    core = Script((0, start(ONE)), (12, Stop(ONE, ModelName("a"), UnloadCause.EVICTED)))
    node(core, VirtualDriver(hgx())).run(at(21))

    assert core.free() == [(0, 79), (5, 59), (10, 39), (15, 39), (20, 79)]
    gone = next(event.at for event in core.heard if isinstance(event, ProcessesGone))
    assert gone == at(13)


def test_a_model_may_take_other_than_it_declares() -> None:
    core = Script((0, start(ONE)))
    node(core, VirtualDriver(hgx(), sizes={ModelName("a"): Bytes(50 * GIB)})).run(at(11))

    assert core.free()[-1] == (10, 29)


def test_every_order_to_read_is_answered_once_even_without_a_driver() -> None:
    core = Script((1, ReadMemory()), (3, ReadMemory()), (5, ReadMemory()))
    virtual = node(core, VirtualDriver(hgx()), interval_s=100)
    virtual.post(DriverTurns(at(2), DriverState.STALLED), DriverTurns(at(4), DriverState.FAILED))
    virtual.run(at(20))

    readings = [event for event in core.heard if isinstance(event, GpuMemoryRead)]
    latency = Duration(20 * MILLISECOND)
    assert [(r.taken, r.at - r.taken, len(r.readings)) for r in readings] == [
        (at(0), latency, 8),
        (at(1) + 1, latency, 8),
        (at(5) + 1, latency, 0),
        (at(3) + 1, seconds(5), 0),
    ]


def test_a_lost_gpu_is_in_no_reading_and_its_engines_end() -> None:
    core = Script((0, start(ONE)), (0, start(TWO, 2)))
    virtual = node(core, VirtualDriver(hgx()))
    virtual.post(HealthTurns(at(12), 0, GpuHealth.LOST))
    virtual.run(at(16))

    last = [event for event in core.heard if isinstance(event, GpuMemoryRead)][-1]
    assert [reading.gpu for reading in last.readings] == [1, 2, 3, 4, 5, 6, 7]
    assert [event.instance for event in core.heard if isinstance(event, InstanceExited)] == [ONE]
    [told] = [event for event in core.heard if isinstance(event, TopologyChanged)]
    assert told.at == at(13)
    assert told.topology.placeable == 0b1111_1110


def test_a_healed_gpu_is_empty() -> None:
    core = Script((0, start(ONE)))
    virtual = node(core, VirtualDriver(hgx()))
    virtual.post(ForeignMemory(at(1), 0, Bytes(GIB)), HealthTurns(at(12), 0, GpuHealth.LOST))
    virtual.post(ProcessesGone(at(13), ONE), HealthTurns(at(14), 0, GpuHealth.HEALTHY))
    virtual.run(at(16))

    assert core.free()[-1] == (15, 79)


def test_a_driver_that_comes_late_brings_its_gpus() -> None:
    core = Script()
    driver = VirtualDriver(hgx(), state=DriverState.ABSENT)
    assert (driver.topology.gpus, driver.topology.driver) == ((), DriverState.ABSENT)
    virtual = node(core, driver)
    virtual.post(DriverTurns(at(7), DriverState.UP))
    virtual.run(at(11))

    [told] = [event for event in core.heard if isinstance(event, TopologyChanged)]
    assert told.topology == replace(UP, generation=1)
    assert core.free() == [(10, 79)]


@pytest.mark.parametrize(
    ("ghosts", "trusted", "listed"), [(True, True, {ONE}), (False, True, set()), (True, False, None)]
)
def test_process_lists_show_the_dead_or_not_or_cannot_be_trusted(
    ghosts: bool, trusted: bool, listed: set[InstanceId] | None
) -> None:
    driver = VirtualDriver(hgx(), ghosts=ghosts)
    driver.start(start(ONE), at(0), at(10))
    driver.ready(ONE)
    driver.end(ONE, at(20), at(30))
    driver.befall(ListsTurn(at(21), trusted=trusted))

    processes = driver.read(at(22))[0].processes
    assert (None if processes is None else set(processes)) == listed


def test_an_engine_that_does_not_get_its_memory_fails_to_load() -> None:
    core = Script((0, start(ONE)))
    virtual = node(core, VirtualDriver(hgx()))
    virtual.post(ForeignMemory(at(5), 0, GPU_BYTES))
    virtual.run(at(11))

    assert core.free()[-1] == (10, 0)
    assert [event.instance for event in core.heard if isinstance(event, LoadFailed)] == [ONE]


def heard_all(driver: VirtualDriver, moment: Instant) -> GpuMemoryRead:
    return GpuMemoryRead(moment, moment, driver.read(moment))


def booked(instance: InstanceId, gpus: int = 1, after: State = State.RESERVED) -> Transitioned:
    before = {State.RESERVED: None, State.LOADING: State.RESERVED}.get(after, State.UNLOADING)
    return Transitioned(instance, ModelName("a"), GpuSet(gpus), before, after, "")


def audited(driver: VirtualDriver) -> Audit:
    """Return an audit that has seen one engine start on the first GPU and end at 20 s, with its memory kept."""
    audit = Audit(driver, UP, CATALOG)
    audit(heard_all(driver, at(0)), (booked(ONE), start(ONE)))
    driver.start(start(ONE), at(0), at(10))
    driver.ready(ONE)
    audit(heard_all(driver, at(10)), (Stop(ONE, ModelName("a"), UnloadCause.EVICTED),))
    driver.end(ONE, at(20), None)
    audit(ProcessesGone(at(20), ONE), ())
    return audit


def test_the_audit_lets_a_start_pass_that_fits() -> None:
    driver = VirtualDriver(hgx())
    audited(driver)(heard_all(driver, at(21)), (booked(TWO), start(TWO, gib=39)))


def test_the_audit_notices_a_start_into_memory_that_is_still_held() -> None:
    driver = VirtualDriver(hgx())
    with pytest.raises(AuditError, match="no_overcommit"):
        audited(driver)(heard_all(driver, at(21)), (booked(TWO), start(TWO)))


def test_the_audit_notices_a_start_beside_foreign_memory_that_was_told_of() -> None:
    driver = VirtualDriver(hgx())
    audit = audited(driver)
    driver.give_back(ONE, at(21))
    driver.befall(ForeignMemory(at(21), 0, Bytes(40 * GIB)))
    with pytest.raises(AuditError, match="no_overcommit"):
        audit(heard_all(driver, at(22)), (booked(TWO), start(TWO)))


def test_foreign_memory_that_nobody_told_of_is_no_fault_of_the_start() -> None:
    driver = VirtualDriver(hgx())
    audit = audited(driver)
    driver.give_back(ONE, at(21))
    audit(heard_all(driver, at(22)), ())
    driver.befall(ForeignMemory(at(23), 0, Bytes(40 * GIB)))
    audit(RequestArrived(at(24), RequestId(1), ModelName("a")), (booked(TWO), start(TWO)))


@pytest.mark.parametrize("health", [GpuHealth.LOST, GpuHealth.FAILED, GpuHealth.MIG])
def test_the_audit_notices_a_start_on_a_gpu_that_is_not_sound(health: GpuHealth) -> None:
    driver = VirtualDriver(hgx())
    driver.befall(HealthTurns(at(1), 1, health))
    audit = Audit(driver, UP, CATALOG)
    audit(TopologyChanged(at(2), driver.topology), ())
    with pytest.raises(AuditError, match="placeable_only"):
        audit(heard_all(driver, at(3)), (booked(ONE, 0b10), start(ONE, 0b10)))


def test_the_audit_notices_two_loads_at_once_on_one_gpu() -> None:
    driver = VirtualDriver(hgx())
    audit = Audit(driver, UP, CATALOG)
    audit(heard_all(driver, at(0)), (booked(ONE), booked(ONE, after=State.LOADING), start(ONE, gib=10)))
    with pytest.raises(AuditError, match="one_load_per_gpu"):
        audit(heard_all(driver, at(1)), (booked(TWO), start(TWO, gib=10)))


def test_the_audit_notices_memory_that_counts_as_free_too_early() -> None:
    driver = VirtualDriver(hgx(), ghosts=True)
    audit = audited(driver)
    with pytest.raises(AuditError, match="shown_free"):
        audit(EngineGone(at(21), ONE), (Kill(ONE, ModelName("a")), booked(ONE, after=State.GONE)))


def test_the_audit_takes_the_word_of_a_list_that_shows_an_engine_no_more() -> None:
    driver = VirtualDriver(hgx())
    audited(driver)(heard_all(driver, at(21)), (booked(ONE, after=State.GONE),))


def test_the_audit_cannot_tell_whose_memory_came_back_when_others_gave_some_back_too() -> None:
    driver = VirtualDriver(hgx(), ghosts=True)
    audit = audited(driver)
    driver.befall(ForeignMemory(at(21), 0, Bytes(10 * GIB)))
    driver.befall(ForeignMemory(at(22), 0, Bytes(0)))
    audit(heard_all(driver, at(23)), (booked(ONE, after=State.GONE),))


def test_a_gpu_the_readings_leave_out_has_shown_nothing_free() -> None:
    driver = VirtualDriver(hgx())
    audit = Audit(driver, UP, CATALOG)
    audit(GpuMemoryRead(at(1), at(1), (GpuMemory(1, GPU_BYTES, GPU_BYTES),)), ())
    with pytest.raises(AuditError, match="no_overcommit"):
        audit(RequestArrived(at(1), RequestId(1), ModelName("a")), (booked(ONE), start(ONE)))


def evicted(model: str) -> Evicted:
    return Evicted(ONE, ModelName("other"), UnloadCause.EVICTED, ModelName(model))


def test_the_audit_notices_an_eviction_that_foreign_memory_makes_pointless() -> None:
    driver = VirtualDriver(hgx())
    driver.befall(ForeignMemory(at(1), 0, Bytes(40 * GIB)))
    audit = Audit(driver, UP, CATALOG)
    audit(heard_all(driver, at(2)), (booked(ONE, 0b10), evicted("a")))
    with pytest.raises(AuditError, match="foreign_evicts_nobody"):
        audit(heard_all(driver, at(2)), (booked(TWO), evicted("a")))


def test_the_audit_notices_leaked_memory_that_is_back_and_never_counts_again() -> None:
    driver = VirtualDriver(hgx())
    audit = audited(driver)
    audit(EngineGone(at(50), ONE), (booked(ONE, after=State.LEAKED),))
    audit(heard_all(driver, at(55)), ())
    driver.give_back(ONE, at(56))
    with pytest.raises(AuditError, match="leaks_come_back"):
        audit(heard_all(driver, at(60)), ())
