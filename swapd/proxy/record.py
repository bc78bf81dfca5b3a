"""Says what is known of a request once it has ended; metrics and logs are made of it."""

from collections.abc import Mapping

import msgspec

from swapd.core.ids import Duration, InstanceId, Instant, ModelName, RequestId
from swapd.core.reasons import Outcome, Rejection, Stage


class RequestRecord(msgspec.Struct, frozen=True):
    """One inference request, from its head to its end. A struct, because a dataclass of this size costs 2 µs more."""

    ended: Instant
    #: value of ``x-request-id``
    request_id: str
    #: ``None``: it ended before it reached the core
    request: RequestId | None
    #: ``None``: it named no configured model
    model: ModelName | None
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
    #: from arrival at the core to the last grant, or to the refusal or departure without one
    waited: Duration
    #: from the last grant to the end; ``None``: it was never granted
    served: Duration | None
    stages: Mapping[Stage, Duration]
    instance: InstanceId | None
    #: from the head of the request to the first byte of the answer; ``None``: none was sent
    ttfb: Duration | None
    duration: Duration
    #: sizes of the bodies
    bytes_in: int
    bytes_out: int
    #: as counted by the engine, exact; ``None``: not told
    prompt_tokens: int | None
    completion_tokens: int | None
