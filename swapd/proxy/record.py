"""Says what is known of a request once it has ended; metrics and logs are made of it."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from swapd.core.commands import Grant
from swapd.core.ids import SECOND, InstanceId, ModelName, RequestId
from swapd.core.reasons import Outcome, Rejection

EVENT: Final = "request"


class RequestRecord(msgspec.Struct):
    """One inference request, from its head to its end; its fields are, in this order, those of its line in the log.

    Times are in seconds. A struct, because a dataclass of this size costs 2 µs more; one, because so does a second.
    """

    #: unix time of its end; once it is given to the log, a ``datetime``
    timestamp: Any
    #: of the line in the log, known when that is written
    level: str
    event: str
    #: value of ``x-request-id``
    request_id: str
    #: ``None``: it ended before it reached the core
    request: RequestId | None
    #: ``None``: it named no configured model
    model: ModelName | None
    #: ``None``: it was never granted
    instance: InstanceId | None
    method: str
    #: as received, without the query
    path: str
    #: status sent to the client; 0: the client left before any was sent
    status: int
    #: why swapd refused or ended it
    reason: Rejection | None
    #: as posted to the core; ``None``: it never reached it
    outcome: Outcome | None
    #: it waited for a load, whatever came of that
    cold_start: bool
    #: of a cold start, what it waited for
    stages: Mapping[str, float] | None
    #: from arrival at the core to the last grant, or to the refusal or departure without one
    waited_s: float
    #: from the last grant to the end; ``None``: it was never granted
    served_s: float | None
    #: from the head of the request to the first byte of the answer; ``None``: none was sent
    ttfb_s: float | None
    duration_s: float
    #: sizes of the bodies
    bytes_in: int
    bytes_out: int
    #: as counted by the engine, exact; ``None``: not told
    prompt_tokens: int | None
    completion_tokens: int | None
    logger: str = "swapd.requests"


def told_stages(grant: Grant) -> dict[str, float]:
    """Return the seconds of each stage that a request went through before its grant."""
    return {stage.value: round(duration / SECOND, 4) for stage, duration in grant.stages.items()}
