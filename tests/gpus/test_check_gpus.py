"""The program for a machine with GPUs, tried on the fake of NVML and on a scripted `nvidia-smi`."""

import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from docs.hardware import check_gpus
from docs.hardware.check_gpus import Machine, record
from swapd.gpus.fake import FakeLibrary
from swapd.gpus.fake_gpu import FakeGpu, FakeProcess, gpus_of, nvml_bdf, take_down
from swapd.gpus.fake_sysfs import write_sysfs
from swapd.gpus.fixture import parse_matrix
from tests.gpus.nodes import H100, fixture

MIB = 1 << 20


def scripted_smi(path: Path, gpus: list[FakeGpu], matrix: str) -> str:
    """Write a program that answers as the vendor's tool does on this machine."""
    rows = "\n".join(
        f"{index}, {gpu.uuid}, {gpu.product.name}, {nvml_bdf(gpu.bdf)}, {gpu.product.total_bytes // MIB}, "
        f"{gpu.product.reserved_bytes // MIB}, 580.82.07"
        for index, gpu in enumerate(gpus)
    )
    (path / "rows").write_text(rows)
    (path / "matrix").write_text(matrix)
    program = path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\ncase "$1" in topo) cat {path}/matrix;; *) cat {path}/rows;; esac\n')
    program.chmod(0o755)
    return str(program)


def machine(path: Path, name: str, **changes: Any) -> tuple[Machine, list[FakeGpu]]:
    """Return a machine of a fixture on which everything is in order."""
    text = fixture(name)
    gpus = gpus_of(parse_matrix(text), H100)
    write_sysfs(path, gpus)

    @contextlib.asynccontextmanager
    async def hold(uuid: str, size: int) -> AsyncIterator[int]:
        gpu = next(gpu for gpu in gpus if gpu.uuid == uuid)
        gpu.used_bytes, gpu.compute = size, [FakeProcess(4711, size)]
        yield 4711
        gpu.used_bytes, gpu.compute = 0, []

    fields = {
        "smi": scripted_smi(path, gpus, text),
        "root": path,
        "library": FakeLibrary(gpus),
        "hold": hold,
    }
    return Machine(**(fields | changes)), gpus


@pytest.fixture(autouse=True)
def _host_pids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_gpus, "sees_host_pids", lambda: True)


@pytest.mark.parametrize("name", ["03", "05", "13"])
def test_a_machine_in_order_passes_every_check(tmp_path: Path, name: str) -> None:
    report = record(machine(tmp_path, name)[0])
    text = report.text()
    assert "FAILED" not in text
    assert report.passed
    for what in ("the same NVLinks", "memory taken by a process is seen", "its memory comes back", "taken back"):
        assert f"passed: {what}" in text
    assert "left out" not in text
    assert "| nvmlDeviceGetMemoryInfo | ok |" in text


def failed(report: Any) -> list[str]:
    """Return the checks that failed."""
    return [line.removeprefix("* **FAILED**: ").partition(" (")[0] for line in report.lines if "FAILED" in line]


def test_what_differs_from_the_vendors_tool_is_named(tmp_path: Path) -> None:
    checked, gpus = machine(tmp_path, "03")
    take_down(gpus[5], 2)
    rows = tmp_path / "rows"
    rows.write_text(rows.read_text().replace(H100.name, "Another GPU", 1).replace("81920, 512", "81920, 600", 1))
    report = record(checked)
    assert failed(report) == ["GPU 0: name", "GPU 0: memory", "the same NVLinks"]
    assert not report.passed


def test_memory_that_does_not_show_is_a_failure(tmp_path: Path) -> None:
    @contextlib.asynccontextmanager
    async def hold_nothing(_uuid: str, _size: int) -> AsyncIterator[int]:
        yield 4711

    report = record(machine(tmp_path, "13", hold=hold_nothing)[0])
    assert failed(report) == ["memory taken by a process is seen", "the process is in the driver's list"]


def test_a_machine_without_a_driver_gets_a_record_too(tmp_path: Path) -> None:
    checked, _ = machine(tmp_path, "13")
    checked.library.faults.absent()
    report = record(checked)
    assert failed(report) == ["NVML can be asked"]
    assert "| nvmlInit | LibraryNotFound |" in report.text()


def test_a_missing_tool_ends_the_checks_and_keeps_the_record(tmp_path: Path) -> None:
    checked, _ = machine(tmp_path, "13", smi=str(tmp_path / "absent"))
    report = record(checked)
    assert failed(report) == ["the checks came to their end"]
    assert checked.library.inits == 0


def test_the_holder_says_in_one_sentence_that_there_is_no_cuda() -> None:
    holder = Path(check_gpus.__file__).with_name("hold_memory.py")
    ended = subprocess.run([sys.executable, holder, "1"], capture_output=True, text=True, input="", check=False)
    assert (ended.returncode, ended.stderr, ended.stdout.count("\n")) == (1, "", 1)
    assert ended.stdout.startswith("libcuda.so.1")
