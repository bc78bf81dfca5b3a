"""Decides how each reason looks in HTTP: one table from reason to status, type, code and Retry-After.

429 means contended, 503 means it cannot be served now. The body is written in the dialect of the route
(``dialects.py``). OpenAI's SDKs do not retry when told to wait more than 120 s, so longer waits are cut to that.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from aiohttp import hdrs, web

from swapd.core.commands import Reject
from swapd.core.ids import SECOND, Duration
from swapd.core.reasons import Rejection
from swapd.proxy.dialects import Dialect, error_body
from swapd.proxy.failure import Failure, RefusedError

_LONGEST_WAIT_S: Final = 120
_JITTER: Final = 0.1
"""Share of the wait that is added at random, so that refused clients do not come back all at once."""


class Form(NamedTuple):
    """HTTP form of a reason; ``retry_s`` is said when the core names no time."""

    status: int
    type: str
    code: str
    retry_s: int | None


_BAD = "invalid_request_error"
_BUSY = "rate_limit_error"
_AWAY = "service_unavailable_error"

FORMS: Final[dict[Rejection, Form]] = {
    Rejection.INVALID_REQUEST: Form(400, _BAD, "invalid_request", None),
    Rejection.UNAUTHORIZED: Form(401, _BAD, "invalid_api_key", None),
    Rejection.FORBIDDEN_MODEL: Form(403, _BAD, "model_not_allowed", None),
    Rejection.UNKNOWN_MODEL: Form(404, _BAD, "model_not_found", None),
    Rejection.MANUAL_MODE: Form(409, _BAD, "manual_mode", None),
    Rejection.BODY_TOO_LARGE: Form(413, _BAD, "request_too_large", None),
    Rejection.QUEUE_FULL: Form(429, _BUSY, "model_queue_full", 5),
    Rejection.BUFFER_FULL: Form(429, _BUSY, "buffer_full", 5),
    Rejection.KEY_LIMIT: Form(429, _BUSY, "key_limit", 5),
    Rejection.NO_CAPACITY: Form(503, _AWAY, "no_capacity", 30),
    Rejection.ALL_PINNED: Form(503, _AWAY, "no_capacity", 60),
    Rejection.ETA_EXCEEDS_MAX_WAIT: Form(503, _AWAY, "no_capacity", 30),
    Rejection.WAIT_TIMEOUT: Form(503, _AWAY, "model_loading", 10),
    Rejection.LOAD_FAILED: Form(503, _AWAY, "model_load_failed", 30),
    Rejection.COOLING_DOWN: Form(503, _AWAY, "model_load_failed", 30),
    Rejection.DRAINING: Form(503, _AWAY, "shutting_down", 5),
    Rejection.DEGRADED: Form(503, _AWAY, "no_capacity", 30),
    Rejection.UPSTREAM_FAILED: Form(502, "api_error", "upstream_failed", 1),
    Rejection.UPSTREAM_TIMEOUT: Form(504, "api_error", "upstream_timeout", 5),
}


def failure_of(reason: Rejection, message: str, *, param: str | None = None, permanent: bool = False) -> Failure:
    """Return the failure for a reason, in the form of the table."""
    form = FORMS[reason]
    lasting = permanent or reason is Rejection.MANUAL_MODE
    return Failure(
        status=form.status,
        type=form.type,
        code=form.code,
        message=message,
        reason=reason,
        param=param,
        retry_after=None if lasting or form.retry_s is None else Duration(form.retry_s * SECOND),
        permanent=lasting,
        headers={hdrs.WWW_AUTHENTICATE: "Bearer"} if reason is Rejection.UNAUTHORIZED else {},
        close=reason is Rejection.DRAINING,
    )


def failure_of_reject(command: Reject) -> Failure:
    """Return the failure that tells a core's refusal."""
    param = "model" if command.reason in {Rejection.UNKNOWN_MODEL, Rejection.FORBIDDEN_MODEL} else None
    failure = failure_of(command.reason, command.detail, param=param, permanent=command.permanent)
    if failure.permanent or command.retry_after is None:
        return failure
    return replace(failure, retry_after=command.retry_after)


