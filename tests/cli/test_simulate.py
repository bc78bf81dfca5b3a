"""`swapd simulate`: figures of several rules side by side, from files an operator has or can record."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swapd.cli.simulate import simulate
from tests.cli.command import invoke

DATA = Path(__file__).parents[1] / "data"
HGX = DATA / "topologies" / "03_hgx_h100_8gpu_nvswitch.txt"
#: two models on one GPU, alternating: each request finds the other one there
PING_PONG = "".join(f"{100 * number},{'ab'[number % 2]},1\n" for number in range(10))
YAML = """
devices: {virtual: {count: 1, memory: 8GiB}}
scheduling: {policy: lru}
models:
  a: {engine: command, command: [serve, "{port}"], memory: 8GiB, load_estimate: 10s}
  b: {engine: command, command: [serve, "{port}"], memory: 8GiB, load_estimate: 20s, max_wait: 15s}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "trace.csv").write_text(f"t_s,model,service_s\n{PING_PONG}")
    (tmp_path / "models.csv").write_text("model,gpus,load_s\na,1,10\nb,1,20\n")
    return ("simulate", "--trace", str(tmp_path / "trace.csv"), "--models", str(tmp_path / "models.csv"))


def document(*arguments: str) -> dict[str, Any]:
    done = invoke(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def rows(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document(*arguments)["policies"]
    return found


def refusal(*arguments: str, code: int = 1) -> str:
    done = invoke(*arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    return done.stderr


def test_each_policy_is_a_row_with_its_figures(files: tuple[str, ...]) -> None:
    found = rows(*files, "--gpus", "1")
    assert [row["policy"] for row in found] == ["gdsf", "lru", "clairvoyant"]
    row = found[0]
    # a is loaded into free room once; the others evict (3 s) and load for 20 s (b) or 10 s (a)
    assert (row["loads"], row["evictions"], row["requests"], row["refused"]) == (10, 9, 10, 0)
    assert row["wait_mean_s"] == pytest.approx((10 + 4 * 13 + 5 * 23) / 10)
    assert (row["wait_p50_s"], row["wait_max_s"], row["delayed_share"]) == (13, 23, 1)
    assert row["loads_per_h"] == pytest.approx(10 / (924 / 3600), rel=1e-3)
    assert [model["model"] for model in row["models"]] == ["a", "b"]
    assert row["models"][1]["wait_p99_s"] == 23


def test_the_wait_for_a_model_is_told_from_the_wait_for_a_slot_of_its_engine(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    """Twenty at once, of which an engine serves sixteen: four wait for another ten seconds."""
    (tmp_path / "trace.csv").write_text("t_s,model,service_s\n" + "0,a,10\n" * 20 + "100,b,1\n")
    (row,) = rows(*files, "--policy", "gdsf", "--seeds", "1")
    a = row["models"][0]
    assert a["wait_max_s"] == pytest.approx(a["wait_ready_max_s"] + 10)
    (row,) = rows(*files, "--policy", "gdsf")
    assert (row["wait_max_s"], row["wait_ready_max_s"]) == (20, 20)
    assert [(model["wait_max_s"], model["wait_ready_max_s"]) for model in row["models"]] == [(20, 10), (20, 20)]


def test_the_yardstick_keeps_what_is_needed_next(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(
        "t_s,model,service_s\n" + "".join(f"{100 * n},{m},1\n" for n, m in enumerate("abcabc"))
    )
    (tmp_path / "models.csv").write_text("model,gpus,load_s\na,1,10\nb,1,10\nc,1,10\n")
    files = ("--trace", str(tmp_path / "trace.csv"), "--models", str(tmp_path / "models.csv"), "--gpus", "2")
    loads = {row["policy"]: row["loads"] for row in rows("simulate", *files, "--policy", "lru,clairvoyant")}
    assert loads == {"lru": 6, "clairvoyant": 4}


def test_protection_times_make_rows_of_their_own(files: tuple[str, ...]) -> None:
    found = rows(*files, "--gpus", "1", "--policy", "lru", "--protect", "0,auto", "--protect", "1h")
    assert [row["protect_s"] for row in found] == [0, None, 3600]
    assert found[2]["wait_max_s"] == 38  # 15 s of patience with a protected model, then 23 s
    assert "lru, protect 3600 s" in invoke(*files, "--policy", "lru", "--protect", "0,1h").stdout


def test_a_pinned_model_stays_and_the_one_without_room_is_named(files: tuple[str, ...]) -> None:
    (row,) = rows(*files, "--gpus", "2", "--policy", "gdsf", "--pin", "a")
    assert {model["model"]: model["loads_per_h"] > 0 for model in row["models"] if model["pinned"]} == {"a": True}
    assert row["evictions"] == 0
    assert "b needs 1 GPU" in refusal(*files, "--gpus", "1", "--pin", "a")


def test_waits_over_the_limit_are_shared_out_and_refusals_count(files: tuple[str, ...]) -> None:
    (row,) = rows(*files, "--gpus", "1", "--policy", "gdsf", "--limit", "20s")
    assert (row["over_limit_share"], row["refused"]) == (0.5, 0)
    (row,) = rows(*files, "--gpus", "1", "--policy", "gdsf", "--limit", "20s", "--max-wait", "15s")
    assert (row["over_limit_share"], row["refused"]) == (0.5, 5)
    assert "refused" in invoke(*files, "--gpus", "1", "--max-wait", "15s").stdout


def test_seeds_vary_the_loads_and_the_same_seed_repeats_itself(files: tuple[str, ...]) -> None:
    once, again = (rows(*files, "--gpus", "1", "--seeds", "1,2", "--policy", "lru") for _ in range(2))
    assert once == again
    (row,) = once
    first, second = row["runs"]
    assert (first["seed"], second["seed"]) == (1, 2)
    assert first["wait_mean_s"] != second["wait_mean_s"]
    assert row["wait_mean_s"] == pytest.approx((first["wait_mean_s"] + second["wait_mean_s"]) / 2, abs=1e-5)
    assert row["wait_max_s"] == max(first["wait_max_s"], second["wait_max_s"]) <= 3 + 20 * 1.15


def test_what_chance_does_not_touch_stays_a_whole_number(files: tuple[str, ...]) -> None:
    (row,) = rows(*files, "--gpus", "1", "--seeds", "1,2", "--policy", "lru")
    model = row["models"][0]
    assert [repr(model["gpus"]), repr(row["requests"]), repr(row["refused"])] == ["1", "10", "0"]


def test_files_with_a_byte_order_mark_are_read(files: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("trace.csv", "models.csv"):
        (tmp_path / name).write_text((tmp_path / name).read_text(), encoding="utf-8-sig")
    assert document(*files)["requests"] == 10


def test_a_node_may_be_given_by_its_topology_matrix(files: tuple[str, ...]) -> None:
    found = document(*files, "--topology", str(HGX), "--policy", "gdsf")
    assert (found["gpus"], found["policies"][0]["loads"]) == (8, 2)


def test_a_configuration_gives_models_rules_promises_and_devices(files: tuple[str, ...], tmp_path: Path) -> None:
    config = tmp_path / "swapd.yaml"
    config.write_text(YAML)
    found = document(*files[:4], str(config), "--policy", "lru")
    assert found["gpus"] == 1
    (row,) = found["policies"]
    assert row["refused"] == 5  # b's loads take longer than it promises
    assert document(*files[:4], str(config), "--policy", "lru", "--max-wait", "never")["policies"][0]["refused"] == 0
    assert "a needs 1 GPU with 8 GiB" in refusal(*files[:4], str(config), "--gpu-memory", "1GiB", "--gpus", "1")


def test_rounding_up_gives_gpus_that_nobody_needs(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("t_s,model,service_s\n0,three,100\n1,five,100\n")
    (tmp_path / "models.csv").write_text("model,gpus,load_s\nthree,3,10\nfive,5,10\n")
    files = ("simulate", "--trace", str(tmp_path / "trace.csv"), "--models", str(tmp_path / "models.csv"))
    (exact,), (rounded,) = (rows(*files, "--policy", "gdsf", *more) for more in ((), ("--round-gpus",)))
    assert (exact["unneeded_gpus"], exact["evictions"]) == (0, 0)
    assert rounded["evictions"] == 1
    assert 1 < rounded["unneeded_gpus"] < 3
    assert rounded["wasted_gpus"] == pytest.approx(rounded["empty_gpus"] + rounded["unneeded_gpus"], abs=1e-5)


def test_the_table_names_policies_and_the_dearest_models(files: tuple[str, ...]) -> None:
    shown = invoke(*files, "--gpus", "1").stdout
    assert "10 requests in 15m00s for 2 models on 1 GPU\n" in shown
    assert all(word in shown for word in ("gdsf", "lru", "clairvoyant", "> 60 s", "caused GPU-s"))


def test_advice_pins_what_is_worth_it_and_says_what_comes_of_it(tmp_path: Path) -> None:
    """Two GPUs; a is asked for all the time by itself, b and c take turns and can do with the other GPU."""
    lines = [f"{100 * n},{'a'},1" for n in range(1, 60)] + [f"{30 + 100 * n},{'bc'[n % 2]},1" for n in range(1, 60)]
    lines += [f"{60 + 100 * n},{'de'[n % 2]},1" for n in range(1, 60)]
    (tmp_path / "trace.csv").write_text("t_s,model,service_s\n" + "\n".join(lines))
    (tmp_path / "models.csv").write_text("model,gpus,load_s\na,1,19\n" + "".join(f"{m},1,4\n" for m in "bcde"))
    files = ("--trace", str(tmp_path / "trace.csv"), "--models", str(tmp_path / "models.csv"), "--gpus", "2")
    done = invoke("simulate", *files, "--policy", "lru", "--limit", "15s", "--advise", "--json")
    advice = json.loads(done.stdout)["advice"]
    assert advice["met"]
    assert [(step["action"], step["model"]) for step in advice["steps"]] == [("pin", "a")]
    assert advice["before"]["over_share"] > 0.3
    assert advice["after"]["over_share"] < 0.01
    assert advice["sentences"][1].startswith("Pin a (1 GPU): above 15 s ")
    assert advice["sentences"][2].startswith("The other 4 models can be swapped")


def test_a_plot_is_drawn_in_the_format_of_its_name(files: tuple[str, ...], tmp_path: Path) -> None:
    for name, begin in (("a.svg", b"<?xml"), ("a.png", b"\x89PNG")):
        assert invoke(*files, "--gpus", "1", "--plot", str(tmp_path / name)).exit_code == 0
        assert (tmp_path / name).read_bytes().startswith(begin)
    drawn = (tmp_path / "a.svg").read_text()
    assert [f"<!-- {model} -->" in drawn for model in ("a", "b", "others")] == [True, True, False]
    assert ".svg or .png" in refusal(*files, "--plot", "a.pdf", code=2)


def test_without_the_library_a_plot_says_what_to_install(
    files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'swapd[plot]'" in refusal(*files, "--plot", str(tmp_path / "a.svg"))


def test_nothing_but_a_plot_needs_the_library(files: tuple[str, ...]) -> None:
    script = f"import sys; from swapd.cli.root import swapd; swapd({list(files)!r}, standalone_mode=False)"
    check = "; assert not [name for name in sys.modules if name.startswith('matplotlib')]"
    subprocess.run([sys.executable, "-c", script + check], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        (
            "trace.csv",
            "t,model,service_s\n",
            "the first line must name the columns t_s,model,service_s; t_s is missing",
        ),
        ("trace.csv", "t_s,model,service_s\n1,a,2\n1,a\n", "line 3: service_s is missing"),
        ("trace.csv", "t_s,model,service_s\n1,a,-2\n", "line 2: service_s is a number from 0, not '-2'"),
        ("trace.csv", "t_s,model,service_s\nnan,a,2\n", "line 2: t_s is a number from 0, not 'nan'"),
        ("trace.csv", "t_s,model,service_s\n1790000000,a,2\n", "from 0 to 1,000,000,000, counted from the start, not"),
        ("trace.csv", "t_s,model,service_s\n", "it has no requests"),
        ("trace.csv", "t_s,model,service_s\n1,x,2\n2,y,2\n", "models.csv lists none of the models that"),
        ("models.csv", "model,gpus,load_s\na,1.5,2\n", "line 2: gpus is a whole number from 1 to 64, not '1.5'"),
        ("models.csv", "model,gpus,load_s\na,-1,2\n", "line 2: gpus is a whole number from 1 to 64, not '-1'"),
        ("models.csv", "model,gpus,load_s\na,1,1e9\n", "line 2: load_s is a number from 0 to 86,400, not '1e9'"),
        ("models.csv", "model,gpus,load_s\na,1,2\na,1,2\n", "line 3: a is listed twice"),
        ("models.csv", "model,gpus,load_s\n", "it lists no model"),
        ("models.csv", "model,gpus,load_s\na,9,2\nb,1,1\n", "a needs 9 GPUs"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_line(
    files: tuple[str, ...], tmp_path: Path, name: str, text: str, sentence: str
) -> None:
    (tmp_path / name).write_text(text)
    assert sentence in refusal(*files)


def test_models_that_are_gone_since_are_told_and_their_requests_may_be_left_out(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "trace.csv").write_text(f"t_s,model,service_s\n{PING_PONG}5,gone,1\n6,gone,1\n7,left,1\n")
    told = refusal(*files)
    assert "models.csv does not list gone, left, for which" in told
    assert "trace.csv has 3 requests of 13. Add a line for each such model, or" in told
    found = document(*files, "--drop-unknown", "--policy", "gdsf")
    assert (found["requests"], found["dropped_requests"]) == (10, 3)
    assert "10 requests in 15m00s for 2 models on 8 GPUs; 3 left out" in invoke(*files, "--drop-unknown").stdout
    assert document(*files[:2], *files[2:], "--drop-unknown", "--policy", "lru")["policies"][0]["refused"] == 0


def test_missing_files_and_wrong_words_are_told(files: tuple[str, ...], tmp_path: Path) -> None:
    assert "cannot be read" in refusal(*files[:2], str(tmp_path / "none"), *files[3:])
    assert "cannot be read" in refusal(*files[:4], str(tmp_path / "none"))
    assert "cannot be read" in refusal(*files, "--topology", str(tmp_path / "none"))
    assert "is no topology matrix" in refusal(*files, "--topology", files[2])
    assert "none of gdsf" in refusal(*files, "--policy", "fifo", code=2)
    assert "does not list x" in refusal(*files, "--pin", "x", code=2)
    assert "none of gdsf" in refusal(*files, "--policy", ",", code=2)
    assert "there is no directory" in refusal(*files, "--plot", str(tmp_path / "none" / "a.svg"), code=2)
    (tmp_path / "taken.svg").mkdir()
    assert "taken.svg cannot be written: Is a directory" in refusal(*files, "--plot", str(tmp_path / "taken.svg"))
    assert "whole numbers" in refusal(*files, "--seeds", "a", code=2)
    assert "unit" in refusal(*files, "--limit", "60", code=2)
    assert "write a duration" in refusal(*files, "--limit", "never", code=2)
    assert "write a duration" in refusal(*files, "--unload", "never", code=2)
    assert "exclude each other" in refusal(*files, "--gpus", "2", "--topology", str(HGX), code=2)
    (tmp_path / "bad.yaml").write_text("models: 7\n")
    assert "bad.yaml" in refusal(*files[:4], str(tmp_path / "bad.yaml"))


def test_the_commands_of_the_page_are_ones_that_the_command_line_takes() -> None:
    root = Path(__file__).parents[2]
    shown = re.findall(r"^\$ swapd simulate ([^|\n]*)", (root / "docs" / "simulate.md").read_text(), re.MULTILINE)
    assert len(shown) > 5
    for arguments in map(shlex.split, shown):
        context = simulate.make_context("simulate", list(arguments))
        files = [value for value in context.params.values() if isinstance(value, Path)]
        assert [file for file in files if not (root / file).exists()] == []
