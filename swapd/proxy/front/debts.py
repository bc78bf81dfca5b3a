"""Says what a client owes its connection, and when it has taken too long to send it.

Only who owes something has a limit in time: a client that is idle between requests, or that waits for an answer, may
take as long as it likes.
"""

import enum
from typing import Final

from swapd.core.ids import SECOND
from swapd.proxy.body import upload_deadline
from swapd.proxy.settings import ProxySettings

_LINGERING_S: Final = 10.0
"""A refused body is read and dropped for so long, that the client may come to read the refusal."""


class Owes(enum.Enum):
    """What the client is expected to send."""

    NOTHING = enum.auto()
    HEAD = enum.auto()
    BODY = enum.auto()
    #: the rest of a body that nobody wants
    REFUSED = enum.auto()


# on Python 3.11 a member costs ten times as much as a global
NOTHING: Final = Owes.NOTHING
HEAD: Final = Owes.HEAD
BODY: Final = Owes.BODY
REFUSED: Final = Owes.REFUSED


def is_late(owes: Owes, settings: ProxySettings, *, since: float, last: float, size: int, now: float) -> bool:
    """Tell whether what has been owed ``since`` is late; of a body, ``size`` bytes have come, ``last`` the last ones.

    All moments are loop times.
    """
    match owes:
        case Owes.NOTHING:
            return False
        case Owes.HEAD:
            return now - since > settings.head_timeout / SECOND
        case Owes.BODY:
            return now > upload_deadline(settings, since, last, size)
        case Owes.REFUSED:
            return now - since > _LINGERING_S
