"""The published form of each error: status, type, code and what to do next, in the words of each API."""

from typing import Any

import pytest

from swapd.core.commands import Reject
from swapd.core.ids import SECOND, Duration, ModelName, RequestId
from swapd.core.reasons import Rejection
from swapd.proxy.dialects import Dialect, error_object
from swapd.proxy.errors import failure_of, failure_of_reject, retry_headers, unknown_model
from tests.proxy.harness import header, post_bytes, raw_client, running
from tests.proxy.test_errors import PATHS, error_of

BAD, BUSY, AWAY = "invalid_request_error", "rate_limit_error", "service_unavailable_error"

FORMS = {
    Rejection.INVALID_REQUEST: (400, BAD, "invalid_request"),
    Rejection.UNAUTHORIZED: (401, BAD, "invalid_api_key"),
    Rejection.UNKNOWN_MODEL: (404, BAD, "model_not_found"),
    Rejection.BODY_TOO_LARGE: (413, BAD, "request_too_large"),
    Rejection.QUEUE_FULL: (429, BUSY, "model_queue_full"),
    Rejection.NO_CAPACITY: (503, AWAY, "no_capacity"),
    Rejection.ALL_PINNED: (503, AWAY, "no_capacity"),
    Rejection.ETA_EXCEEDS_MAX_WAIT: (503, AWAY, "no_capacity"),
    Rejection.DEGRADED: (503, AWAY, "no_capacity"),
    Rejection.WAIT_TIMEOUT: (503, AWAY, "model_loading"),
    Rejection.LOAD_FAILED: (503, AWAY, "model_load_failed"),
    Rejection.COOLING_DOWN: (503, AWAY, "model_load_failed"),
    Rejection.DRAINING: (503, AWAY, "shutting_down"),
    Rejection.UPSTREAM_FAILED: (502, "api_error", "upstream_failed"),
    Rejection.UPSTREAM_TIMEOUT: (504, "api_error", "upstream_timeout"),
}

ANTHROPIC = {
    Rejection.INVALID_REQUEST: "invalid_request_error",
    Rejection.UNAUTHORIZED: "authentication_error",
    Rejection.FORBIDDEN_MODEL: "permission_error",
    Rejection.UNKNOWN_MODEL: "not_found_error",
    Rejection.BODY_TOO_LARGE: "request_too_large",
    Rejection.QUEUE_FULL: "rate_limit_error",
    Rejection.DRAINING: "overloaded_error",
    Rejection.UPSTREAM_FAILED: "api_error",
}


def reject(reason: Rejection, after_s: float | None, *, permanent: bool = False) -> Reject:
    wait = None if after_s is None else Duration(round(after_s * SECOND))
    return Reject(RequestId(1), ModelName("m01"), reason, wait, "why", permanent)


@pytest.mark.parametrize("reason", FORMS)
def test_an_error_keeps_its_status_type_and_code(reason: Rejection) -> None:
    failure = failure_of(reason, "why")
    error: Any = error_object(Dialect.OPENAI, failure, "id")["error"]
    assert (failure.status, error["type"], error["code"]) == FORMS[reason]


@pytest.mark.parametrize("reason", ANTHROPIC)
def test_anthropics_sdk_finds_its_own_type(reason: Rejection) -> None:
    error: Any = error_object(Dialect.ANTHROPIC, failure_of(reason, "why"), "id")["error"]
    assert error == {"type": ANTHROPIC[reason], "message": "why"}


@pytest.mark.parametrize("reason", [reason for reason, (status, *_) in FORMS.items() if status >= 429])
def test_whoever_may_come_back_is_told_when(reason: Rejection) -> None:
    headers = retry_headers(failure_of_reject(reject(reason, None)), lambda: 0.0)
    assert set(headers) == {"Retry-After", "retry-after-ms"}


@pytest.mark.parametrize(
    "reason", [Rejection.INVALID_REQUEST, Rejection.UNAUTHORIZED, Rejection.UNKNOWN_MODEL, Rejection.BODY_TOO_LARGE]
)
def test_whoever_has_to_change_the_request_is_not_told_to_come_back(reason: Rejection) -> None:
    assert "Retry-After" not in retry_headers(failure_of(reason, "why"), lambda: 0.0)


@pytest.mark.parametrize(("after_s", "told"), [(0.0, "1"), (0.4, "1"), (7.0, "7"), (120.0, "120"), (428.0, "120")])
def test_the_time_that_the_scheduler_names_is_told_within_1_and_120_seconds(after_s: float, told: str) -> None:
    headers = retry_headers(failure_of_reject(reject(Rejection.ETA_EXCEEDS_MAX_WAIT, after_s)), lambda: 0.0)
    assert headers == {"Retry-After": told, "retry-after-ms": str(min(max(round(after_s * 1000), 1000), 120_000))}


def test_a_draining_node_asks_for_five_seconds_and_closes_the_connection() -> None:
    failure = failure_of_reject(reject(Rejection.DRAINING, 5))
    assert failure.close
    assert retry_headers(failure, lambda: 0.0)["Retry-After"] == "5"


def test_an_unknown_model_is_blamed_on_the_field_model_wherever_it_is_found_out() -> None:
    for failure in (unknown_model("nobody"), failure_of_reject(reject(Rejection.UNKNOWN_MODEL, None, permanent=True))):
        error: Any = error_object(Dialect.OPENAI, failure, "id")["error"]
        assert (error["param"], error["code"]) == ("model", "model_not_found")


@pytest.mark.parametrize("dialect", [Dialect.OPENAI, Dialect.ANTHROPIC, Dialect.OLLAMA, Dialect.TGI])
@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"{", 400, "invalid_request"),
        (b"{}", 400, "invalid_request"),
        (b'{"model":"nobody"}', 404, "unknown_model"),
    ],
)
async def test_what_is_wrong_with_a_body_has_the_same_status_and_reason_in_every_api(
    dialect: Dialect, body: bytes, status: int, reason: str
) -> None:
    async with running() as node, raw_client(node.port) as client:
        got, head, _ = await error_of(client, post_bytes(PATHS[dialect], body))
        assert (got, header(head, "x-swapd-reason")) == (status, reason)
        assert header(head, "retry-after") is None
        node.assert_nothing_left()
