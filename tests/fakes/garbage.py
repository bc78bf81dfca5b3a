"""Finds objects that nobody needs and that yet live on in a cycle, until the garbage collector comes by.

The daemon has the collector come seldom, so what every request or every engine left in a cycle would add up.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Run the block without the collector, and with nothing left that it would have found before."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def alive(*kinds: type) -> list[str]:
    """Return the names of the kinds of all objects of these kinds that exist."""
    return [type(item).__name__ for item in gc.get_objects() if issubclass(type(item), kinds)]