def invalid(message: str, *, status: int = 400, code: str = "invalid_request", param: str | None = None) -> Failure:
    """Return a failure that the client has to mend; trying the same again does not help."""
    return Failure(status, _BAD, code, message, reason=Rejection.INVALID_REQUEST, param=param)


def refuse(message: str, *, param: str | None = None) -> RefusedError:
    """Return the exception for a request that is not understood (400)."""
    return RefusedError(invalid(message, param=param))


def unknown_model(name: str) -> Failure:
    """Return the failure for a name that is not configured."""
    shown = name if len(name) <= 100 else name[:100] + "…"
    message = f"The model {shown!r} is not configured on this node; GET /v1/models lists those that are."
    return failure_of(Rejection.UNKNOWN_MODEL, message, param="model")


def not_found(path: str) -> Failure:
    """Return the failure for a path that no route knows."""
    shown = path if len(path) <= 200 else path[:200] + "…"
    return invalid(f"There is nothing at {shown!r} here.", status=404, code="not_found")


def method_not_allowed(method: str, allowed: tuple[str, ...]) -> Failure:
    """Return the failure for a known path with another method."""
    names = ", ".join(allowed)
    failure = invalid(f"{method[:20]} is not possible here, only {names}.", status=405, code="method_not_allowed")
    return replace(failure, headers={hdrs.ALLOW: names})


def cut_off() -> Failure:
    """Return the failure for a request that the core has ordered to break off."""
    message = "The model is leaving its GPUs and the time to finish its requests is over."
    return failure_of(Rejection.DRAINING, message)


def overdue(limit: Duration) -> Failure:
    """Return the failure for a request that its engine has held for longer than its model allows."""
    message = f"The engine has not ended its answer within {limit / SECOND:g} s (request_timeout)."
    return failure_of(Rejection.UPSTREAM_TIMEOUT, message)


def not_passed_on(why: str) -> Failure:
    """Return the failure for an answer that is malformed or broke off."""
    message = f"The engine's answer cannot be passed on: {why}. Its log may say why."
    return failure_of(Rejection.UPSTREAM_FAILED, message)


def unknown_version() -> Failure:
    """Return the failure for a version of HTTP that is not spoken here."""
    return invalid("Only HTTP/1.1 and HTTP/1.0 are spoken here.", status=505, code="http_version")


def internal_error() -> Failure:
    """Return the failure for a bug in swapd."""
    return Failure(500, "api_error", "internal_error", "swapd failed to handle this request; its log says why.")


def retry_headers(failure: Failure, random: Callable[[], float]) -> dict[str, str]:
    """Return the headers that tell a client whether and when to try again (1–120 s, with jitter).

    Whole seconds are too coarse for the jitter of a short wait: there it is in the milliseconds only.
    """
    if failure.permanent:
        return {"x-should-retry": "false"}
    if failure.retry_after is None:
        return {}
    wait = min(max(failure.retry_after / SECOND, 1.0), _LONGEST_WAIT_S)
    jitter = wait * _JITTER * random()
    seconds = min(math.ceil(wait) + round(jitter), _LONGEST_WAIT_S)
    milliseconds = min(int((wait + jitter) * 1000), _LONGEST_WAIT_S * 1000)
    return {hdrs.RETRY_AFTER: str(seconds), "retry-after-ms": str(milliseconds)}


def error_headers(failure: Failure, request_id: str, random: Callable[[], float]) -> dict[str, str]:
    """Return the headers of the answer for a failure, but for those of its body."""
    headers = {**retry_headers(failure, random), **failure.headers, "x-request-id": request_id, hdrs.SERVER: "swapd"}
    if failure.reason is not None:
        headers["x-swapd-reason"] = failure.reason.value
    return headers


def error_response(failure: Failure, dialect: Dialect, request_id: str, random: Callable[[], float]) -> web.Response:
    """Return the whole answer for a failure."""
    response = web.Response(
        status=failure.status,
        headers=error_headers(failure, request_id, random),
        body=error_body(dialect, failure, request_id),
        content_type="application/json",
    )
    if failure.close:
        response.force_close()
    return response
