"""Says what a new configuration changes against the one in force."""

from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from swapd.config.schema import Settings

#: keys that are read once, when the daemon starts
_AT_START: Final = (
    *("http.listen", "metrics.listen", "admin.socket", "state.path", "engines.ports"),
    *("cache.path", "cache.max_parallel_fetches", "cache.bandwidth"),
    *("devices.virtual", "devices.expected", "devices.memory", "devices.host_memory"),
)


@dataclass(frozen=True, slots=True)
class Difference:
    """Models by name, in the order of the file, and the keys that wait for a restart."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    #: any key differs; whether that needs a new process is in the model's revision
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    #: keys outside ``models`` that differ, dotted
    settings: tuple[str, ...]
    #: those of them that take effect only after a restart
    restart_needed: tuple[str, ...]

    @property
    def nothing(self) -> bool:
        """Whether the two mean the same."""
        return not (self.added or self.removed or self.changed or self.settings)


def difference(old: Settings, new: Settings) -> Difference:
    """Compare two configurations."""
    both = [name for name in new.models if name in old.models]
    settings = tuple(_differing(old, new, ""))
    return Difference(
        added=tuple(name for name in new.models if name not in old.models),
        removed=tuple(name for name in old.models if name not in new.models),
        changed=tuple(name for name in both if old.models[name] != new.models[name]),
        unchanged=tuple(name for name in both if old.models[name] == new.models[name]),
        settings=settings,
        restart_needed=tuple(
            key for key in settings if any(key == top or key.startswith(f"{top}.") for top in _AT_START)
        ),
    )


def _differing(old: BaseModel, new: BaseModel, prefix: str) -> list[str]:
    """List the dotted keys outside ``models`` whose values differ."""
    keys: list[str] = []
    for key in type(new).model_fields:
        before, after = getattr(old, key), getattr(new, key)
        if key == "models" or before == after:
            continue
        if isinstance(before, BaseModel) and isinstance(after, BaseModel):
            keys += _differing(before, after, f"{prefix}{key}.")
        else:
            keys.append(f"{prefix}{key}")
    return keys
