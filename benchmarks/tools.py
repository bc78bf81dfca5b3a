"""Measures processes and prints tables; shared by the benchmarks."""

import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.fakes.daemon import Daemon

HERE = Path(__file__).parent


def cpu_ns(pid: int) -> int:
    """Return the CPU time that all threads of a process have used, nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def rss_bytes(pid: int, field: str = "VmRSS") -> int:
    """Return the resident memory of a process (`VmHWM`: the most it ever had), bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)


def write_noise(path: Path, mib: int) -> None:
    """Write a file that nothing can make smaller."""
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(2**20))


def drop_from_memory(path: Path) -> None:
    """Put a file out of the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def forget_peak(pid: int) -> None:
    """Make a process's present memory the most it ever had."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


async def engine_of(daemon: Daemon, model: str) -> tuple[int, int]:
    """Find the resident engine of a model; return its pid and port."""
    instances = (await daemon.status())["instances"]
    return next((instance["pid"], instance["port"]) for instance in instances if instance["model"] == model)


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value that `part` (0–1) of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table in Markdown, so that it can be pasted."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    print(f"\n### {title}\n")
    for number, row in enumerate(cells):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    sys.stdout.flush()
