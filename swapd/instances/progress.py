"""Tells a load that advances from one that is stuck: something new in its log, or bytes read or written.

Our own probes must not count, or a stuck engine would look alive: a log line that names the probed path is ignored,
and so is a trickle of I/O.
"""

from pathlib import Path

from swapd.instances.processes import Process

_TRICKLE_BYTES = 65_536


class Progress:
    """Compares two looks at one loading instance."""

    def __init__(self, probed_path: str) -> None:
        self._probed = probed_path.encode()
        self._moved = 0

    def advanced(self, fresh_log: bytes, processes: tuple[Process, ...]) -> bool:
        """Whether the load moved since the last look; ``fresh_log`` is what was logged since then."""
        moved = sum(_moved_bytes(process.pid) for process in processes)
        read_on = moved - self._moved >= _TRICKLE_BYTES
        # a process that ends takes its counters along, which is no step back
        self._moved = moved
        return read_on or any(line.strip() and self._probed not in line for line in fresh_log.splitlines())


def _moved_bytes(pid: int) -> int:
    """Return all bytes read and written: by system calls, and by the disk for mapped files."""
    try:
        text = Path(f"/proc/{pid}/io").read_text(encoding="ascii")
    except OSError:
        return 0
    counters = dict(line.split(": ") for line in text.splitlines())
    return sum(int(counters.get(name, 0)) for name in ("rchar", "wchar", "read_bytes"))
