"""Answers what swapd knows by itself: its models, its health, and that there is nothing at a path."""

import msgspec

from swapd.proxy import models_api
from swapd.proxy.desk import Desk
from swapd.proxy.errors import method_not_allowed, not_found
from swapd.proxy.failure import Failure, RefusedError
from swapd.proxy.front.outlet import Outlet
from swapd.proxy.routes import FORWARDED, Match, dialect_of


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
            body = msgspec.json.encode(models_api.answer(services, match))
        except RefusedError as error:
            failure = error.failure
        else:
            outlet.own(200, body)
            return True
    outlet.error(failure, dialect_of(path), services.random)
    return True
