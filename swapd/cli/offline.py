"""Looks at GPUs without a daemon: those of a topology matrix in a file, or those of this machine, once.

The snapshot is made as the daemon makes it, by discovery and scheduler, with no model configured. The calls may block
for as long as the driver likes.
"""

from pathlib import Path

import click

from swapd.cli.matrix_file import read_matrix
from swapd.core.catalog import Catalog
from swapd.core.events import GpuMemory, GpuMemoryRead
from swapd.core.ids import Instant
from swapd.core.scheduler import Scheduler
from swapd.core.topology import NodeTopology
from swapd.core.view import NodeView
from swapd.gpus.discover import Discovery, discover
from swapd.gpus.errors import DriverError, NvmlError
from swapd.gpus.fixture import MatrixError
from swapd.gpus.fixture_node import topology_of
from swapd.gpus.nvml import Nvml
from swapd.gpus.settings import GpuSettings

_NOW = Instant(0)


class NoDriverError(Exception):
    """The driver cannot be asked; the message says what it answered."""


def of_matrix(path: Path) -> NodeView:
    """Return the machine whose topology matrix is in a file. Raises ``click.ClickException``."""
    try:
        text = read_matrix(path)
        found = topology_of(text)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror or error}") from None
    except MatrixError as error:
        raise click.ClickException(f"{path} is no topology matrix: {error}") from None
    return _scheduler(found).view(_NOW)


def of_this_machine() -> NodeView:
    """Return the GPUs of this machine with their memory as it is now. Raises ``NoDriverError``."""
    nvml = Nvml()
    try:
        nvml.init()
    except NvmlError as error:
        raise NoDriverError(str(error)) from error
    try:
        found = discover(nvml, GpuSettings())
        scheduler = _scheduler(found.topology)
        scheduler.handle(GpuMemoryRead(at=_NOW, taken=_NOW, readings=_memory(nvml, found)))
    except DriverError as error:
        raise NoDriverError(str(error)) from error
    finally:
        nvml.shutdown()
    return scheduler.view(_NOW)


def _memory(nvml: Nvml, found: Discovery) -> tuple[GpuMemory, ...]:
    readings = []
    for index, device in found.devices.items():
        try:
            memory = nvml.memory(device)
        except NvmlError:
            continue  # it is shown without
        readings.append(GpuMemory(index, memory.capacity_bytes, memory.free_bytes))
    return tuple(readings)


def _scheduler(found: NodeTopology) -> Scheduler:
    return Scheduler(found, Catalog(), _NOW)
