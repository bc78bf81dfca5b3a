"""Compares a discovered topology with what `nvidia-smi` prints, and keeps the record of all checks."""

import csv
import subprocess
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

from swapd.core.topology import NodeTopology
from swapd.gpus.fixture import MatrixError, TopologyMatrix, parse_matrix
from swapd.gpus.readings import canonical_bdf

MIB: Final = 1 << 20
FIELDS: Final = ("index", "uuid", "name", "pci.bus_id", "memory.total", "memory.reserved", "driver_version")


class SmiError(Exception):
    """`nvidia-smi` could not be run or was not understood."""


@dataclass
class Report:
    """Checks and findings, in order, as Markdown."""

    lines: list[str] = field(default_factory=list)
    passed: bool = True

    def say(self, line: str) -> None:
        """Add a line."""
        self.lines.append(line)

    def section(self, title: str) -> None:
        """Begin a section."""
        self.lines += ["", f"## {title}", ""]

    def check(self, what: str, passed: bool, detail: str = "") -> None:  # noqa: FBT001 - the outcome
        """Write down how a check went."""
        self.passed = self.passed and passed
        self.lines.append(f"* {'passed' if passed else '**FAILED**'}: {what}{f' ({detail})' if detail else ''}")

    def skip(self, what: str, why: str) -> None:
        """Write down a check that means nothing here."""
        self.lines.append(f"* left out: {what} ({why})")

    def text(self) -> str:
        """Return the record."""
        return "\n".join([*self.lines, "", f"All in all: {'passed' if self.passed else 'FAILED'}."])


def smi_devices(smi: str) -> list[dict[str, str]]:
    """Ask for every GPU, one row each, by the names in `FIELDS`; memory in MiB."""
    text = _run(smi, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row]
    if any(len(row) != len(FIELDS) for row in rows):
        raise SmiError(f"not understood: {text!r}")
    return [dict(zip(FIELDS, row, strict=True)) for row in rows]


def compare_devices(report: Report, topology: NodeTopology, devices: list[dict[str, str]]) -> None:
    """Compare names, uuids, addresses and memory."""
    ours = {gpu.uuid: gpu for gpu in topology.gpus}
    listed = [row["uuid"] for row in devices]
    report.check("the same GPUs in the same order", [*ours] == listed, f"{len(ours)} here, {len(listed)} there")
    for row in devices:
        gpu = ours.get(row["uuid"])
        if gpu is None:
            continue
        place = f"GPU {gpu.index}"
        report.check(f"{place}: name", gpu.name == row["name"], f"{gpu.name} / {row['name']}")
        report.check(
            f"{place}: PCI address", gpu.bdf == canonical_bdf(row["pci.bus_id"]), f"{gpu.bdf} / {row['pci.bus_id']}"
        )
        compare_memory(report, f"{place}: memory", gpu.memory_bytes, row)
        report.check(f"{place}: driver", topology.driver_version == row["driver_version"], row["driver_version"])


def compare_memory(report: Report, what: str, ours: int, row: dict[str, str]) -> None:
    """Compare the usable memory: the total less the driver's reserve, each rounded to MiB there."""
    total, reserved = row["memory.total"], row["memory.reserved"]
    if not (total.isdecimal() and reserved.isdecimal()):
        report.skip(what, f"nvidia-smi says {total} and {reserved}")
        return
    theirs = int(total) - int(reserved)
    report.check(what, abs(ours // MIB - theirs) <= 2, f"{ours // MIB} / {theirs} MiB usable")


def compare_matrix(report: Report, topology: NodeTopology, smi: str) -> None:
    """Compare NVLinks, PCIe levels, NUMA nodes and CPUs with the matrix."""
    text = _run(smi, "topo", "-m")
    try:
        matrix = parse_matrix(text)
    except MatrixError as error:
        report.check("the topology matrix is understood", False, f"{error}\n\n```\n{text}\n```")  # noqa: FBT003
        return
    size = len(topology.gpus)
    report.check("as many GPUs in the matrix", len(matrix.links) == size, str(len(matrix.links)))
    if len(matrix.links) != size:
        return
    none = tuple((0,) * size for _ in range(size))
    links = topology.links or none
    same = links == matrix.agreed_links
    report.check("the same NVLinks", same, "" if same else f"{links} / {matrix.agreed_links}")
    apart = [
        f"{one}-{two}: {topology.levels[one][two].name} / {matrix.levels[one][two].name}"
        for one, two in _without_links(matrix)
        if topology.levels[one][two] is not matrix.levels[one][two]
    ]
    report.check("the same PCIe levels where no NVLink hides them", not apart, ", ".join(apart))
    numa = tuple(gpu.numa for gpu in topology.gpus)
    report.check("the same NUMA nodes", numa == matrix.numa, f"{numa} / {matrix.numa}")
    cpus = [gpu.index for gpu in topology.gpus if gpu.cpus != matrix.cpus[gpu.index]]
    report.check("the same CPUs", not cpus, f"other CPUs on {cpus}" if cpus else "")


def _without_links(matrix: TopologyMatrix) -> list[tuple[int, int]]:
    pairs = combinations(range(len(matrix.links)), 2)
    return [(one, two) for one, two in pairs if not matrix.links[one][two] and not matrix.links[two][one]]


def _run(smi: str, *arguments: str) -> str:
    try:
        ended = subprocess.run([smi, *arguments], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SmiError(str(error)) from None
    if ended.returncode != 0:
        raise SmiError(f"{smi} {' '.join(arguments)} ended with {ended.returncode}: {ended.stdout}{ended.stderr}")
    return ended.stdout
