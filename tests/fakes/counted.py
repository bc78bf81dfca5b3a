"""Counts the rounds of something that goes on by itself, so that a test can wait for rounds instead of for time."""

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from tests.fakes.engine_bench import until

P = ParamSpec("P")
R = TypeVar("R")


class Counted(Generic[P, R]):
    """Stands in for a function, calls it, and counts the calls."""

    def __init__(self, function: Callable[P, R]) -> None:
        self.calls = 0
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        self.calls += 1
        return self._function(*args, **kwargs)

    async def more(self, rounds: int) -> None:
        """Wait for so many more calls."""
        enough = self.calls + rounds
        await until(lambda: self.calls >= enough)
