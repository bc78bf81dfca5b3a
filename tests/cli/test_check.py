"""`swapd check`: everything that is wrong with a file, or what was understood, and where the models would go."""

import json
import threading
from pathlib import Path
from typing import Any

import pynvml
import pytest

from swapd.cli import placing
from swapd.config.load import load
from swapd.gpus.fake import FakeLibrary
from swapd.gpus.fake_gpu import Product, gpus_of
from swapd.gpus.fixture import parse_matrix
from swapd.gpus.nvml import Nvml
from tests.cli.command import invoke

GOOD = """\
devices: {virtual: {count: 8, memory: 80GiB}}
models:
  "org/[bold]m01":
    command: [python3, serve.py, --port, "{port}"]
    memory: 1GiB
    aliases: [tiny, small]
  m02:
    command: [python3, serve.py, --port, "{port}"]
    gpus: 2
    memory: 60GiB
    exclusive: false
    pin: true
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "swapd.yaml"
    path.write_text(GOOD)
    return path


def test_a_good_file_shows_what_was_understood(good: Path) -> None:
    done = invoke("check", str(good))
    assert (done.exit_code, done.stderr) == (0, "")
    rows = [line.split() for line in done.stdout.splitlines()]
    assert f"{good} is valid".split() in rows
    assert ["devices.virtual.count", "8"] in rows
    assert ["devices.virtual.memory", "80GiB"] in rows
    (first,) = [row for row in rows if row[:1] == ["org/[bold]m01"]]
    assert first[1:8] == ["tiny,", "small", "command", "1", "×", "1", "GiB"]
    (second,) = [row for row in rows if row[:1] == ["m02"]]
    assert second[1:8] == ["–", "command", "2", "×", "60", "GiB,", "shared"]
    assert "yes" in second


def test_a_warning_goes_to_standard_error_and_is_no_failure(good: Path) -> None:
    good.write_text(GOOD.replace("count: 8", "count: 3"))
    done = invoke("check", str(good))
    assert done.exit_code == 0
    assert done.stderr.startswith(f"warning: {good}:")


def test_every_problem_is_one_line_with_file_and_line(good: Path) -> None:
    good.write_text(GOOD.replace("gpus: 2", "gpus: 0").replace("memory: 1GiB", "memory: 1"))
    good.write_text(good.read_text() + "nonsense: 1\n")
    done = invoke("check", str(good))
    assert (done.exit_code, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert len(lines) >= 2
    assert [line for line in lines if not line.startswith(f"{good}:")] == []
    assert any(line.startswith(f"{good}:13: ") and "nonsense" in line for line in lines)


def test_a_missing_file_is_a_problem_like_any_other(tmp_path: Path) -> None:
    done = invoke("check", str(tmp_path / "nope.yaml"))
    assert done.exit_code == 1
    assert "make the configuration file readable" in done.stderr


def test_json_tells_the_same_to_programs(good: Path) -> None:
    done = invoke("check", str(good), "--json")
    shown = json.loads(done.stdout)
    assert (done.exit_code, shown["ok"], shown["problems"], shown["warnings"]) == (0, True, [], [])
    assert shown["settings"]["models"]["m02"]["memory"] == "60GiB"
    good.write_text("nonsense: 1\n")
    done = invoke("check", str(good), "--json")
    shown = json.loads(done.stdout)
    assert (done.exit_code, shown["ok"], shown["settings"]) == (1, False, None)
    assert (shown["problems"][0]["path"], shown["problems"][0]["line"]) == (str(good), 1)


# -- where the models would go -----------------------------------------------------------------------------------------

ON_GPUS = """\
models:
  small:
    command: [python3, serve.py, --port, "{port}"]
    memory: 10GiB
  large:
    command: [python3, serve.py, --port, "{port}"]
    gpus: 4
    memory: 70GiB
  huge:
    command: [python3, serve.py, --port, "{port}"]
    gpus: 16
    memory: 70GiB
