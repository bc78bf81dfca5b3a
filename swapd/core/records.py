"""Says what of a model's demand and verdict is to survive a restart; times are ages at the moment of the record."""

from dataclasses import dataclass

from swapd.core.ids import Duration, ModelName
from swapd.core.reasons import Verdict


@dataclass(frozen=True, slots=True)
class DemandRecord:
    """One model."""

    #: since it was first observed
    age: Duration
    #: requests ever counted
    arrivals: int
    #: sums that fade, as they were then: requests, episodes, seconds and GPU-seconds of loading, seconds of waiting
    requests: float
    episodes: float
    load_seconds: float
    own_gpu_seconds: float
    charged_gpu_seconds: float
    waited_seconds: float
    #: how long ago its loads of the last hour ended, oldest first
    loads: tuple[Duration, ...]
    #: how long ago, within a quarter of an hour, it came back soon after its own eviction, and who had evicted it
    relapses: tuple[tuple[Duration, ModelName], ...]
    #: whom it evicted, and what had not faded of the GPU-seconds of their reloads
    evicts: tuple[tuple[ModelName, float], ...]
    verdict: Verdict
    partner: ModelName | None
    #: pinned by ``on_thrash``
    thrash_pinned: bool
