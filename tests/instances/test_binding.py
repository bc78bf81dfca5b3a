"""Engines run near their GPUs as far as the system allows it; the daemon itself runs where it did before."""

import ctypes
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import structlog

from swapd.core.events import InstanceReady
from swapd.core.ids import ModelName
from swapd.engines.base import Binding, EngineOptions
from swapd.engines.registry import plan
from swapd.instances import binding as room
from swapd.instances.binding import start_bound
from tests.fakes.engine_bench import SCRIPTED, bench

ALLOWED = sorted(os.sched_getaffinity(0))
#: modes of linux/mempolicy.h
DEFAULT, PREFERRED = 0, 1
GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236}[platform.machine()]

#: prints mode and first word of the nodes of its own memory policy, as inherited
TELL_POLICY = f"""
import ctypes
mode, nodes = ctypes.c_int(-1), (ctypes.c_ulong * 16)()
failed = ctypes.CDLL(None, use_errno=True).syscall({GET_MEMPOLICY}, ctypes.byref(mode), nodes, ctypes.c_ulong(1024),
                                                   None, ctypes.c_ulong(0))
print(failed, mode.value, nodes[0])
"""


def status(pid: int | str, key: str) -> str:
    """Return a line of a process's (or thread's) status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{key}:"))


def listed(cpus: str) -> set[int]:
    """Read a list such as 0-3,8."""
    parts = (part.partition("-") for part in cpus.split(","))
    return {cpu for first, _, last in parts for cpu in range(int(first), int(last or first) + 1)}


def sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def policy_of_a_child(binding: Binding) -> tuple[list[int], str]:
    """Return failure, mode and nodes as a child sees them, and what could not be bound."""
    command = [sys.executable, "-c", TELL_POLICY]
    started = start_bound(binding, lambda: subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True))
    return [int(word) for word in started.result.stdout.split()], started.trouble


def own_policy() -> list[int]:
    mode, nodes = ctypes.c_int(-1), (ctypes.c_ulong * 16)()
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.syscall(GET_MEMPOLICY, ctypes.byref(mode), nodes, ctypes.c_ulong(1024), None, ctypes.c_ulong(0))
    return [failed, mode.value, nodes[0]]


@pytest.mark.skipif(len(ALLOWED) < 2, reason="all of one CPU is no choice")
def test_a_process_is_bound_to_those_near_cpus_that_the_daemon_may_use() -> None:
    near = ALLOWED[-1]
    started = start_bound(Binding(cpus=(near, 5_000)), sleeper)
    try:
        assert listed(status(started.result.pid, "Cpus_allowed_list")) == {near}
    finally:
        started.result.communicate(b"\n")
    assert started.trouble == ""
    assert sorted(os.sched_getaffinity(0)) == ALLOWED
    assert "start-bound" not in [thread.name for thread in threading.enumerate()]


def test_a_process_prefers_the_memory_near_its_gpus_and_the_daemon_does_not() -> None:
    before = own_policy()
    assert policy_of_a_child(Binding(numa=(0,))) == ([0, PREFERRED, 1], "")
    assert policy_of_a_child(Binding()) == ([0, DEFAULT, 0], "")
    assert own_policy() == before


def test_nodes_that_the_kernel_does_not_have_are_left_to_the_system() -> None:
    found, trouble = policy_of_a_child(Binding(numa=(900,)))
    assert found == [0, DEFAULT, 0]
    assert trouble.startswith("memory: ")


def test_of_several_nodes_those_that_exist_are_preferred_together() -> None:
    (failed, mode, nodes), trouble = policy_of_a_child(Binding(numa=(0, 900)))
    assert (failed, nodes) == (0, 1 if mode != DEFAULT else 0)
    # Linux before 5.15 has no such policy: then nothing is set, and that is said
    assert (mode, trouble) == (5, "") or (mode == DEFAULT and trouble.startswith("memory: "))


def test_a_cpuset_without_any_of_the_near_cpus_leaves_the_process_where_it_may_run() -> None:
    started = start_bound(Binding(cpus=(5_000,)), sleeper)
    try:
        assert listed(status(started.result.pid, "Cpus_allowed_list")) == set(ALLOWED)
    finally:
        started.result.communicate(b"\n")
    assert started.trouble == "CPUs: none of those near its GPUs may be used"


def test_a_system_that_refuses_both_starts_the_process_unbound(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refused)
    monkeypatch.setattr(room, "_SET_MEMPOLICY", {})
    found, trouble = policy_of_a_child(Binding(cpus=tuple(ALLOWED), numa=(0,)))
    assert found == [0, DEFAULT, 0]
    assert trouble == f"CPUs: Operation not permitted; memory: not known how to on {platform.machine()}"


def test_what_cannot_be_started_bound_raises_what_it_would_raise_unbound() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        start_bound(Binding(cpus=tuple(ALLOWED), numa=(0,)), lambda: subprocess.Popen(["./no-such-program"]))


def test_without_a_further_thread_the_process_is_started_unbound(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    found, trouble = policy_of_a_child(Binding(numa=(0,)))
    assert found == [0, DEFAULT, 0]
    assert trouble == "CPUs and memory: can't start new thread"


async def load(tmp_path: Path, binding: Binding) -> tuple[str, list[str]]:
    """Load the scripted server; return the CPUs it may use, and what was said of its binding."""
    options = EngineOptions(
        name=ModelName("m01"), engine="command", command=(sys.executable, str(SCRIPTED), "--port", "{port}")
    )
    with structlog.testing.capture_logs() as lines:
        async with bench(tmp_path) as room:
            room.order(
                1, "m01", lambda port: plan(options, port=port, devices=("GPU-0",), environ=os.environ, binding=binding)
            )
            await room.fact(1, InstanceReady)
            cpus = status(room.pid(1), "Cpus_allowed_list")
    return cpus, [line["detail"] for line in lines if line["event"] == "not_bound"]


async def test_an_engine_is_loaded_near_its_gpus(tmp_path: Path) -> None:
    cpus, said = await load(tmp_path, Binding(cpus=(ALLOWED[0],), numa=(0,)))
    assert (listed(cpus), said) == ({ALLOWED[0]}, [])


async def test_an_engine_that_cannot_be_bound_is_loaded_all_the_same_and_one_line_says_so(tmp_path: Path) -> None:
    cpus, said = await load(tmp_path, Binding(cpus=(5_000,), numa=(900,)))
    assert listed(cpus) == set(ALLOWED)
    assert said == ["CPUs: none of those near its GPUs may be used; memory: Invalid argument"]
