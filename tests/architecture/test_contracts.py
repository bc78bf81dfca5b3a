"""Runs the import contracts and compares the package with what a wheel would contain."""

import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from tests.fakes.source_tree import ROOT


def test_the_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wheel_contains_every_module_and_every_data_file_of_the_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        patterns = tomllib.load(file)["tool"]["setuptools"]["package-data"]["swapd"]
    package = ROOT / "swapd"
    files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    homeless = {str(path.parent) for path in files if not (path.parent / "__init__.py").exists()}
    assert homeless - {str(path.parent) for path in files if path.suffix != ".py"} == set(), "no package directory"
    data = [str(path.relative_to(package)) for path in files if path.suffix not in (".py", ".pyc")]
    assert [name for name in data if not any(fnmatch(name, pattern) for pattern in patterns)] == []
