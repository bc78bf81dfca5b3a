"""Holds what is wrong with a configuration file: where, and one sentence that says what to do."""

from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing to correct (or, as a warning, to think about)."""

    path: Path
    #: counts from 1
    line: int
    #: one sentence, with the key in backticks
    message: str

    @override
    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class ConfigError(Exception):
    """The configuration cannot be used; ``problems`` holds everything that is wrong with it, in the file's order."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))
