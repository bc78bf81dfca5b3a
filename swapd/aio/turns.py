"""Runs long work on the loop's thread without holding up the loop: in small steps, between which it turns.

A thread would be no way out: it holds the interpreter for milliseconds at a time, and every event of the loop waits.
"""

import asyncio
import time
from collections.abc import Generator
from typing import Final, TypeVar

T = TypeVar("T")

_AT_ONCE_S: Final = 0.0003


async def in_turns(steps: Generator[None, None, T]) -> T:
    """Take the steps, as many at a time as hold up nobody; return what they return."""
    clock = time.perf_counter
    try:
        end = clock() + _AT_ONCE_S
        while True:
            next(steps)
            if clock() >= end:
                await asyncio.sleep(0)
                end = clock() + _AT_ONCE_S
    except StopIteration as done:
        result: T = done.value
        return result


def at_once(steps: Generator[None, None, T]) -> T:
    """Take all steps, where nobody has to be considered; return what they return."""
    try:
        while True:
            next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
