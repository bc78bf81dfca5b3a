"""Keeps what happens to one request of plain form while it happens, and makes the record of it at its end.

What a class here says holds until the instance says otherwise: most requests differ from that in a few values only, and
writing out all of them for each is what costs.
"""

from swapd.core.ids import Duration, Instant, ModelName
from swapd.core.reasons import Rejection
from swapd.proxy.dialects import Dialect
from swapd.proxy.front.heads import RequestHead
from swapd.proxy.front.outlet import Outlet
from swapd.proxy.gate import Lease
from swapd.proxy.record import RequestRecord
from swapd.proxy.usage import NOTHING_TOLD, Usage


class Account:
    """The facts about one request."""

    head: RequestHead
    outlet: Outlet
    arrived: Instant
    #: in which errors are told; ``None``: the route's
    dialect: Dialect | None = None
    model: ModelName | None = None
    lease: Lease | None = None
    reason: Rejection | None = None
    first_byte: Instant | None = None
    #: bytes of the body that have come
    size = 0
    bytes_out = 0
    usage: Usage = NOTHING_TOLD

    @property
    def told_in(self) -> Dialect:
        """Return the dialect in which errors are told."""
        assert self.head.match is not None
        return self.dialect or self.head.match.route.dialect

    def record(self, now: Instant) -> RequestRecord:
        """Return what is to be told of the request, which has ended."""
        lease, outlet, head, first = self.lease, self.outlet, self.head, self.first_byte
        grant = lease.grant if lease is not None else None
        # by position: names cost a microsecond
        return RequestRecord(
            now,
            outlet.request_id,
            lease.request if lease is not None else None,
            self.model,
            head.method_name,
            head.path,
            outlet.status,
            self.reason,
            lease.outcome if lease is not None else None,
            lease.cold_start if lease is not None else False,
            lease.waited if lease is not None else Duration(0),
            None if lease is None or grant is None else Duration(now - lease.arrived - grant.waited),
            grant.stages if grant is not None else {},
            grant.instance if grant is not None else None,
            None if first is None else Duration(first - self.arrived),
            Duration(now - self.arrived),
            self.size,
            self.bytes_out,
            self.usage.prompt_tokens,
            self.usage.completion_tokens,
        )
