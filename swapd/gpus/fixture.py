"""Reads the topology matrix that the vendor's tool prints: which GPUs are joined by how many NVLinks, and how by PCIe.

Rules that hold here:

* The text is what people paste: tabs or runs of spaces, escape codes, comments, anything before the header or after
  the matrix. Only columns and rows named ``GPU<number>`` are GPUs; every other column of the matrix is a NIC.
* A matrix that does not hold together (no header, a row missing or too short, the diagonal not where it should be) is
  an error with a sentence. A cell that says nothing known is the worst level, an affinity that cannot be read is
  absent. There is never a guess at which cell was meant.
* Rows say what their own GPU sees: two rows may disagree, and both are kept as printed.
* ``NVk`` hides how the pair meets on PCIe and whether the links are direct. The level is then the best that a common
  NIC proves, else that of their NUMA nodes.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from swapd.core.topology import PcieLevel

#: more than any node has; a longer header is not a topology
MAX_GPUS: Final = 128
#: highest CPU or NUMA id taken for one, above Linux's own limit of CPUs
_MAX_ID: Final = 65_535

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\([A-Z0-9]")
_CPUS, _NUMA, _GPU_NUMA = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"
_COLUMN = re.compile(rf"{_CPUS}|{_NUMA}|{_GPU_NUMA}|\S+")
_GPU = re.compile(r"GPU(\d{1,4})")
_LINKS = re.compile(r"NV(\d{1,3})")
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_LEVELS = {level.name: level for level in PcieLevel if level is not PcieLevel.BOARD}
_SELF = "X"


class MatrixError(ValueError):
    """The text is no topology matrix; the message says why."""


@dataclass(frozen=True, slots=True)
class TopologyMatrix:
    """One machine as the matrix shows it; every outer tuple is ordered by GPU index."""

    #: NVLinks to every GPU, as this GPU's row says; may differ from what the other row says
    links: tuple[tuple[int, ...], ...]
    #: how it meets every GPU on PCIe, symmetric; BOARD with itself
    levels: tuple[tuple[PcieLevel, ...], ...]
    #: NUMA node of the host; -1: not known
    numa: tuple[int, ...]
    #: ids of the CPUs near it, ascending; empty: not known
    cpus: tuple[tuple[int, ...], ...]
    #: NUMA node made of its own memory; ``None``: none, or not known
    gpu_numa: tuple[int | None, ...]
    #: names of the NIC columns, and how each GPU meets each of them
    nics: tuple[str, ...]
    nic_levels: tuple[tuple[PcieLevel, ...], ...]

    @property
    def agreed_links(self) -> tuple[tuple[int, ...], ...]:
        """Return the smaller of the two counts of each pair."""
        return tuple(
            tuple(min(count, self.links[other][gpu]) for other, count in enumerate(row))
            for gpu, row in enumerate(self.links)
        )

    @property
    def uneven(self) -> tuple[int, ...]:
        """Return the GPUs that differ with another one about the links between them."""
        return tuple(gpu for gpu, row in enumerate(self.links) if row != tuple(other[gpu] for other in self.links))


@dataclass(frozen=True, slots=True)
class _Header:
    """The columns of the matrix, and what stands behind it."""

    #: one name per matrix column, GPUs first or not
    columns: tuple[str, ...]
    #: named columns behind the matrix, in order
    tail: tuple[str, ...]
    gpus: int


def parse_matrix(text: str) -> TopologyMatrix:
    """Read a matrix; MatrixError if there is none, or if it contradicts itself."""
    lines = [_ESCAPES.sub("", line) for line in text.splitlines()]
    lines = [line for line in lines if not line.lstrip().startswith("#")]
    found = next(((number, header) for number, line in enumerate(lines) if (header := _header(line))), None)
    if found is None:
        raise MatrixError("there is no header line with GPU0 in it")
    number, header = found
    rows = _rows(lines[number + 1 :], header)
    own = [_own_columns(header, row) for row in rows]
    names = header.columns
    where = {name: column for column, name in enumerate(names)}
    cells = [[row[where[f"GPU{gpu}"]] for gpu in range(header.gpus)] for row in (cells for cells, _ in rows)]
    _check_diagonal(cells)
    nics = tuple(name for name in names if not _GPU.fullmatch(name))
    nic_levels = tuple(tuple(_level(row[where[nic]]) for nic in nics) for row, _ in rows)
    gpu_numa = tuple(_own_node(cell) for _, _, cell in own)
    numa = tuple(min((node for node in _ids(cell) if node not in gpu_numa), default=-1) for _, cell, _ in own)
    return TopologyMatrix(
        links=tuple(tuple(_count(cell) for cell in row) for row in cells),
        levels=_levels(cells, numa, nic_levels),
        numa=numa,
        cpus=tuple(tuple(sorted(_ids(cell))) for cell, _, _ in own),
        gpu_numa=gpu_numa,
        nics=nics,
        nic_levels=nic_levels,
    )


def _header(line: str) -> _Header | None:
    """Take a line apart if it is the header: GPU0 first, and no row."""
    names = _COLUMN.findall(line)
    if not names or names[0] != "GPU0" or _SELF in names:
        return None
    tail = tuple(name for name in names if " " in name)
    columns = tuple(name for name in names if " " not in name)
    if names != [*columns, *tail] or not all(any(letter.isdigit() for letter in name) for name in columns):
        return None
    gpus = sorted(int(match[1]) for name in columns if (match := _GPU.fullmatch(name)))
    if gpus != list(range(len(gpus))) or len(set(columns)) != len(columns):
        raise MatrixError("the header does not name GPU0, GPU1, … once each")
    if len(gpus) > MAX_GPUS:
        raise MatrixError(f"the header names {len(gpus)} GPUs; at most {MAX_GPUS} are read")
    return _Header(columns, tail, len(gpus))


def _rows(lines: Sequence[str], header: _Header) -> list[tuple[list[str], list[str]]]:
    """Return for each GPU the cells of the matrix and those behind it."""
    width = len(header.columns)
    rows: dict[int, tuple[list[str], list[str]]] = {}
    for line in lines:
        cells = [cell.strip() for cell in line.split("\t")] if "\t" in line else line.split()
        match = _GPU.fullmatch(cells[0]) if cells else None
        if match is None or _SELF not in cells:
            continue
        gpu = int(match[1])
        if gpu >= header.gpus or gpu in rows:
            raise MatrixError(f"there are two rows for GPU{gpu}, or no column")
        if len(cells) <= width or "" in cells[1 : width + 1]:
            raise MatrixError(f"the row of GPU{gpu} is shorter than the header")
        behind = cells[width + 1 :]
        rows[gpu] = cells[1 : width + 1], behind if "\t" in line or len(behind) == len(header.tail) else []
    for gpu in range(header.gpus):
        if gpu not in rows:
            raise MatrixError(f"there is no row for GPU{gpu}")
    return [rows[gpu] for gpu in range(header.gpus)]


def _own_columns(header: _Header, row: tuple[list[str], list[str]]) -> tuple[str, str, str]:
    """Return CPU affinity, NUMA affinity and the GPU's own NUMA node; empty: not there.

    Rows have an unnamed cell before the last one, so that one is looked for from the end.
    """
    _, cells = row
    found = dict.fromkeys((_CPUS, _NUMA, _GPU_NUMA), "")
    for place, name in enumerate(header.tail):
        if name == _GPU_NUMA:
            found[name] = next((cell for cell in reversed(cells[place:]) if cell), "")
        elif place < len(cells):
            found[name] = cells[place]
    return found[_CPUS], found[_NUMA], found[_GPU_NUMA]


def _own_node(cell: str) -> int | None:
    return next(iter(_ids(cell)), None)


def _check_diagonal(cells: Sequence[Sequence[str]]) -> None:
    """Refuse a matrix whose cells have slipped."""
    for gpu, row in enumerate(cells):
        for other, cell in enumerate(row):
            if (cell == _SELF) != (gpu == other):
                raise MatrixError(f"the row of GPU{gpu} has {cell!r} under GPU{other}")


def _count(cell: str) -> int:
    match = _LINKS.fullmatch(cell)
    return int(match[1]) if match else 0


def _level(cell: str) -> PcieLevel:
    return _LEVELS.get(cell, PcieLevel.SYS)


def _levels(
    cells: Sequence[Sequence[str]], numa: Sequence[int], nics: Sequence[Sequence[PcieLevel]]
) -> tuple[tuple[PcieLevel, ...], ...]:
    """Return how each pair meets on PCIe; where two rows disagree, the worse counts."""
    found = [[PcieLevel.BOARD] * len(cells) for _ in cells]
    for one, two in combinations(range(len(cells)), 2):
        if _count(cells[one][two]) or _count(cells[two][one]):
            near = PcieLevel.NODE if numa[one] == numa[two] != -1 else PcieLevel.SYS
            level = max((min(pair) for pair in zip(nics[one], nics[two], strict=True)), default=near)
            level = max(level, near)
        else:
            level = min(_level(cells[one][two]), _level(cells[two][one]))
        found[one][two] = found[two][one] = level
    return tuple(tuple(row) for row in found)


def _ids(cell: str) -> list[int]:
    """Return the ids of a list such as ``0-3,8``; none if any part of it cannot be read."""
    return list(_each(cell)) if all(map(_readable, cell.split(","))) else []


def _readable(part: str) -> bool:
    match = _RANGE.fullmatch(part.strip())
    return match is not None and int(match[1]) <= int(match[2] or match[1]) <= _MAX_ID


def _each(cell: str) -> Iterator[int]:
    for part in cell.split(","):
        first, _, last = part.strip().partition("-")
        yield from range(int(first), int(last or first) + 1)
