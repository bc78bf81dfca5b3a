"""Gives every request its id: the client's, if it is well formed, else one of our own."""

import os
import re
from itertools import chain
from typing import Final

HEADER: Final = "x-request-id"
_WELL_FORMED: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


def request_id_of(header: str | None) -> str:
    """Return the id to echo, forward and log; a malformed one is replaced, not refused."""
    if header is not None and _WELL_FORMED.fullmatch(header):
        return header
    return next(OWN)


def _some() -> list[str]:
    """Return ids of 96 random bits each; asking the kernel once for many costs less than once for each."""
    digits = os.urandom(_BITS // 8 * _AT_ONCE).hex()
    return [digits[start : start + _BITS // 4] for start in range(0, len(digits), _BITS // 4)]


_BITS: Final = 96
_AT_ONCE: Final = 128
OWN: Final = chain.from_iterable(iter(_some, []))
"""Ids without an end."""
