"""Keeps how the driver stands: the state that the core is told, and for how long it has been good or bad.

Rules that hold here:

* While an answer is overdue the state is STALLED, whatever else it is. After that several polls must be in time before
  it is UP again, so that a driver which stalls again and again does not make the node flap.
* The driver has failed when several polls in a row failed as a whole.
"""

from collections.abc import Callable

from swapd.core.ids import Instant
from swapd.core.topology import DriverState
from swapd.gpus.driver import state_after, trouble
from swapd.gpus.errors import NvmlError
from swapd.gpus.health import Patience


class Standing:
    """The state of the driver; on the event loop."""

    def __init__(
        self, *, patience: Patience, now: Callable[[], Instant], publish: Callable[[DriverState, str], None]
    ) -> None:
        """``publish`` is told state and sentence whenever they, or what is known of the GPUs, may have changed."""
        self._patience = patience
        self._now = now
        self._publish = publish
        #: apart from being late
        self.state = DriverState.STARTING
        self._sentence = ""
        #: since when an answer is overdue; ``None``: none is
        self.late_since: Instant | None = None
        #: answers that were overdue so far
        self.stalls = 0
        #: polls that must be in time before it counts as up again
        self._unsettled = 0
        #: polls in a row that failed as a whole, and that did not
        self._bad = self._good = 0

    @property
    def unsettled(self) -> bool:
        """Whether it has to prove itself after a stall."""
        return self._unsettled > 0

    @property
    def steady(self) -> bool:
        """Whether it has been good for a while."""
        return self._good >= self._patience.clean

    @property
    def sentence(self) -> str:
        """What is wrong, as published; empty: nothing."""
        return trouble(DriverState.STALLED) if self._stalled else self._sentence

    @property
    def _stalled(self) -> bool:
        return self.late_since is not None or (self.unsettled and self.state is DriverState.UP)

    def be(self, state: DriverState, sentence: str | None = None) -> None:
        """Take on a state; ``sentence`` says what is wrong, ``None`` what is always said of this state."""
        self.state = state
        self._sentence = trouble(state) if sentence is None else sentence
        if state is DriverState.UP:
            self._bad = self._good = 0
        self.show()

    def fail(self, error: NvmlError) -> None:
        """Take on the state of a driver that answers so."""
        state = state_after(error)
        self.be(state, trouble(state, error))

    def late(self, overdue: bool) -> None:  # noqa: FBT001 - the only word there is
        """Hear that an answer is overdue, or that it has come."""
        self.late_since = self._now() if overdue else None
        if overdue:
            self.stalls += 1
            self._unsettled = self._patience.bad
            self.show()

    def polled(self, error: NvmlError | None, *, in_time: bool) -> None:
        """Hear how a poll went; ``error``: the driver failed as a whole."""
        if error is None:
            self._bad, self._good = 0, self._good + 1
            if in_time:
                self._unsettled = max(0, self._unsettled - 1)
            self.show()
            return
        self._bad, self._good = self._bad + 1, 0
        if self._bad >= self._patience.bad:
            self.fail(error)

    def show(self) -> None:
        """Publish."""
        self._publish(DriverState.STALLED if self._stalled else self.state, self.sentence)
