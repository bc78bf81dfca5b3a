"""Takes ``/upstream/<model>/<path>`` apart; the path is passed to the engine as it is, so it must have one reading.

A list of allowed paths protects nothing if ``/%73lots`` or ``/v1/../slots`` reach the engine and are read there as
``/slots``. So anything that could be read in two ways is refused. Model names may contain slashes; the longest
configured name wins.
"""

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from swapd.core.ids import ModelName
from swapd.proxy.errors import refuse, unknown_model
from swapd.proxy.failure import RefusedError
from swapd.proxy.model_name import MAX_NAME_LENGTH

_SEGMENT: Final = r"(?!\.{1,2}(?:/|$))(?:[A-Za-z0-9._~!$&'()*+,=:@-]|%[0-9A-Fa-f]{2})+"
_CANONICAL: Final = re.compile(rf"/(?:{_SEGMENT}(?:/{_SEGMENT})*/?)?")
_ENCODED: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_NEVER_ENCODED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/\\")


def split(rest: str, resolve: Callable[[str], ModelName | None]) -> tuple[ModelName, str]:
    """Return model and engine path of what follows ``/upstream/``; raises ``RefusedError``."""
    ends = [index for index, char in enumerate(rest[: 3 * MAX_NAME_LENGTH]) if char == "/"]
    for end in reversed(ends):
        model = resolve(unquote(rest[:end]))
        if model is not None:
            path = rest[end:]
            if not is_canonical(path):
                raise refuse(
                    "The path after the model's name must be in its plain form: no '.', '..', '//' or escapes."
                )
            return model, path
    raise RefusedError(unknown_model(unquote(rest[: ends[0]] if ends else rest)))


def is_canonical(path: str) -> bool:
    """Tell whether a raw path can be read in one way only."""
    if _CANONICAL.fullmatch(path) is None:
        return False
    decoded = (unquote(code) for code in _ENCODED.findall(path))
    return all(char not in _NEVER_ENCODED and char >= " " and char != "\x7f" for char in decoded)
