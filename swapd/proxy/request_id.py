"""Gives every request its id: the client's, if it is well formed, else one of our own."""

import os
import re
from collections.abc import Iterator
from typing import Final

HEADER: Final = "x-request-id"
_WELL_FORMED: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


def request_id_of(header: str | None) -> str:
    """Return the id to echo, forward and log; a malformed one is replaced, not refused."""
    if header is not None and _WELL_FORMED.fullmatch(header):
        return header
    return next(_OWN)


def _own() -> Iterator[str]:
    """Yield 96 random bits each time; asking the kernel once for many costs less than once for each."""
    while True:
        digits = os.urandom(_BITS // 8 * _AT_ONCE).hex()
        for start in range(0, len(digits), _BITS // 4):
            yield digits[start : start + _BITS // 4]


_BITS: Final = 96
_AT_ONCE: Final = 128
_OWN: Final = _own()
