"""Collects what ``swapd check`` shows: what is wrong with a file, or what was understood of it. Prints nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swapd.config.compile import load_estimate, model_weights
from swapd.config.load import Loaded, load
from swapd.config.model import Model
from swapd.config.problems import ConfigError, Problem
from swapd.config.schema import Settings
from swapd.config.units import approximate_size, format_duration
from swapd.config.values import format_compute_capability, shown_source
from swapd.core.catalog import NvlinkUse
from swapd.core.ids import MILLISECOND, SECOND, Duration


@dataclass(frozen=True, slots=True)
class Table:
    """Text in rows and columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a check."""

    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    #: what was understood; ``None``: the file is refused
    loaded: Loaded | None

    @property
    def settings(self) -> Settings | None:
        """Return what was understood; ``None``: the file is refused."""
        return None if self.loaded is None else self.loaded.settings


def inspect(path: Path, *, elsewhere: bool = False) -> Report:
    """Check a configuration file as the daemon would, on this machine or ``elsewhere`` (see ``load``)."""
    try:
        loaded = load(path, elsewhere=elsewhere)
    except ConfigError as error:
        return Report(error.problems, (), None)
    return Report((), loaded.warnings, loaded)


def model_table(settings: Settings) -> Table:
    """Return one row per model."""
    columns = (
        "model",
        "aliases",
        "engine",
        "GPUs × memory",
        "concurrency",
        "max wait",
        "pin",
        "priority",
        "weights",
        "first load",
    )
    return Table(columns, tuple(_row(name, model) for name, model in settings.models.items()))


def node_table(settings: Settings) -> Table:
    """Return one row per key outside ``models``, in the order of the reference."""
    values = settings.model_dump(mode="json", exclude={"models"})
    return Table(("key", "value"), tuple(_flat(values, "")))


def _row(name: str, model: Model) -> tuple[str, ...]:
    weights, source = model_weights(model), model.source
    first = f"about {format_duration(_rounded(load_estimate(model)))}"
    return (
        name,
        ", ".join(model.aliases),
        model.engine.value,
        ", ".join(_footprint(model)),
        str(model.concurrency),
        format_duration(model.max_wait),
        "yes" if model.pin else "",
        model.priority.name.lower(),
        shown_source(source.source) if source else approximate_size(weights.size) if weights else "",
        first if source is None else f"{first} after its fetch" if model.load_estimate else "after its fetch",
    )


def _footprint(model: Model) -> Iterator[str]:
    yield f"{model.gpus} × {approximate_size(model.memory)}"
    if not model.exclusive:
        yield "shared"
    if model.host_memory:
        yield f"{approximate_size(model.host_memory)} of the host"
    if model.nvlink is not NvlinkUse.PREFERRED:
        yield f"NVLink {'required' if model.nvlink is NvlinkUse.REQUIRED else 'ignored'}"
    if model.gpu_name is not None:
        yield model.gpu_name
    if model.min_compute_capability is not None:
        yield f"CC ≥ {format_compute_capability(model.min_compute_capability)}"


def _rounded(duration: Duration) -> Duration:
    """Leave out what nobody reads: below a minute tenths of a second stay, above it seconds."""
    step = 100 * MILLISECOND if duration < 60 * SECOND else SECOND
    return Duration(round(duration / step) * step)


def _flat(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _plain(value)


def _plain(value: Any) -> str:
    """Write a scalar as YAML does."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
