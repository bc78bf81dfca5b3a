"""Keeps one client's connection: reads requests of plain form, and hands everything else over to aiohttp.

One request is served at a time; what is sent meanwhile is held, up to a limit beyond which nothing more is read. A
connection that was handed over stays there. Time runs only for a client that owes something: the rest of a head, of a
body, or of a body that was refused. It is looked at by the server's sweep, so that no request costs a timer.
"""

import asyncio
from typing import Final, cast

import structlog
from typing_extensions import override

from swapd.proxy.body import buffer_full, too_large, too_slow
from swapd.proxy.failure import Failure
from swapd.proxy.front.arena import LARGE, BodyReceiver
from swapd.proxy.front.debts import BODY, HEAD, NOTHING, REFUSED, Owes, is_late
from swapd.proxy.front.exchange import FrontExchange
from swapd.proxy.front.heads import RequestHead, could_begin, could_follow, read_head
from swapd.proxy.front.outlet import Outlet
from swapd.proxy.front.own import Listing, answer_here, is_listing
from swapd.proxy.front.surroundings import Server
from swapd.proxy.request_id import OWN, request_id_of
from swapd.proxy.routes import Kind

_HELD: Final = 64 << 10
"""Bytes that are read ahead of the request being served."""

_log = structlog.get_logger(__name__)


