"""Lists the orders about weights, and the note that a fetch has ended; ``commands`` says what orders and notes are."""

from dataclasses import dataclass

from swapd.core.ids import Bytes, Duration, ModelName
from swapd.core.reasons import FetchFailure


@dataclass(frozen=True, slots=True)
class KeepWeights:
    """Tell the weight cache anew what it must keep (``Scheduler.standings``). No answer.

    Given before any other order of the same step that rests on it.
    """


@dataclass(frozen=True, slots=True)
class FetchWeights:
    """Bring a model's weights to this node. Answer: WeightsFetched or FetchFailed.

    Given again with ``ahead=False`` while it runs, it goes before others; there is still one answer.
    """

    model: ModelName
    #: nobody waits for it yet: fetches that somebody waits for go first
    ahead: bool


@dataclass(frozen=True, slots=True)
class RefetchWeights:
    """Give up the copy of a model, which is damaged, and fetch it anew. Answer: WeightsFetched or FetchFailed."""

    model: ModelName


@dataclass(frozen=True, slots=True)
class CancelFetch:
    """End a fetch. Its answer is FetchFailed (cancelled), unless it has just ended by itself."""

    model: ModelName


@dataclass(frozen=True, slots=True)
class WarmWeights:
    """Read a model's copy into the page cache, as far as memory allows. Answer: WeightsWarmed."""

    model: ModelName


@dataclass(frozen=True, slots=True)
class StopWarming:
    """End the reading of a model's copy; its WeightsWarmed tells how far it came."""

    model: ModelName


@dataclass(frozen=True, slots=True)
class VerifyWeights:
    """Compare a model's copy with its checksums. Answer: WeightsVerified."""

    model: ModelName


@dataclass(frozen=True, slots=True)
class FetchEnded:
    """Note: a fetch of weights has ended."""

    model: ModelName
    #: bytes that came from the source
    fetched: Bytes
    took: Duration
    #: ``None``: the copy is here
    failure: FetchFailure | None = None
    #: one sentence; empty: nothing is wrong
    detail: str = ""


WeightOrder = KeepWeights | FetchWeights | RefetchWeights | CancelFetch | WarmWeights | StopWarming | VerifyWeights
