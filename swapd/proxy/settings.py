"""Lists the limits and times of the front door."""

from dataclasses import dataclass

from swapd.core.ids import SECOND, Bytes, Duration


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Values from the configuration's ``http`` section, and constants that tests shorten."""

    #: requests of plain form are served on raw protocols
    fast_path: bool = True
    #: of one request
    max_body: Bytes = Bytes(64 << 20)
    #: of all waiting requests together
    max_buffered: Bytes = Bytes(512 << 20)
    #: a stream that waits for its model gets a comment this often; ``None``: off
    sse_keepalive: Duration | None = None
    #: from the first byte of a request's head to its last
    head_timeout: Duration = Duration(30 * SECOND)
    #: an upload without a byte for this long is ended
    upload_stall: Duration = Duration(30 * SECOND)
    #: after this an upload must have been as fast as the floor on average
    upload_grace: Duration = Duration(60 * SECOND)
    #: the floor, bytes per second
    upload_min_rate: int = 8192
    #: to an engine on this node
    connect_timeout: Duration = Duration(5 * SECOND)
    #: ``on_client_abort: finish`` reads an abandoned answer for at most this long
    finish_timeout: Duration = Duration(600 * SECOND)
    #: a broken-off answer to a client that does not read is dropped after this
    break_off_timeout: Duration = Duration(5 * SECOND)
    #: of one WebSocket message
    max_ws_message: Bytes = Bytes(16 << 20)
