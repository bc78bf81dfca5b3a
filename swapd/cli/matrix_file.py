"""Reads topology matrices from files, of which no more is taken in than a matrix can be long."""

from pathlib import Path
from typing import Final

from swapd.gpus.fixture import MatrixError

#: more than the matrix of ``MAX_GPUS`` GPUs with as many NICs needs
_LONGEST: Final = 1 << 20


def read_matrix(path: Path) -> str:
    """Return the text of a topology matrix. Raises ``OSError``, and ``MatrixError`` if it is too long for one."""
    with path.open("rb") as file:
        text = file.read(_LONGEST + 1)
    if len(text) > _LONGEST:
        raise MatrixError("it has more than 1 MiB")
    return text.decode(errors="replace")
