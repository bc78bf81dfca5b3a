"""`swapd topology` without a daemon: a matrix in a file, or the GPUs of this machine."""

import json
from pathlib import Path
from typing import Any

import pynvml
import pytest

from swapd.gpus.fake import FakeLibrary
from swapd.gpus.fake_gpu import gpus_of
from swapd.gpus.fixture import parse_matrix
from swapd.gpus.nvml import Nvml
from tests.cli.command import invoke, node
from tests.fakes.source_tree import ROOT

MATRICES = sorted((ROOT / "tests" / "data" / "topologies").glob("*.txt"))
HGX = ROOT / "tests" / "data" / "topologies" / "03_hgx_h100_8gpu_nvswitch.txt"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    """Put an HGX into this machine."""
    library = FakeLibrary(gpus_of(parse_matrix(HGX.read_text())))
    monkeypatch.setattr("swapd.cli.offline.Nvml", lambda: Nvml(library))
    return library


def document(*arguments: str) -> dict[str, Any]:
    done = invoke("topology", "--json", *arguments)
    assert done.exit_code == 0, done.output
    read: dict[str, Any] = json.loads(done.stdout)
    return read


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda path: path.stem[:2])
def test_every_machine_is_shown_as_a_page_and_as_one_json_object(matrix: Path) -> None:
    parsed = parse_matrix(matrix.read_text())
    shown = document("--fixture", str(matrix))
    assert list(shown) == ["topology", "free", "models", "state"]
    gpus = shown["topology"]["gpus"]
    assert [gpu["numa"] for gpu in gpus] == list(parsed.numa)
    for one, (gpu, links) in enumerate(zip(gpus, parsed.agreed_links, strict=True)):
        peers = {other: int(count) for count, mask in gpu.get("peers", {}).items()
                 for other in range(len(gpus)) if int(mask, 0) >> other & 1}  # fmt: skip
        assert peers == {other: count for other, count in enumerate(links) if count and other != one}
    page = invoke("topology", "--fixture", str(matrix))
    assert page.exit_code == 0
    assert page.output.startswith(f"{len(gpus)} GPUs")


def test_a_file_that_is_no_matrix_is_refused_in_one_sentence(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("no GPU here\n")
    done = invoke("topology", "--fixture", str(other))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"Error: {other} is no topology matrix: there is no header line with GPU0 in it\n"
    done = invoke("topology", "--fixture", str(tmp_path / "nothing.txt"))
    assert (done.exit_code, "cannot be read: No such file or directory" in done.stderr) == (1, True)


def test_no_more_of_a_file_is_read_than_a_matrix_can_be_long(tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    text = HGX.read_text()
    long.write_text(text + " " * ((1 << 20) - len(text.encode())))
    assert invoke("topology", "--fixture", str(long)).exit_code == 0
    long.write_text(long.read_text() + " ")
    for endless in (str(long), "/dev/zero"):
        done = invoke("topology", "--fixture", endless)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr == f"Error: {endless} is no topology matrix: it has more than 1 MiB\n"


def test_without_a_daemon_the_gpus_of_this_machine_are_read_and_let_go(driver: FakeLibrary) -> None:
    driver.gpus[2].lost = True
    done = invoke("topology", env={"COLUMNS": "160"})
    assert done.exit_code == 0
    assert done.stderr == "no swapd answers: these are the GPUs as the driver tells them now\n"
    assert "driver 580.82.07" in done.stdout.splitlines()[0]
    assert [line.split()[-2] for line in done.stdout.splitlines() if line.startswith("  2  ")] == ["lost"]
    assert (driver.inits, driver.descriptors) == (0, ())
    assert document()["free"]["lost"] == "0x4"


def test_without_daemon_and_driver_both_are_named(driver: FakeLibrary) -> None:
    driver.faults.fail("Init", pynvml.NVMLError_LibraryNotFound)
    for arguments in (("topology",), ("topology", "--json")):
        done = invoke(*arguments)
        assert (done.exit_code, done.stdout) == (3, "")
        assert "there is no admin.sock in" in done.stderr
        assert "nor can this machine's GPUs be read: NVML answered LibraryNotFound" in done.stderr


def test_a_driver_whose_gpus_all_fail_is_let_go_again(driver: FakeLibrary) -> None:
    driver.faults.fail("DeviceGetHandleByIndex", pynvml.NVMLError_Unknown)
    assert invoke("topology").exit_code == 3
    assert driver.inits == 0


def test_a_daemon_that_is_named_is_not_replaced_by_this_machine(driver: FakeLibrary, tmp_path: Path) -> None:
    assert invoke("topology", "--admin", str(tmp_path / "admin.sock")).exit_code == 3
    assert driver.calls == {}


async def test_with_a_daemon_the_driver_is_left_alone(driver: FakeLibrary, tmp_path: Path) -> None:
    async with node(tmp_path / "admin.sock") as daemon:
        assert (await daemon.swapd("topology")).exit_code == 0
    assert driver.calls == {}
