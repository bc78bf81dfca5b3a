"""Gives every request its id: the client's, if it is well formed, else one of our own."""

import re
import secrets
from typing import Final

HEADER: Final = "x-request-id"
_WELL_FORMED: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


def request_id_of(header: str | None) -> str:
    """Return the id to echo, forward and log; a malformed one is replaced, not refused."""
    if header is not None and _WELL_FORMED.fullmatch(header):
        return header
    return secrets.token_hex(12)
