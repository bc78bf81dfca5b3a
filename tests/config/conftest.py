"""Gives each test a directory with a program, weights, and a way to write and load a configuration there."""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from swapd.config import ConfigError, Loaded, load

DEVICES = "devices: {virtual: {count: 4, memory: 8GiB}}\n"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Make a directory with ./serve (executable), ./note (not) and models/m.gguf of 4 MB."""
    (tmp_path / "serve").write_text("#!/bin/sh\n")
    (tmp_path / "serve").chmod(0o755)
    (tmp_path / "note").write_text("no program\n")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.gguf").write_bytes(bytes(4_000_000))
    return tmp_path


@pytest.fixture
def write(directory: Path) -> Callable[[str], Path]:
    """Write swapd.yaml; devices are put on the first line unless the text has its own."""

    def write_file(text: str) -> Path:
        path = directory / "swapd.yaml"
        body = dedent(text)
        path.write_text(body if "devices:" in body else DEVICES + body)
        return path

    return write_file


@pytest.fixture
def understood(write: Callable[[str], Path]) -> Callable[[str], Loaded]:
    """Load a text that must be accepted."""
    return lambda text: load(write(text))


@pytest.fixture
def refused(write: Callable[[str], Path]) -> Callable[[str], list[str]]:
    """Load a text that must be refused; return ``LINE: sentence`` of each problem."""

    def load_file(text: str) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            load(write(text))
        return [f"{problem.line}: {problem.message}" for problem in caught.value.problems]

    return load_file
