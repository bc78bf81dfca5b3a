"""Reads the files of models into the page cache on orders: one reading at a time for each model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from swapd.aio.supervise import Tasks
from swapd.aio.threads import Stop, on_own_thread
from swapd.core.ids import Bytes, ModelName
from swapd.weights.page_cache import Warming, Warmth, resident_bytes
from swapd.weights.settings import CacheSettings

_log = structlog.get_logger(__name__)


class ReadAhead:
    """What is being read; on the event loop. ``files`` are listed by functions that block and raise ``OSError``."""

    def __init__(self, settings: CacheSettings, *, tell: Callable[[ModelName, Warmth], None], tasks: Tasks) -> None:
        """``tell`` is called, from a task, when a reading has ended."""
        self._settings = settings
        self._tell = tell
        self._tasks = tasks
        self._running: dict[ModelName, Stop] = {}

    def order(self, model: ModelName, files: Callable[[], list[Path]]) -> None:
        """Read; joins a reading of this model that goes on."""
        if model not in self._running:
            stop = self._running[model] = Stop()
            _ = self._tasks.start(self._read(model, files, stop), name="read weights into the page cache")

    def stop(self, model: ModelName) -> None:
        """End a reading; it is told as it stands then."""
        stop = self._running.get(model)
        if stop is not None:
            stop()

    def close(self) -> None:
        """End all of them."""
        for stop in self._running.values():
            stop()

    async def _read(self, model: ModelName, files: Callable[[], list[Path]], stop: Stop) -> None:
        settings = self._settings

        def read() -> Warmth:
            paths = files()
            warmth = Warming(paths, readers=settings.readers, spare=settings.spare_memory, stop=stop).run()
            return warmth if paths else replace(warmth, whole=False)

        warmth = Warmth(0, 0, whole=False)
        try:
            warmth = await on_own_thread(read, name="swapd-warm", stop=stop)
        except OSError as error:
            _log.warning("weights_not_read", model=model, error=str(error))
        finally:
            del self._running[model]
        self._tell(model, warmth)


async def in_memory(files: Callable[[], list[Path]]) -> Bytes:
    """Return how much of some files is in the page cache. Raises ``OSError``."""
    return Bytes(await on_own_thread(lambda: sum(map(resident_bytes, files())), name="swapd-mincore"))
