"""Reads the repository's own files for the tests in tests/architecture; parses each module once."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
#: what belongs to the project; everything else in the working tree is generated or installed
PARTS = ("swapd", "tests", "docs", "benchmarks", ".ci", "README.md", "Makefile", "pyproject.toml")
TEXT = (".py", ".md", ".yaml", ".yml", ".toml", ".json", ".txt", "", ".sh", ".csv")


class Module(NamedTuple):
    """One parsed Python file."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Path from the repository's root."""
        return str(self.path.relative_to(ROOT))

    @property
    def lines(self) -> int:
        """Number of lines."""
        return len(self.text.splitlines())

    def where(self, node: ast.AST) -> str:
        """Say where a node stands."""
        return f"{self.name}:{getattr(node, 'lineno', 0)}"


@functools.cache
def modules(part: str = "swapd") -> tuple[Module, ...]:
    """Parse every module below a directory of the repository, sorted by path."""
    paths = sorted((ROOT / part).rglob("*.py"))
    return tuple(Module(path, text, ast.parse(text)) for path in paths for text in [path.read_text()])


def text_files() -> Iterator[tuple[str, str]]:
    """Yield path and content of every text file of the project."""
    for part in PARTS:
        top = ROOT / part
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts:
                yield str(path.relative_to(ROOT)), path.read_text(errors="replace")


def called(node: ast.AST) -> str:
    """Return the dotted name of what a call calls, or an empty string."""
    return dotted(node.func) if isinstance(node, ast.Call) else ""


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` for a chain of attributes; an inner expression becomes `?`."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"
