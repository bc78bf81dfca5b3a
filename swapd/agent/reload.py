"""Applies a changed configuration file: as a difference when it is valid, not at all when it is not.

A file is read on another thread, because a network file system may be slow; it is applied on the loop in one step.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from swapd.admin.control import Result
from swapd.aio.one_thread import OneThread, ThreadBusyError
from swapd.config.compile import compile_catalog
from swapd.config.diff import difference
from swapd.config.load import Loaded, load
from swapd.config.problems import ConfigError
from swapd.config.schema import Settings
from swapd.config.watch import changes
from swapd.core.catalog import Catalog
from swapd.core.ids import SECOND, Instant

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("swapd.config")

_READ_LIMIT_S = 60.0
_CLOSE_S = 0.5


class Reloader:
    """Owns the configuration in force."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        now: Callable[[], Instant],
        applied: Callable[[Settings, Catalog], None],
        outcome: Callable[[bool], None],
    ) -> None:
        """Start from a valid configuration; ``applied`` puts a new one in force, ``outcome`` hears of success."""
        self._path: Path = loaded.path
        self._now = now
        self._applied = applied
        self._outcome = outcome
        self._one_at_a_time = asyncio.Lock()
        self._thread = OneThread("swapd-config")
        self._started_with = loaded.settings
        self.settings = loaded.settings
        #: what came of the last reading of the file; empty when it is in force
        self.error = ""
        #: settings that differ from the running ones and wait for a restart
        self.restart_needed: tuple[str, ...] = ()
        self.applied_at = now()

    @property
    def path(self) -> Path:
        """The configuration file."""
        return self._path

    async def reload(self) -> Result:
        """Read the file and apply it; an invalid one changes nothing."""
        async with self._one_at_a_time:
            try:
                loaded, catalog = await self._thread.call(lambda: _read(self._path), timeout=_READ_LIMIT_S)
            except ConfigError as error:
                return self._refuse("; ".join(str(problem) for problem in error.problems))
            except (TimeoutError, ThreadBusyError):
                return self._refuse(
                    f"{self._path} could not be read within {_READ_LIMIT_S:.0f} s; look at its file system"
                )
            except Exception as error:  # noqa: BLE001 - the watch must go on, so that a repaired file can be applied
                _log.exception("config_not_read", path=str(self._path))
                return self._refuse(f"{self._path} could not be read: {error!r}")
            return self._apply(loaded, catalog)

    async def watch(self, stop: asyncio.Event) -> None:
        """Reload whenever the file changes, until ``stop`` is set."""
        async for _ in changes(self._path, stop, on_error=self._watch_failed):
            _ = await self.reload()

    async def aclose(self) -> None:
        """End the reading thread; one that hangs in a file system is left behind."""
        _ = await self._thread.aclose(timeout=_CLOSE_S)

    def _watch_failed(self, error: Exception) -> None:
        _log.warning("config_watch_failed", path=str(self._path), error=str(error), effect="the file is polled")

    def _apply(self, loaded: Loaded, catalog: Catalog) -> Result:
        changed = difference(self.settings, loaded.settings)
        for warning in loaded.warnings:
            _log.warning("config_warning", detail=str(warning))
        self.settings = loaded.settings
        self.error = ""
        before, self.applied_at = self.applied_at, self._now()
        self.restart_needed = difference(self._started_with, loaded.settings).restart_needed
        self._applied(loaded.settings, catalog)
        self._outcome(True)  # noqa: FBT003 - the outcome
        _log.info(
            "config_applied",
            path=str(self._path),
            added=list(changed.added),
            removed=list(changed.removed),
            changed=list(changed.changed),
            restart_needed=list(self.restart_needed),
        )
        detail = f"{len(changed.added)} added, {len(changed.removed)} removed, {len(changed.changed)} changed"
        if changed.nothing:
            detail = f"nothing has changed since it was applied {(self.applied_at - before) / SECOND:.1f} s ago"
        if self.restart_needed:
            detail += f"; takes effect after a restart only: {', '.join(self.restart_needed)}"
        return Result(ok=True, detail=detail)

    def _refuse(self, why: str) -> Result:
        self.error = why
        self._outcome(False)  # noqa: FBT003 - the outcome
        _log.error("config_refused", path=str(self._path), detail=why, effect="the previous configuration stays")
        return Result(ok=False, detail=why)


def _read(path: Path) -> tuple[Loaded, Catalog]:
    loaded = load(path)
    return loaded, compile_catalog(loaded.settings)
