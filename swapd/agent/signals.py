"""Turns signals into events: SIGTERM and SIGINT stop, a second one forces, SIGHUP reads the configuration again."""

import asyncio
import signal

import structlog

_log: structlog.typing.FilteringBoundLogger = structlog.get_logger("swapd")


class Signals:
    """What the daemon was told by signals."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.force = asyncio.Event()
        self.hangup = asyncio.Event()

    def install(self) -> None:
        """Take over the signals of the running loop's process."""
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._stop, signum)
        loop.add_signal_handler(signal.SIGHUP, self.hangup.set)

    def _stop(self, signum: signal.Signals) -> None:
        if self.stop.is_set():
            _log.warning("forced", signal=signal.Signals(signum).name, effect="engines are killed")
            self.force.set()
            return
        _log.info("signal", signal=signal.Signals(signum).name)
        self.stop.set()
