"""Lays the node's topology out for a terminal: how the GPUs are joined, what is on them, what is whole and what is not.

The matrix reads like the vendor's: row and column of two GPUs meet at ``NVk`` for k NVLinks, else at the PCIe level. A
matrix that is too wide for the terminal is told in several parts, each with its rows named.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from swapd.cli.client import printable
from swapd.cli.table import driver_trouble, gpu_troubles, health, size, table

Json = dict[str, Any]

_LEGEND: Final = {
    "NV": "NVk: k NVLinks",
    "BOARD": "BOARD: on one board",
    "PIX": "PIX: at most one PCIe bridge",
    "PXB": "PXB: several PCIe bridges",
    "PHB": "PHB: a host bridge",
    "NODE": "NODE: within a NUMA node",
    "SYS": "SYS: across NUMA nodes, or not known",
}
_GAP: Final = 2
"""Columns between two cells of the matrix."""
_NUMBERS: Final = ("GPU", "total", "reserved", "used", "foreign", "NUMA", "NVLinks")
_COLUMNS: Final = (
    (0, ("GPU", "used", "health", "models")),
    (64, ("GPU", "total", "reserved", "used", "foreign", "health", "models")),
    (
        110,
        ("GPU", "device", "total", "reserved", "used", "foreign", "NUMA", "PCIe switch", "NVLinks", "health", "models"),
    ),
)
"""The columns of the GPUs by the least width of the terminal."""


def print_topology(console: Console, document: Json) -> None:
    """Print driver, matrix, GPUs and NVLink domains of a document with the keys of the status document."""
    devices = document["devices"]
    driver = document["driver"]
    console.print(_head(driver, devices))
    trouble = driver_trouble(driver)
    for line in (*([trouble] if trouble else []), *gpu_troubles(driver, devices)):
        console.print(line)
    for part in (_matrix(devices, console.width), _gpus(devices, console.width)):
        if part is not None:
            console.print()
            console.print(part)
    last = (*([] if driver["state"] == "virtual" else _nvlink(document["nvlink"], devices)), *_host(document))
    console.print(*([""] if last else []), *last, sep="\n", end="\n" if last else "")


def gpu_list(indices: Iterable[int]) -> str:
    """Return GPUs as short as it goes: ``0-3,5``; ``–`` for none."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) or "–"


def _head(driver: Json, devices: list[Json]) -> Text:
    count = f"{len(devices)} GPU{'' if len(devices) == 1 else 's'}"
    if driver["state"] == "virtual":
        return Text(f"{count}, virtual")
    expected = f" of {driver['expected_gpus']}" if (driver["expected_gpus"] or 0) > len(devices) else ""
    version = f"  driver {printable(driver['version'])}" if driver["version"] else ""
    return Text(f"{count}{expected}{version}  generation {driver['generation']}")


# ── the matrix ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _matrix(devices: list[Json], width: int) -> RenderableType | None:
    """Return the matrix in parts that fit; ``None`` where nothing is known of how the GPUs are joined."""
    cells = [[_cell(device, other) for other in range(len(devices))] for device in devices]
    words = {cell.plain for row in cells for cell in row}
    if words <= {"X", "–"}:
        return None
    names = [f"GPU{device['index']}" for device in devices]
    column = max(map(len, (*names, *words))) + _GAP
    per_part = max(1, (width - column) // column)
    parts = [_part(names, cells, slice(first, first + per_part), column) for first in range(0, len(names), per_part)]
    return Group(*parts, Text(), _legend(words))


def _cell(device: Json, other: int) -> Text:
    if other == device["index"]:
        return Text("X", "dim")
    if device["links"] and device["links"][other]:
        return Text(f"NV{device['links'][other]}", "green")
    return Text(device["pcie"][other] if device["pcie"] else "–")


def _part(names: Sequence[str], cells: Sequence[Sequence[Text]], part: slice, column: int) -> Table:
    drawn = Table(box=None, pad_edge=False, padding=0, header_style="bold")
    drawn.add_column("", style="bold", width=column)
    for name in names[part]:
        drawn.add_column(name, justify="right", width=column, no_wrap=True)
    for name, row in zip(names, cells, strict=True):
        drawn.add_row(name, *row[part])
    return drawn


def _legend(words: Iterable[str]) -> Text:
    present = {"NV" if word.startswith("NV") else word for word in words}
    return Text("  ".join(text for word, text in _LEGEND.items() if word in present), "dim")


# ── GPUs and domains ─────────────────────────────────────────────────────────────────────────────────────────────────


def _gpus(devices: list[Json], width: int) -> Table:
    columns = next(names for least, names in reversed(_COLUMNS) if width >= least)
    rows = table(*columns, right=_NUMBERS)
    for device in devices:
        rows.add_row(*(_column(device, column) for column in columns))
    return rows


def _column(device: Json, column: str) -> Text:
    match column:
        case "GPU":
            return Text(str(device["index"]))
        case "device":
            return Text(printable(device["name"] or device["uuid"] or "–"))
        case "total":
            return _size(device["memory_bytes"] or None)
        case "reserved":
            return _size(device["reserved_bytes"])
        case "used":
            free = device["free_bytes"]
            return _size(None if free is None else max(0, device["memory_bytes"] - free))
        case "foreign":
            return _size(device["foreign_bytes"])
        case "NUMA":
            return Text("–" if device["numa"] is None else str(device["numa"]))
        case "PCIe switch":
            return Text(printable(device["pcie_switch"] or "–"))
        case "NVLinks":
            return Text(_links(device))
        case "health":
            return health(device)
        case _:
            return Text(", ".join(map(printable, device["models"])) or "–")


def _links(device: Json) -> str:
    """Return the links that are up, and how many there should be if that is another number."""
    up, expected = device["nvlinks"], device["nvlinks_expected"]
    return "–" if not (up or expected) else str(up) if up == expected else f"{up} of {expected}"


def _size(count: int | None) -> Text:
    return Text("–" if count is None else size(count))


def _nvlink(nvlink: Json, devices: list[Json]) -> Iterator[Text]:
    whole, fragmented = nvlink["whole_domains"], nvlink["fragmented_domains"]
    if not whole and not fragmented:
        yield Text("No two GPUs are joined by NVLink")
        return
    yield Text(f"NVLink domains: {len(whole)} whole, {len(fragmented)} fragmented", "bold")
    for domain in sorted((*whole, *fragmented)):
        parts: dict[str, list[int]] = {}
        for index in domain:
            parts.setdefault(_use(devices[index]), []).append(index)
        told = ", ".join(f"{use} {gpu_list(indices)}" for use, indices in sorted(parts.items()))
        yield Text(f"  GPUs {gpu_list(domain)}: {told}", "yellow" if domain in fragmented else "")
    block, among = nvlink["largest_free_block"], gpu_list(nvlink["largest_free_block_gpus"])
    size_of_it = f"{block} GPUs ({among})" if block > 1 else "single GPUs only" if block else "no GPU is free"
    yield Text(f"Largest free NVLink block: {size_of_it}")


def _use(device: Json) -> str:
    if device["models"]:
        return "taken"
    return "free" if device["health"] in {"healthy", "degraded"} else "out of use"


def _host(document: Json) -> Iterator[Text]:
    memory = document["host_memory"]
    if memory["capacity_bytes"] is not None:
        yield Text(f"Host memory: {size(memory['reserved_bytes'])} of {size(memory['capacity_bytes'])} reserved")
