"""Declares what models are placed on: the node's GPUs, as the driver tells of them, or devices in the accounts only.

The text under a field is its documentation (see ``schema``). What one model asks of its GPUs stands in ``model``.
"""

import enum
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from swapd.config import fields
from swapd.config.section import Section
from swapd.config.units import show


class VirtualDevices(Section):
    """Devices that exist only in the accounts; for machines without GPUs."""

    count: Annotated[int, Field(strict=True, ge=1, le=64)]
    """How many devices the node has, at most 64. Restart to change it."""

    memory: fields.Size
    """Memory of each device; models are placed against it and nothing measures it. Restart to change it."""


class Numa(enum.StrEnum):
    """Whether engines are bound to the CPUs and the host memory near their GPUs."""

    AUTO = "auto"
    OFF = "off"


NumaWord = Annotated[
    Numa,
    BeforeValidator(lambda value: "off" if value is False else value),  # YAML 1.1 reads a plain off as false
    WithJsonSchema({"enum": ["auto", "off", False], "x-form": "`auto`, `off`"}),
]


class Devices(Section):
    """What models are placed on: `auto`, the GPUs that NVML finds, or the keys below; `auto` is all their defaults.

    Each GPU of the node is swapd's: `CUDA_VISIBLE_DEVICES` in the daemon's environment takes none away.
    """

    virtual: VirtualDevices | None = None
    """Devices that exist only in the accounts, in place of GPUs: their memory is booked as the configuration says. They
    are never taken by default, so that a node whose driver is missing says so. The other keys but `host_memory` are
    about GPUs and refused beside it. Restart to change it."""

    expected: fields.PositiveCountOrNull = None
    """How many GPUs the node should have; when there are fewer, the node is reported as degraded and serves with those
    it has. `null` takes the most ever seen; write the number where one may be missing from the first start on.
    Restart to change it."""

    memory: fields.SizeOrNull = None
    """Memory that models may take of each GPU whose driver does not tell it, as where GPU and host share theirs;
    nothing is placed on such a GPU without it. What a driver does tell always counts instead. Restart to change it."""

    require_fabric: fields.Flag = False
    """Place no model on several GPUs while their NVLink fabric is not registered, which is the work of the Fabric
    Manager. Off by default, because there are systems that work and never report it."""

    numa: NumaWord = Numa.AUTO
    """`auto` starts each engine on the CPUs near its GPUs, and lets it prefer the host memory there, where the NUMA
    nodes are known and the system allows it; `off` leaves that to the system. `auto` by default, because copies between
    a GPU and a far node are slower. Counts from the next start of an engine; not for `engine: external`."""

    host_memory: fields.HostMemory = "auto"
    """Host memory that models may take together, as their own `host_memory` says; `off` keeps no such account. `auto`
    is the memory of the machine, or of the control group if that allows less, less a tenth (2 GiB at least) for
    everything else. Harmless by default, because models that state none take none of it. Restart to change it."""


def _keys(value: Any) -> Any:
    if isinstance(value, dict | Devices):
        return value
    if value == "auto":
        return {}
    raise ValueError(f"write auto, or keys and values below it, not {show(value)}")


class _OrAuto:
    """Tells editors of the word beside the keys."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"const": "auto"}, handler(core)]}


DevicesOrAuto = Annotated[Devices, BeforeValidator(_keys), _OrAuto()]

#: keys that say something of GPUs only
GPU_KEYS: Final = ("expected", "memory", "require_fabric", "numa")
