"""The reference page and the JSON Schema: up to date, and true."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swapd.config import ConfigError, Loaded, compile_catalog, diff, document, load
from swapd.config.example import EXAMPLE
from swapd.config.model import Model
from swapd.config.schema import Settings

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("path", "made"), [(document.REFERENCE, document.reference), (document.JSON_SCHEMA, document.json_schema)]
)
def test_the_committed_file_is_what_the_schema_says(path: Path, made: Callable[[], str]) -> None:
    assert (ROOT / path).read_text() == made(), "run: python -m swapd.config.document"


def test_both_files_are_written_where_they_belong(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    document.main(tmp_path)
    assert sorted(path.name for path in (tmp_path / "docs").iterdir()) == ["configuration.md", "swapd.schema.json"]


def test_the_example_of_the_reference_can_be_used(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "python").symlink_to("serve")
    (directory / "models" / "m01.gguf").touch()
    monkeypatch.setenv("PATH", str(directory))
    path = directory / "swapd.yaml"
    path.write_text(EXAMPLE)
    loaded = load(path)
    assert loaded.warnings == ()
    assert list(compile_catalog(loaded.settings).models) == ["m01", "Qwen/Qwen3-8B"]
    assert EXAMPLE in document.reference()


def test_exactly_the_keys_that_are_read_at_the_start_are_said_to_need_a_restart() -> None:
    said, section = set(), ""
    for line in document.reference().splitlines():
        if line.startswith("## `"):
            section = line.split("`")[1]
        elif line.startswith("| `") and "Restart to change it." in line:
            said.add(f"{section}.{line.split('`')[1]}")
    assert said == {*diff._AT_START, "devices.virtual.count", "devices.virtual.memory"}


def _sections() -> dict[str, Any]:
    described: dict[str, Any] = json.loads(document.json_schema())
    return {name: section for name, section in described["$defs"].items() if "properties" in section}


def test_every_key_is_described_and_every_optional_one_has_its_default() -> None:
    for name, section in _sections().items():
        for key, described in section["properties"].items():
            assert "description" in described or "$ref" in described, f"{name}.{key}"
            assert ("default" in described) != (key in section.get("required", ())), f"{name}.{key}"


def test_editors_refuse_unknown_keys_as_the_daemon_does() -> None:
    assert [name for name, section in _sections().items() if section.get("additionalProperties") is not False] == []


def test_the_defaults_in_the_schema_read_back_as_the_defaults(understood: Callable[[str], Loaded]) -> None:
    described = json.loads(document.json_schema())
    plain = {
        name: {key: item["default"] for key, item in described["$defs"][kind]["properties"].items()}
        for name, kind in (
            ("http", "Http"),
            ("engines", "Engines"),
            ("devices", "Devices"),
            ("scheduling", "Scheduling"),
            ("defaults", "Defaults"),
        )
    }
    assert Settings.model_validate(plain) == Settings()
    assert understood("").settings.http == Settings.model_validate(plain).http


@pytest.mark.parametrize("key", sorted(Model.model_fields))
def test_every_key_of_a_model_stands_in_the_reference(key: str) -> None:
    section = document.reference().partition("## `models.<name>`\n")[2].partition("\n## ")[0]
    assert re.search(rf"^\| `{key}` \| \S", section, re.MULTILINE)


@pytest.mark.parametrize("text", ["15s", "1h30m", "500ms", "15", "1 h", "", "1m1"])
def test_editors_and_daemon_agree_on_durations(write: Callable[[str], Path], text: str) -> None:
    pattern = json.loads(document.json_schema())["$defs"]["Defaults"]["properties"]["max_wait"]["pattern"]
    try:
        load(write(f'defaults: {{max_wait: "{text}"}}'))
        accepted = True
    except ConfigError:
        accepted = False
    assert bool(re.search(pattern, text)) == accepted
