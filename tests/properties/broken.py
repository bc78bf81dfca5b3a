"""Says that a law does not hold."""

from typing import NoReturn


class BrokenLawError(AssertionError):
    """The core broke a law."""


def broken(law: str, detail: str) -> NoReturn:
    """Raise with the law's name."""
    raise BrokenLawError(f"{law}: {detail}")