class ClientConnection(asyncio.Protocol):
    """One connection."""

    __slots__ = (
        "_body",
        "_exchange",
        "_head",
        "_held",
        "_last",
        "_left",
        "_owes",
        "_reading_paused",
        "_server",
        "_since",
        "_transport",
        "_writing_paused",
        "closing",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._exchange: FrontExchange | Listing | None = None
        #: the latest, of which the next one may be a repetition
        self._head: RequestHead | None = None
        #: bytes that have come and are not looked at yet
        self._held = b""
        #: what has come of a small body that is not complete
        self._body: bytearray | None = None
        #: bytes of a body that are still to come
        self._left = 0
        self._owes = NOTHING
        #: loop times: since when the client owes something, and of its last bytes
        self._since = self._last = 0.0
        self._reading_paused = self._writing_paused = False
        #: no further request is taken
        self.closing = False

    # ── what the server says ─────────────────────────────────────────────────────────────────────────────────────

    def close_when_idle(self) -> None:
        """Take no further request."""
        self.closing = True
        if self._exchange is None and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def in_time(self, now: float) -> bool:
        """End what takes too long; ``False``: the client owes nothing any more."""
        size = 0 if self._exchange is None else self._exchange.size
        if is_late(self._owes, self._server.desk.settings, since=self._since, last=self._last, size=size, now=now):
            if self._owes is BODY:
                self._refuse(too_slow(), close=True)
            elif self._transport is not None:
                self._owes = NOTHING
                self._transport.close()
        return self._owes is not NOTHING

    # ── called by the transport ──────────────────────────────────────────────────────────────────────────────────

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._server.opened(self)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._owes, self._held = NOTHING, b""
        self._server.closed(self)
        if self._exchange is not None:
            self._exchange.client_left()

    @override
    def data_received(self, data: bytes) -> None:
        try:
            if self._owes is BODY:
                self._read_body(data)
            elif self._owes is REFUSED:
                self._pass_over(data)
            elif self._exchange is not None or self._writing_paused:
                self._hold(data)
            else:
                self._read(self._held + data if self._held else data)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this one connection
            self._failed(error)

    @override
    def eof_received(self) -> bool:
        waits = isinstance(self._exchange, Listing)  # but what an engine does for who has stopped sending ends
        self.closing |= waits
        return waits

    @override
    def pause_writing(self) -> None:
        self._writing_paused = True
        if self._exchange is not None:
            self._exchange.pause()

    @override
    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._exchange is not None:
            self._exchange.resume()
        elif self._held:
            self._go_on()

    # ── heads ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, data: bytes) -> None:
        """Begin with the next request."""
        self._held = b""
        head = self._head
        digits = None if head is None else head.length_in(data)
        if digits is None:
            if data.startswith(b"\r\n"):
                # some clients send an empty line after a body
                data = data.lstrip(b"\r\n")
            if not data:
                self._owes = NOTHING
                return
            found = read_head(data)
            if found is None:
                self._read_odd(data)
                return
            head, digits = found
            self._head = head
        assert head is not None
        start = head.size + len(digits)
        length = int(digits or b"0")
        came = len(data) - start
        if came > length and not could_follow(data[start + length :]):
            # perhaps no request at all: then this one is not to be believed either
            self._hand_over(data)
            return
        self._owes = NOTHING
        server, transport = self._server, self._transport
        assert transport is not None
        request_id = next(OWN) if head.client_id is None else request_id_of(head.client_id)
        outlet = Outlet(transport, server.date, request_id, head.bodiless, head.keep_alive and not self.closing)
        self._left = length
        if not head.is_inference and self._is_done_here(head, outlet, data, start):
            return
        exchange = self._exchange = FrontExchange(server, self, head, digits, outlet)
        if came != length or length > server.desk.settings.max_body:
            self._receive(exchange, data[start:], length)
            return
        # the common case
        self._left = 0
        if not exchange.begin_at_once(data[start:]):
            self._refuse(buffer_full())

    def _is_done_here(self, head: RequestHead, outlet: Outlet, data: bytes, start: int) -> bool:
        """Answer what is not for an engine, or hand it over; ``False``: it is for one. The body begins at ``start``."""
        server, match = self._server, head.match
        if match is not None and match.route.kind is Kind.WEBSOCKET:
            self._hand_over(data)
            return True
        if match is not None and is_listing(match, head.method_name):
            self._held, self._exchange = data[start:], Listing(server.desk, self, outlet, match)
            self._exchange.begin()
            return True
        if not answer_here(server.desk, outlet, match, method=head.method_name, path=head.path):
            return False
        self._after(data[start:], keep_alive=outlet.keep_alive)
        return True

    def _read_odd(self, data: bytes) -> None:
        """Wait for the rest of a head, or leave it to aiohttp."""
        if b"\r\n\r\n" in data or not could_begin(data):
            self._hand_over(data)
            return
        self._held = data
        if self._owes is not HEAD:
            self._owe(HEAD)

    def _hand_over(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        self._transport = None
        self._owes = NOTHING
        self._server.closed(self)
        self._resume_reading(transport)
        other = self._server.fallback()
        transport.set_protocol(other)
        other.connection_made(transport)
        if self._writing_paused:
            other.pause_writing()
        other.data_received(data)

    def _hold(self, data: bytes) -> None:
        """Keep what comes while a request is served; a client that leaves is noticed as long as it is read from."""
        self._held += data
        if len(self._held) > _HELD and not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self, transport: asyncio.Transport) -> None:
        if self._reading_paused:
            self._reading_paused = False
            transport.resume_reading()

    # ── bodies ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _receive(self, exchange: FrontExchange, data: bytes, length: int) -> None:
        """Take the body as far as it has come with its head, perhaps with more behind it."""
        desk = self._server.desk
        came = len(data)
        if came > length and length <= desk.settings.max_body:
            self._left, self._held = 0, data[length:]
            if not exchange.begin_at_once(data[:length]):
                self._refuse(buffer_full())
            return
        self._left = length
        if length > desk.settings.max_body:
            self._held = data
            self._refuse(too_large(desk.settings.max_body))
        elif length > desk.budget.free:
            self._held = data
            self._refuse(buffer_full())
        elif self.body_came(came):
            self._owe(BODY)
            if length > LARGE:
                assert self._transport is not None
                memory = self._server.take_memory(length)
                self._transport.set_protocol(BodyReceiver(self, exchange.read_while_it_comes(), memory, length, data))
            else:
                self._body = bytearray(data)

    def _read_body(self, data: bytes) -> None:
        body, exchange = self._body, self._exchange
        assert body is not None
        assert isinstance(exchange, FrontExchange)
        data, beyond = data[: self._left], data[self._left :]
        if self.body_came(len(data), beyond):
            body += data
            if self._held and not could_follow(self._held):
                self._exchange = None
                self._hand_over(exchange.withdraw() + body + self._held)
            elif not self._left:
                self._owes, self._body = NOTHING, None
                exchange.begin(bytes(body))

    def body_came(self, count: int, beyond: bytes = b"") -> bool:
        """Take it that bytes of the body have come, perhaps with some beyond; ``False``: no more of it is wanted."""
        assert isinstance(self._exchange, FrontExchange)
        self._left -= count
        self._held = beyond
        if not self._exchange.book(count):
            self._refuse(buffer_full())
            return False
        if self._owes is BODY:
            self._last = asyncio.get_running_loop().time()
        return True

    def body_complete(self, body: memoryview) -> None:
        """Serve the request of a large body, in a turn of its own: to receive and to read it takes a while each."""
        assert self._transport is not None
        assert isinstance(self._exchange, FrontExchange)
        self._owes = NOTHING
        self._transport.set_protocol(self)
        _ = asyncio.get_running_loop().call_soon(self._begin, self._exchange, body)

    def rest(self) -> None:
        """Read no more of a large body in this turn: to look at what has come has taken a while."""
        assert self._transport is not None
        self._transport.pause_reading()
        _ = asyncio.get_running_loop().call_soon(self._rested, self._transport)

    def _rested(self, transport: asyncio.Transport) -> None:
        if not self._reading_paused and not transport.is_closing():
            transport.resume_reading()

    def _begin(self, exchange: FrontExchange, body: memoryview) -> None:
        if self._exchange is not exchange:
            # the client has left meanwhile
            self._server.give_back(body)
            return
        try:
            if self._held and not could_follow(self._held):
                self._exchange = None
                received = b"".join((exchange.withdraw(), body, self._held))
                self._server.give_back(body)
                self._hand_over(received)
            else:
                exchange.begin(body)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this one connection
            self._failed(error)

    def _refuse(self, failure: Failure, *, close: bool = False) -> None:
        """Answer before the body is complete; what is still to come of it is read and dropped."""
        exchange, transport = self._exchange, self._transport
        assert isinstance(exchange, FrontExchange)
        assert transport is not None
        if self._owes is BODY and self._body is None:
            transport.set_protocol(self)
        self._owes, self._body = NOTHING, None
        exchange.outlet.keep_alive = exchange.outlet.keep_alive and not close
        exchange.refuse(failure)

    def _pass_over(self, data: bytes) -> None:
        """Drop what belongs to a body that nobody wants."""
        dropped = min(len(data), self._left)
        self._left -= dropped
        if not self._left:
            self._owes = NOTHING
            self._after(data[dropped:], keep_alive=not self.closing)

    # ── between requests ─────────────────────────────────────────────────────────────────────────────────────────

    def over(self) -> None:
        """Go on after an answer (called by the exchange)."""
        exchange, self._exchange = self._exchange, None
        if exchange is None or self._transport is None:
            return
        keep_alive = exchange.outlet.keep_alive
        if self._held or self._left or self._reading_paused or self.closing or not keep_alive:
            self._after(self._held, keep_alive=keep_alive)

    def _after(self, data: bytes, *, keep_alive: bool) -> None:
        """Go on with ``data`` once an answer has been written."""
        transport = self._transport
        assert transport is not None
        if not keep_alive:
            self.closing = True
        if self._left:
            dropped = min(len(data), self._left)
            self._left -= dropped
            data = data[dropped:]
        self._held = data
        if self._left and not transport.is_closing():
            self._owe(REFUSED)
            self._resume_reading(transport)
        elif self.closing:
            transport.close()
        elif self._held:
            # in a turn of its own: nobody has the loop for himself by sending many requests at once
            _ = asyncio.get_running_loop().call_soon(self._go_on)
        elif self._reading_paused:
            self._resume_reading(transport)

    def _go_on(self) -> None:
        transport = self._transport
        # what came before this turn was read with what was held, and the rest of it may be a refused body's
        idle = self._held and self._exchange is None and not self._writing_paused
        if not idle or transport is None or transport.is_closing():
            return
        self._resume_reading(transport)
        try:
            self._read(self._held)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this one connection
            self._failed(error)

    def _owe(self, what: Owes) -> None:
        self._owes = what
        self._since = self._last = asyncio.get_running_loop().time()
        self._server.watch(self)

    def _failed(self, error: Exception) -> None:
        """End a connection that a bug has hit."""
        if self._exchange is not None:
            self._exchange.fails(error)
        else:
            _log.error("connection_failed", exc_info=error)
            self.abort()
