"""How much host memory models may take: that of the machine, or of the control group if that allows less."""

from pathlib import Path

import pytest

from swapd.config.host import available_memory

GIB = 1 << 30
WHOLE = 100 * GIB
#: less a tenth
OF_THE_MACHINE = 90 * GIB


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    put(tmp_path, "proc/meminfo", f"MemTotal:       {WHOLE >> 10} kB\nMemFree:        1 kB\n")
    return tmp_path


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_without_control_groups_the_machine_counts_less_a_tenth(machine: Path) -> None:
    assert available_memory(machine) == OF_THE_MACHINE


def test_a_system_that_tells_nothing_has_no_account(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None


@pytest.mark.parametrize(("whole", "left"), [(16 * GIB, 14 * GIB), (3 * GIB, 3 * GIB // 2)])
def test_of_a_small_machine_two_gib_are_kept_back_but_never_more_than_half(
    tmp_path: Path, whole: int, left: int
) -> None:
    put(tmp_path, "proc/meminfo", f"MemTotal: {whole >> 10} kB\n")
    assert available_memory(tmp_path) == left


def test_the_smallest_limit_of_all_groups_around_the_daemon_counts(machine: Path) -> None:
    put(machine, "proc/self/cgroup", "0::/kubepods.slice/pod.slice/main\n")
    group = "sys/fs/cgroup/kubepods.slice"
    put(machine, f"{group}/memory.max", "max\n")
    put(machine, f"{group}/pod.slice/memory.max", f"{20 * GIB}\n")
    put(machine, f"{group}/pod.slice/main/memory.max", f"{50 * GIB}\n")
    assert available_memory(machine) == 18 * GIB


def test_in_a_container_its_own_group_is_the_outermost_one(machine: Path) -> None:
    put(machine, "proc/self/cgroup", "0::/\n")
    put(machine, "sys/fs/cgroup/memory.max", f"{20 * GIB}\n")
    assert available_memory(machine) == 18 * GIB


@pytest.mark.parametrize("path", ["", "docker/abc/"])
def test_control_groups_of_version_1_limit_too_also_where_their_path_leads_nowhere(machine: Path, path: str) -> None:
    put(machine, "proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/docker/abc\n0::/docker/abc\n")
    put(machine, f"sys/fs/cgroup/memory/{path}memory.limit_in_bytes", f"{20 * GIB}\n")
    assert available_memory(machine) == 18 * GIB


def test_no_limit_of_version_1_is_a_number_larger_than_any_machine(machine: Path) -> None:
    put(machine, "proc/self/cgroup", "4:memory:/\n")
    put(machine, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert available_memory(machine) == OF_THE_MACHINE


def test_the_machine_of_this_test_tells_its_memory() -> None:
    left = available_memory()
    assert left is not None
    assert left > 0
