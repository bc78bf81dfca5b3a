"""Describes one refusal or breakdown as HTTP will tell it, independent of the client's dialect."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from swapd.core.ids import Duration
from swapd.core.reasons import Rejection


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of swapd's own making."""

    status: int
    #: OpenAI's ``type``
    type: str
    #: OpenAI's ``code``
    code: str
    #: one sentence for the person who reads it: what is wrong and what to do
    message: str
    #: header ``x-swapd-reason``; ``None`` only for a bug of swapd itself
    reason: Rejection | None = None
    #: the field of the request that is at fault
    param: str | None = None
    #: when trying again makes sense, not yet clamped; ``None``: not said
    retry_after: Duration | None = None
    #: trying the same again cannot help
    permanent: bool = False
    #: further headers
    headers: Mapping[str, str] = field(default_factory=dict)
    #: the connection is closed after this answer
    close: bool = False


class RefusedError(Exception):
    """The request is answered with a failure; raised wherever it is found out, caught in one place."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
