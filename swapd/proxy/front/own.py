"""Answers what swapd knows by itself: its models, its health, and that there is nothing at a path."""

import structlog

from swapd.aio.turns import in_turns
from swapd.proxy import models_api
from swapd.proxy.desk import Desk
from swapd.proxy.errors import internal_error, method_not_allowed, not_found
from swapd.proxy.failure import Failure, RefusedError
from swapd.proxy.front.outlet import Outlet
from swapd.proxy.front.surroundings import Client
from swapd.proxy.routes import FORWARDED, Match, dialect_of

_log = structlog.get_logger(__name__)


class Listing:
    """The answer to a request for a list of models, which is built in turns; the client's connection waits for it."""

    #: bytes of its body that count
    size = 0

    def __init__(self, desk: Desk, client: Client, outlet: Outlet, match: Match) -> None:
        self.outlet = outlet
        self._desk = desk
        self._client = client
        self._match = match

    def begin(self) -> None:
        """Begin to build it."""
        try:
            _ = self._desk.services.tasks.start(self._answer(), name=f"list models {self.outlet.request_id}")
        except RuntimeError as error:
            # the daemon is closing
            self.fails(error)

    def client_left(self) -> None:
        """Take it that nothing can be written any more."""
        self.outlet.drop()

    def pause(self) -> None:
        """Write no more for now: it is written at once, or not yet."""

    def resume(self) -> None:
        """Write on: nothing waits."""

    def fails(self, error: Exception) -> None:
        """Tell of a bug."""
        _log.error("request_failed", request_id=self.outlet.request_id, exc_info=error)
        self.outlet.keep_alive = False
        self.outlet.error(internal_error(), self._match.route.dialect, self._desk.services.random)
        self._client.over()

    async def _answer(self) -> None:
        try:
            self.outlet.own(200, await in_turns(models_api.answer_in_steps(self._desk.services, self._match)))
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this one request
            self.fails(error)
        else:
            self._client.over()


def is_listing(match: Match, method: str) -> bool:
    """Tell whether the answer is to be built in turns."""
    return match.route.kind in models_api.LISTINGS and method in match.route.methods


def answer_here(desk: Desk, outlet: Outlet, match: Match | None, *, method: str, path: str) -> bool:
    """Write the answer if it is swapd's own; ``False``: the request is for an engine."""
    services = desk.services
    failure: Failure
    if match is None:
        failure = not_found(path)
    elif match.route.methods and method not in match.route.methods:
        failure = method_not_allowed(method, match.route.methods)
    elif match.route.kind in FORWARDED:
        return False
    else:
        try:
            body = models_api.answer(services, match)
        except RefusedError as error:
            failure = error.failure
        else:
            outlet.own(200, body)
            return True
    outlet.error(failure, dialect_of(path), services.random)
    return True
