"""Finds out where each model of a configuration would go: on this machine's GPUs, or on those of a topology matrix.

A driver may keep its caller waiting for ever, so it is asked on a thread of its own, under a deadline.
"""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from swapd.cli.matrix_file import read_matrix
from swapd.config.compile import compile_catalog, host_bytes
from swapd.config.load import Loaded
from swapd.config.problems import Problem
from swapd.config.schema import Settings
from swapd.config.units import approximate_size
from swapd.core.catalog import Catalog
from swapd.core.ids import Bytes, gpu_indices
from swapd.core.reasons import PlacementQuality
from swapd.core.sentences import gpu_list
from swapd.core.topology import Gpu, NodeTopology
from swapd.gpus.discover import discover
from swapd.gpus.errors import DriverError, NvmlError
from swapd.gpus.fake_gpu import Product
from swapd.gpus.fixture import MatrixError
from swapd.gpus.fixture_node import topology_of
from swapd.gpus.nvml import Nvml
from swapd.gpus.settings import GpuSettings
from swapd.sim.rehearse import Place, rehearse

DEADLINE_S: Final = 60.0
"""How long a driver may take; a slow one needs half of it."""

_ELSEWHERE: Final = "check it on the node, or give the node's topology matrix with --fixture"
_KINDS: Final = "gpu_name and min_compute_capability were not checked: a topology matrix does not name its GPUs"
_QUALITIES: Final = {
    PlacementQuality.SINGLE: "",
    PlacementQuality.TOP: "the best of its size",
    PlacementQuality.LINKED: "an NVLink ring, not the best of its size",
    PlacementQuality.LOCAL: "no NVLink ring, one NUMA node",
    PlacementQuality.SPREAD: "no NVLink ring, across NUMA nodes",
}


class UnreadableError(Exception):
    """The file holds no topology matrix; one sentence."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the models would go."""

    #: ``None``: it was not checked
    topology: NodeTopology | None
    places: tuple[Place, ...] = ()
    #: one sentence: what was not checked, and why; empty: nothing was left out
    unchecked: str = ""


def here(settings: Settings, *, deadline_s: float = DEADLINE_S) -> Placement:
    """Place the models on the GPUs of this machine."""
    found: list[NodeTopology | Exception] = []
    asking = threading.Thread(target=lambda: found.append(_asked(settings)), name="discover", daemon=True)
    asking.start()
    asking.join(deadline_s)
    if not found:
        return Placement(None, unchecked=f"the GPU driver has not answered within {deadline_s:g} s; {_ELSEWHERE}")
    (topology,) = found
    if isinstance(topology, NvmlError | DriverError):
        return Placement(None, unchecked=f"no GPU can be seen here ({topology}); {_ELSEWHERE}")
    if isinstance(topology, Exception):
        raise topology
    return Placement(topology, rehearse(topology, compile_catalog(settings)))


def there(settings: Settings, fixture: Path, memory: Bytes) -> Placement:
    """Place the models on the machine whose topology matrix is in a file. Raises ``UnreadableError``."""
    try:
        text = read_matrix(fixture)
        topology = topology_of(text, Product(total_bytes=memory, reserved_bytes=0))
    except OSError as error:
        raise UnreadableError(f"{fixture} cannot be read: {error.strerror or error}") from None
    except MatrixError as error:
        raise UnreadableError(f"{fixture} is no topology matrix: {error}") from None
    catalog = compile_catalog(settings)
    kinds = any(spec.gpu_name or spec.min_compute_capability for spec in catalog.models.values())
    return Placement(topology, rehearse(topology, of_any_kind(catalog)), _KINDS if kinds else "")


def of_any_kind(catalog: Catalog) -> Catalog:
    """Return the catalogue without what it asks of the kind of GPUs: a topology matrix does not name its GPUs."""
    models = {name: replace(spec, gpu_name="", min_compute_capability=None) for name, spec in catalog.models.items()}
    return replace(catalog, models=models)


def warnings(loaded: Loaded, placement: Placement) -> Iterator[Problem]:
    """Yield what an operator may come to regret, in the order of the file."""
    for place in placement.places:
        if place.why:
            yield loaded.problem(("models", place.model), f"`models.{place.model}`: {place.why}")
    pins = [place for place in placement.places if place.pinned and place.gpus]
    count = 0 if placement.topology is None else placement.topology.placeable.bit_count()
    taken = 0
    for place in pins:
        taken |= place.gpus
    if pins and taken.bit_count() * 4 > count:
        names = ", ".join(place.model for place in pins)
        share = f"{'takes' if len(pins) == 1 else 'take'} {taken.bit_count()} of {count} GPUs"
        sentence = f"consider fewer pins: {names} {share}, and above a quarter all other models wait longer"
        yield loaded.problem(("models", pins[-1].model, "pin"), f"`models.{pins[-1].model}.pin`: {sentence}")


def described(topology: NodeTopology) -> str:
    """Return number, kind and size of a node's GPUs in a line."""
    kinds = Counter(f"{gpu.name or 'unknown'}, {approximate_size(gpu.memory_bytes)}" for gpu in topology.gpus)
    return "; ".join(f"{count} × {kind}" for kind, count in kinds.items()) or "no GPU"


def row(place: Place) -> tuple[str, str, str]:
    """Return model, GPUs, and how good they are."""
    if not place.gpus:
        return place.model, "", "no place, see the warning"
    quality = _QUALITIES[place.quality] if place.quality is not None else ""
    return place.model, gpu_list(place.gpus), "; ".join(filter(None, ("pinned" if place.pinned else "", quality)))


def as_json(placement: Placement) -> dict[str, Any]:
    """Return a placement for programs."""
    topology = placement.topology
    return {
        "checked": topology is not None,
        "unchecked": placement.unchecked,
        "gpus": [] if topology is None else [_gpu(gpu) for gpu in topology.gpus],
        "complaints": [] if topology is None else list(topology.complaints),
        "models": [
            {
                "name": place.model,
                "pinned": place.pinned,
                "gpus": list(gpu_indices(place.gpus)),
                "quality": None if place.quality is None else place.quality.value,
                "why": place.why,
            }
            for place in placement.places
        ],
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "memory_bytes": gpu.memory_bytes,
        "health": gpu.health.value,
        "why": gpu.why,
    }


def _asked(settings: Settings) -> NodeTopology | Exception:
    devices = settings.devices
    wanted = GpuSettings(expected=devices.expected or 0, memory_bytes=devices.memory, host_bytes=host_bytes(devices))
    nvml = Nvml()
    try:
        nvml.init()
        try:
            return discover(nvml, wanted).topology
        finally:
            with contextlib.suppress(NvmlError):
                nvml.shutdown()
    except Exception as error:  # noqa: BLE001 - told or raised where the thread is waited for
        return error
