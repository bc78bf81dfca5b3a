"""Holds the pages to the code: links, commands, words."""

import enum
import re
import shutil
import sys
from pathlib import Path

import pytest

from swapd import config
from swapd.core import catalog, reasons, tiers, topology
from tests.fakes.source_tree import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
WORDS = [
    reasons.WaitingFor,
    reasons.Stage,
    reasons.State,
    reasons.LoadFailure,
    reasons.FetchFailure,
    reasons.UnloadCause,
    reasons.Verdict,
    reasons.PlacementQuality,
    reasons.ReleaseEvidence,
    reasons.PinnedBy,
    reasons.ThrashPin,
    reasons.Move,
    tiers.Tier,
    catalog.OnThrash,
    catalog.Source,
    topology.GpuHealth,
    topology.DriverState,
    topology.FabricState,
    topology.FabricHealth,
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page: object) -> None:
    path = ROOT / str(page)
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_readme_names_the_commands_of_the_makefile_and_no_others() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    named = set(re.findall(r"`make ([a-z]+)`", (ROOT / "README.md").read_text()))
    assert named == set(phony[1].split()) - {"promtool"}


def test_ci_runs_the_commands_of_the_readme() -> None:
    assert {"make test", "make check"} <= set((ROOT / ".ci" / "run").read_text().splitlines())


def test_the_http_page_lists_every_reason_to_refuse_a_request() -> None:
    text = (ROOT / "docs" / "http.md").read_text()
    assert [reason.value for reason in reasons.Rejection if f"`{reason.value}`" not in text] == []


@pytest.mark.parametrize("words", WORDS, ids=lambda words: str(words.__name__))
def test_the_glossary_explains_every_word_that_logs_and_metrics_use(words: type[enum.Enum]) -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    assert [word.value for word in words if f"`{word.value}`" not in text] == []


def test_the_configuration_in_the_readme_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = re.search(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert text is not None
    (tmp_path / "models").mkdir()
    for name in ("assistant.gguf", "coder.gguf", "scorer.bin"):
        (tmp_path / "models" / name).write_bytes(b"weights")
    for program in ("llama-server", "python"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "swapd.yaml").write_text(text[1])
    loaded = config.load(tmp_path / "swapd.yaml")
    assert list(loaded.settings.models) == ["assistant", "coder", "scorer"]


def test_the_demos_configuration_is_valid_once_its_models_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo, weights = tmp_path / "docs" / "demo", tmp_path / ".demo" / "models"
    shutil.copytree(ROOT / "docs" / "demo", demo)
    weights.mkdir(parents=True)
    for name in ["smollm2", *(f"m{number:02}" for number in range(1, 13))]:
        (weights / f"{name}.gguf").write_bytes(b"weights")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    loaded = config.load(demo / "swapd.yaml")
    assert (len(loaded.settings.models), loaded.warnings) == (13, ())
