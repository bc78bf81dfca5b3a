"""Keeps what happens to one request of plain form while it happens, and makes the record of it at its end.

What a class here says holds until the instance says otherwise: most requests differ from that in a few values only, and
writing out all of them for each is what costs.
"""

from time import time

from swapd.core.ids import SECOND, Instant, ModelName
from swapd.core.reasons import Rejection
from swapd.proxy.dialects import Dialect
from swapd.proxy.front.heads import RequestHead
from swapd.proxy.front.outlet import Outlet
from swapd.proxy.gate import Lease
from swapd.proxy.record import EVENT, RequestRecord, told_stages
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
        lease, outlet, head, first, usage = self.lease, self.outlet, self.head, self.first_byte, self.usage
        grant = None if lease is None else lease.grant
        # by position: names cost a microsecond
        return RequestRecord(
            time(),
            "",
            EVENT,
            outlet.request_id,
            None if lease is None else lease.request,
            self.model,
            None if grant is None else grant.instance,
            head.method_name,
            head.path,
            outlet.status,
            self.reason,
            None if lease is None else lease.outcome,
            lease is not None and lease.cold_start,
            told_stages(grant) if grant is not None and grant.stages else None,
            0.0 if lease is None else lease.waited / SECOND,
            None if lease is None or grant is None else (now - lease.arrived - grant.waited) / SECOND,
            None if first is None else (first - self.arrived) / SECOND,
            (now - self.arrived) / SECOND,
            self.size,
            self.bytes_out,
            usage.prompt_tokens,
            usage.completion_tokens,
        )
