"""Starts and ends the process: a valid configuration or nothing, one loop, an exit status that says how it went."""

import asyncio
import gc
import os
import sys
from pathlib import Path
from typing import Final

import structlog
import uvloop

from swapd.admin.unix_socket import AdminSocketError
from swapd.agent import logs
from swapd.agent.daemon import EXIT_FAILED, Daemon
from swapd.agent.descriptors import raise_limit
from swapd.agent.places import Places
from swapd.agent.signals import Signals
from swapd.config import paths
from swapd.config.load import Loaded, load
from swapd.config.problems import ConfigError
from swapd.history.store import History

_YOUNG_OBJECTS: Final = 50_000

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("swapd")


def run(config: Path, *, log_format: logs.LogFormat, log_level: str) -> int:
    """Serve until a signal ends the daemon; return the exit status.

    0: asked to stop, and left cleanly; 1: could not start; 70: a law of the core was broken; 130: forced to stop.
    """
    gc.freeze()  # what the imports have made stays: nobody need look through it again
    try:
        loaded = load(config)
    except ConfigError as error:
        sys.stderr.write("".join(f"{problem}\n" for problem in error.problems))
        return EXIT_FAILED
    writer = logs.configure(log_format, log_level)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            status = runner.run(_serve(loaded))
    finally:
        written = writer.close()
    if not written:
        # the interpreter's own exit would wait for the stalled log
        os._exit(status)
    return status


async def _serve(loaded: Loaded) -> int:
    signals = Signals()
    signals.install()
    raise_limit()
    for warning in loaded.warnings:
        _log.warning("config_warning", detail=str(warning))
    try:
        places = Places(
            state=paths.state_path(loaded.settings),
            logs=paths.log_dir(loaded.settings),
            admin=paths.admin_socket(loaded.settings),
        )
    except paths.PathError as error:
        return _cannot_start(error)
    history = History(places.state, report=lambda trouble: _log.warning("history", detail=trouble))
    await history.start()
    daemon = Daemon(loaded, history, places, signals)
    try:
        await daemon.open()
    except (OSError, AdminSocketError) as error:
        status = _cannot_start(error)
        await daemon.leave(force=True)
        return status
    _spare_the_collector()
    return await daemon.live()


def _spare_the_collector() -> None:
    """Let the garbage collector look seldom, and not at what is there for good.

    Neither requests nor engines leave cycles behind, but many requests at once are many young objects: with the
    interpreter's own thresholds the collector takes a quarter of the time, looking through them and finding nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 100)


def _cannot_start(error: Exception) -> int:
    _log.error("cannot_start", detail=str(error))
    return EXIT_FAILED
