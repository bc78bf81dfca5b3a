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
        lease = self.lease
        grant = lease.grant if lease is not None else None
        return RequestRecord(
            request_id=self.outlet.request_id,
            request=lease.request if lease is not None else None,
            model=self.model,
            method=self.head.method.decode("ascii"),
            path=self.head.path,
            status=self.outlet.status,
            reason=self.reason,
            outcome=lease.outcome if lease is not None else None,
            cold_start=lease.cold_start if lease is not None else False,
            waited=lease.waited if lease is not None else Duration(0),
            served=None if lease is None or grant is None else Duration(now - lease.arrived - grant.waited),
            stages=grant.stages if grant is not None else {},
            instance=grant.instance if grant is not None else None,
            ttfb=None if self.first_byte is None else Duration(self.first_byte - self.arrived),
            duration=Duration(now - self.arrived),
            bytes_in=self.size,
            bytes_out=self.bytes_out,
            prompt_tokens=self.usage.prompt_tokens,
            completion_tokens=self.usage.completion_tokens,
        )
