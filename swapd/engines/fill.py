"""Fills in what only swapd knows, argument by argument; no shell ever sees the result.

``{port}``, ``{weights}``, ``{name}`` and ``{devices}`` are replaced wherever they stand in an argument. Any other brace
is left as it is, so that JSON arguments need no escapes.
"""

import re
from collections.abc import Iterable

from swapd.engines.base import Assignment, EngineError

_PLACEHOLDER = re.compile("{(port|weights|name|devices)}")


def fill(arguments: Iterable[str], given: Assignment) -> tuple[str, ...]:
    """Replace the placeholders in every argument; raises ``EngineError`` for one without a value."""
    values = {
        "port": str(given.port),
        "weights": given.options.weights,
        "name": given.options.name,
        "devices": ",".join(given.devices),
    }

    def value(match: re.Match[str]) -> str:
        known = values[match[1]]
        if known is None:
            raise EngineError(f"{match[0]} stands in {match.string!r}, but the model names no {match[1]}")
        return known

    return tuple(_PLACEHOLDER.sub(value, argument) for argument in arguments)
