"""`swapd check`: everything that is wrong with a file, or what was understood."""

import json
from pathlib import Path

import pytest

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
