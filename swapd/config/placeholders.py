"""Finds the placeholders in the words of a command; ``engines`` fills them in.

A placeholder is a plain word in braces. Other braces, as in JSON arguments, are left alone.
"""

import re
from collections.abc import Iterable
from typing import Final

PLACEHOLDERS: Final = ("port", "weights", "name", "devices")
_USE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def uses(words: Iterable[str]) -> tuple[str, ...]:
    """Return the names in braces, in order, known or not."""
    return tuple(name for word in words for name in _USE.findall(word))
