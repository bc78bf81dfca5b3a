"""The life of NVML in this process: begun once, let go only when it fails or an operator wants the GPUs.

Rules that hold here:

* One task asks, one question after the other; nothing is asked while an answer is overdue.
* NVML is begun again only after it could not be begun, after it failed as a whole, or after an operator had the GPUs:
  with growing delays, which start over only once the driver has been good for a while. Every handle is then stale; the
  discovery brings new ones.
* It is shut down only after the event threads have ended, because they wait inside it.
"""

import asyncio

import structlog

from swapd.aio.backoff import Backoff
from swapd.core.ids import SECOND
from swapd.core.topology import DriverState
from swapd.gpus.errors import DriverError, NvmlError, UninitializedError
from swapd.gpus.line import Line
from swapd.gpus.nvml import Nvml
from swapd.gpus.rounds import Rounds
from swapd.gpus.settings import GpuSettings
from swapd.gpus.standing import Standing

_log = structlog.get_logger(__name__)


class Life:
    """The one task that asks NVML; on one event loop."""

    def __init__(self, nvml: Nvml, settings: GpuSettings, *, line: Line, standing: Standing, rounds: Rounds) -> None:
        self._nvml = nvml
        self._deadline = settings.poll_deadline
        self._line = line
        self._standing = standing
        self._rounds = rounds
        self._backoff = Backoff(first=settings.retry_first / SECOND, cap=settings.retry_cap / SECOND)
        #: tries to begin since the driver was last good for a while
        self._tries = 0
        #: NVML counts an Init that was not shut down
        self.begun = False
        self._wanted = True
        #: it is not wanted, and NVML is shut down unless it refused (``begun``)
        self.let_go = asyncio.Event()
        #: the last try to begin has ended
        self.tried = asyncio.Event()

    def want(self, *, wanted: bool) -> None:
        """Say whether NVML is to be used; the task acts on it as soon as no call runs."""
        if wanted is self._wanted:
            return
        self._wanted = wanted
        self._tries = 0
        if self.let_go.is_set():
            self.let_go.clear()
            self.tried.clear()
        self._rounds.wake()

    @property
    def wanted(self) -> bool:
        """Whether NVML is to be used."""
        return self._wanted

    async def run(self) -> None:
        """Live until cancelled; what nobody foresaw is logged and counts as a failure of the driver."""
        while True:
            try:
                await self._turn()
            except Exception as error:  # noqa: BLE001 - a room that nobody watches would be stale for ever
                _log.exception("gpus_not_understood")
                self._standing.be(DriverState.FAILED, f"what NVML answered was not understood, see the log: {error}")
                await self._close()
            if self._wanted:
                await self._rounds.sleep(self._backoff.delay(self._tries))
                self._tries += 1

    async def _turn(self) -> None:
        """Live until NVML has failed or could not be begun, or an operator wants the GPUs or something of them."""
        if not self._wanted:
            self._rounds.hush()
            await self._close()
            if not self.begun:
                self._standing.be(DriverState.RELEASED)
            self.let_go.set()
            await self._rounds.sleep(None)
            if not self._wanted:
                return
            self._standing.be(DriverState.STARTING)
        if await self._open():
            await self._serve()
            await self._close()

    async def _open(self) -> bool:
        """Begin NVML and discover; ``False``: the state says why not, and NVML is not begun."""
        try:
            await self._line.ask(self._begin, deadline=self._deadline)
            await self._rounds.begin()
        except (NvmlError, DriverError) as error:
            self._standing.fail(error.error if isinstance(error, DriverError) else error)
            await self._close()
        else:
            self._standing.be(DriverState.UP)
        self.tried.set()
        return self._standing.state is DriverState.UP

    async def _serve(self) -> None:
        while self._wanted and self._standing.state is DriverState.UP:
            await self._rounds.next()
            if self._standing.steady:
                self._tries = 0

    def _begin(self) -> None:
        if not self.begun:
            self._nvml.init()
            self.begun = True

    async def _close(self) -> None:
        """Shut NVML down; one that refuses stays begun, because another Init would be counted on top."""
        if not self.begun:
            return
        await self._line.wait(self._rounds.end(), deadline=self._deadline)
        try:
            await self._line.ask(self._nvml.shutdown, deadline=self._deadline)
        except NvmlError as error:
            _log.warning("nvml_not_shut_down", error=str(error))
            self.begun = not isinstance(error, UninitializedError)
        else:
            self.begun = False
