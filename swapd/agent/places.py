"""Says where one daemon keeps what it writes."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Places:
    """Where the daemon keeps its files."""

    #: SQLite file
    state: Path
    #: directory of the engines' output
    logs: Path
    #: Unix socket
    admin: Path
