"""One sample of every event and command, built from their annotations, so that a new kind is covered by itself."""

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any

from swapd.core.catalog import Catalog, Footprint, ModelSpec
from swapd.core.commands import Command
from swapd.core.events import Event
from swapd.core.ids import Bytes, ModelName
from swapd.core.topology import DriverState, Gpu, NodeTopology

EVENTS: tuple[type[Any], ...] = typing.get_args(Event)
COMMANDS: tuple[type[Any], ...] = typing.get_args(Command)

_SPEC = ModelSpec(name=ModelName("m01"), footprint=Footprint(gpus=1, bytes_per_gpu=Bytes(1)))


def sample(kind: type[Any]) -> Any:
    """Build an instance of a frozen dataclass with plausible values."""
    hints = typing.get_type_hints(kind)
    return kind(**{field.name: _value(hints[field.name]) for field in dataclasses.fields(kind)})


def _value(hint: Any) -> Any:
    if isinstance(hint, typing.NewType):
        return _value(hint.__supertype__)
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return _value(typing.get_args(hint)[0])
    if origin in (tuple, Mapping):
        return () if origin is tuple else {}
    if hint is ModelSpec:
        return _SPEC
    if hint is Catalog:
        return Catalog(models={_SPEC.name: _SPEC})
    if hint is NodeTopology:
        return NodeTopology((Gpu(0, "GPU-0", Bytes(1)),), driver=DriverState.UP)
    if issubclass(hint, enum.Enum):
        return next(iter(hint))
    return {int: 1, str: "m01", float: 0.5, bool: True}[hint]