"""
MATRIX = str(Path(__file__).parents[1] / "data" / "topologies" / "03_hgx_h100_8gpu_nvswitch.txt")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "swapd.yaml"
    path.write_text(ON_GPUS)
    return path


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    """Give this machine eight H100 behind the fake of NVML."""
    library = FakeLibrary(gpus_of(parse_matrix(Path(MATRIX).read_text()), Product("NVIDIA H100 80GB HBM3")))
    monkeypatch.setattr(placing, "Nvml", lambda: Nvml(library))
    return library


def rows(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def test_on_a_node_with_gpus_each_model_is_shown_its_place(file: Path, driver: FakeLibrary) -> None:
    done = invoke("check", str(file))
    assert done.exit_code == 0
    assert "Placement on 8 × NVIDIA H100 80GB HBM3, 79.5 GiB" in done.stdout
    assert ["large", "GPUs", "0,", "1,", "2,", "3"] in [row[:6] for row in rows(done.stdout)]
    assert ["huge", "–", "no", "place,"] in [row[:4] for row in rows(done.stdout)]
    assert (driver.calls["Init"], driver.inits) == (1, 0)


def test_a_model_without_a_place_is_a_warning_at_its_line_with_the_reason(file: Path, driver: FakeLibrary) -> None:
    done = invoke("check", str(file))
    (warning,) = done.stderr.splitlines()
    assert warning.startswith(f"warning: {file}:9: `models.huge`: huge needs 16 GPUs with 70 GiB each")


def test_pins_on_more_than_a_quarter_of_the_gpus_are_warned_about_once_these_are_known(
    file: Path, driver: FakeLibrary
) -> None:
    file.write_text(ON_GPUS.replace("gpus: 4", "gpus: 4\n    pin: true").replace("gpus: 16", "gpus: 2"))
    (warning,) = invoke("check", str(file)).stderr.splitlines()
    share = "consider fewer pins: large takes 4 of 8 GPUs"
    assert warning.startswith(f"warning: {file}:8: `models.large.pin`: {share}")


def test_what_is_wrong_with_the_gpus_is_told(file: Path, driver: FakeLibrary) -> None:
    driver.gpus[3].lost = True
    done = invoke("check", str(file))
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("GPU 3")]
    assert json.loads(invoke("check", str(file), "--json").stdout)["placement"]["complaints"][0].startswith(line[:40])
    assert ["large", "GPUs", "4,", "5,", "6,", "7"] in [row[:6] for row in rows(done.stdout)]


def test_a_model_that_asks_for_other_gpus_than_there_are_is_told_which_these_are(
    file: Path, driver: FakeLibrary
) -> None:
    file.write_text(ON_GPUS.replace("gpus: 4", 'gpu_name: "*A100*"').replace("gpus: 16", "min_compute_capability: 10"))
    first, second = invoke("check", str(file)).stderr.splitlines()
    assert "`models.large`: large needs 1 GPU" in first
    assert first.endswith("no GPU here matches '*A100*' (there are: NVIDIA H100 80GB HBM3)")
    assert second.endswith("no GPU here has compute capability 10.0 or more (there are: 9.0)")


def test_json_tells_the_placement_to_programs(file: Path, driver: FakeLibrary) -> None:
    shown = json.loads(invoke("check", str(file), "--json").stdout)
    placement: dict[str, Any] = shown["placement"]
    assert (placement["checked"], placement["unchecked"], len(placement["gpus"])) == (True, "", 8)
    assert placement["gpus"][0]["uuid"] == driver.gpus[0].uuid
    places = {model["name"]: model for model in placement["models"]}
    assert places["large"]["gpus"] == [0, 1, 2, 3]
    assert (places["huge"]["gpus"], "needs 16 GPUs" in places["huge"]["why"]) == ([], True)
    assert [warning["line"] for warning in shown["warnings"]] == [9]


def test_where_there_is_no_driver_one_sentence_says_that_placement_was_not_checked(
    file: Path, driver: FakeLibrary
) -> None:
    driver.faults.fail("Init", lambda: pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    done = invoke("check", str(file))
    assert (done.exit_code, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    assert "Placement was not checked: no GPU can be seen here (NVML answered LibraryNotFound (12) to Init)" in said
    assert json.loads(invoke("check", str(file), "--json").stdout)["placement"]["checked"] is False


def test_a_driver_that_sees_no_gpu_is_no_place_either(file: Path, driver: FakeLibrary) -> None:
    driver.gpus.clear()
    assert "Placement was not checked: no GPU can be seen here" in invoke("check", str(file)).stdout
    assert driver.inits == 0


def test_a_driver_that_does_not_answer_holds_nothing_up(file: Path, driver: FakeLibrary) -> None:
    answer = threading.Event()
    driver.faults.block("Init", answer.wait)
    try:
        placement = placing.here(load(file).settings, deadline_s=0.01)
    finally:
        answer.set()
    assert placement.topology is None
    assert placement.unchecked.startswith("the GPU driver has not answered within 0.01 s; ")


def test_a_file_can_be_checked_for_another_machine_by_its_topology_matrix(file: Path) -> None:
    file.write_text(ON_GPUS.replace("python3", "./not-here").replace("10GiB", '10GiB\n    gpu_name: "*H200*"'))
    done = invoke("check", str(file), "--fixture", MATRIX, "--gpu-memory", "79GiB")
    assert done.exit_code == 0
    assert "Placement on 8 × GPU of a topology matrix, 79 GiB" in done.stdout
    assert ["large", "GPUs", "0,", "1,", "2,", "3"] in [row[:6] for row in rows(done.stdout)]
    assert "gpu_name and min_compute_capability were not checked" in done.stdout
    small = invoke("check", str(file), "--fixture", MATRIX, "--gpu-memory", "24GB")
    assert f"{file}:6: `models.large`: large needs 4 GPUs with 70 GiB each" in small.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--fixture", MATRIX), "--fixture and --gpu-memory go together"),
        (("--gpu-memory", "80GB"), "--fixture and --gpu-memory go together"),
        (("--fixture", MATRIX, "--gpu-memory", "much"), "write a size such as 64MiB"),
        (("--fixture", "/nonexistent", "--gpu-memory", "80GB"), "/nonexistent cannot be read"),
        (("--fixture", __file__, "--gpu-memory", "80GB"), "is no topology matrix"),
    ],
)
def test_a_matrix_that_cannot_be_used_is_wrong_usage(file: Path, arguments: tuple[str, ...], said: str) -> None:
    done = invoke("check", str(file), *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())


def test_a_matrix_says_nothing_of_virtual_devices(good: Path) -> None:
    done = invoke("check", str(good), "--fixture", MATRIX, "--gpu-memory", "80GB")
    assert (done.exit_code, "the devices of this file are virtual" in done.stderr) == (2, True)
    assert "Placement" not in invoke("check", str(good)).stdout
    assert json.loads(invoke("check", str(good), "--json").stdout)["placement"] is None
