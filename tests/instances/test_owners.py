"""Whose each process is: what the driver lists by process id becomes an instance's, all of them in one look."""

import contextlib
import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from swapd.core.events import Event, InstanceExited, ProcessesGone
from swapd.core.ids import InstanceId
from swapd.instances import instances as room_module
from swapd.instances.processes import Family, Process, table, tell_apart
from tests.fakes.counted import Counted
from tests.fakes.engine_bench import bench

ONE, TWO = InstanceId(1), InstanceId(2)


@contextlib.contextmanager
def stranger() -> Iterator[int]:
    """Run a child of ours that is no instance's."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process.pid
        process.kill()


async def test_every_process_of_every_instance_is_told_apart_in_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path) as room:
        await room.ready(1, "--stray", "--worker")
        await room.ready(2)
        looks = Counted(table)
        monkeypatch.setattr(room_module, "table", looks)
        with stranger() as other:
            owners = room.instances.owners()
        assert looks.calls == 1
        assert sorted(owners) == sorted(room.processes())
        assert {pid for pid, owner in owners.items() if owner == TWO} == {room.pid(2)}
        assert len([owner for owner in owners.values() if owner == ONE]) >= 3
        assert not {other, os.getpid()} & owners.keys()


async def test_nobody_is_an_owner_before_the_first_and_after_the_last_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench(tmp_path) as room:
        assert room.instances.owners() == {}
        await room.ready(1)
        assert set(room.instances.owners().values()) == {ONE}
        await room.stopped(1)
        assert room.instances.owners() == {}


async def test_an_engine_that_has_died_owns_its_processes_until_they_are_reaped(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        pid = await room.ready(1)
        os.kill(pid, signal.SIGKILL)
        await room.fact(1, InstanceExited)
        assert table()[pid].zombie
        assert room.instances.owners() == {pid: ONE}


async def test_an_instance_whose_processes_are_gone_does_not_get_whoever_has_their_ids_now(tmp_path: Path) -> None:
    async with bench(tmp_path) as room:
        await room.ready(1)
        family = room.instances._supervisors[ONE].run.family
        assert family is not None
        answers = []

        def look(event: Event) -> None:
            if isinstance(event, ProcessesGone):  # the instance is still there: its port may be in use
                assert ONE in room.instances._supervisors
                family.leader = other
                answers.append(room.instances.owners())

        room.on_fact = look
        with stranger() as other:
            await room.stopped(1)
        assert answers == [{}]


async def test_without_descriptors_the_last_answer_holds_for_the_instances_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing() -> dict[int, Process]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with bench(tmp_path) as room:
        await room.ready(1)
        await room.ready(2)
        before = room.instances.owners()
        assert set(before.values()) == {ONE, TWO}
        with monkeypatch.context() as patch:
            patch.setattr(room_module, "table", failing)
            assert room.instances.owners() == before
            await room.stopped(1)
            assert set(room.instances.owners().values()) == {TWO}
        assert room.instances.owners() == {room.pid(2): TWO}


def test_descendants_belong_to_the_family_of_their_nearest_member_and_loops_end() -> None:
    def process(pid: int, parent: int, group: int) -> Process:
        return Process(pid, "S", parent, group, group, start=pid)

    rows = (
        *(process(10, 1, 10), process(11, 10, 10), process(12, 11, 12), process(13, 12, 12)),
        *(process(20, 1, 20), process(21, 20, 21)),
        *(process(30, 31, 30), process(31, 30, 31), process(40, 1, 40)),
    )
    one, two = Family(10, "one"), Family(20, "two")
    found = tell_apart((one, two), {row.pid: row for row in rows})
    assert found == {10: one, 11: one, 12: one, 13: one, 20: two, 21: two}
    orphaned = {12: process(12, 1, 12), 13: process(13, 12, 12)}
    assert tell_apart((one, two), orphaned) == {12: one, 13: one}
    assert tell_apart((one, two), {12: Process(12, "S", 1, 12, 12, start=99)}) == {}
