"""Every error has a status, a reason and a body that the client's SDK understands."""

import asyncio
import json
import random as randomness
from typing import Any, cast

import msgspec
import pytest
from structlog.testing import capture_logs

from swapd.core.ids import SECOND, Duration
from swapd.core.reasons import Outcome, Rejection
from swapd.proxy.dialects import Dialect, error_object, stream_error
from swapd.proxy.errors import FORMS, failure_of, retry_headers
from swapd.proxy.failure import Failure
from swapd.proxy.request_id import request_id_of
from swapd.proxy.services import Endpoint
from tests.proxy.harness import INSTANCE, RawClient, header, post_bytes, raw_client, running

STATUSES = {
    Rejection.INVALID_REQUEST: 400,
    Rejection.UNAUTHORIZED: 401,
    Rejection.FORBIDDEN_MODEL: 403,
    Rejection.UNKNOWN_MODEL: 404,
    Rejection.MANUAL_MODE: 409,
    Rejection.BODY_TOO_LARGE: 413,
    Rejection.QUEUE_FULL: 429,
    Rejection.BUFFER_FULL: 429,
    Rejection.KEY_LIMIT: 429,
    Rejection.NO_CAPACITY: 503,
    Rejection.ALL_PINNED: 503,
    Rejection.ETA_EXCEEDS_MAX_WAIT: 503,
    Rejection.WAIT_TIMEOUT: 503,
    Rejection.LOAD_FAILED: 503,
    Rejection.COOLING_DOWN: 503,
    Rejection.DRAINING: 503,
    Rejection.DEGRADED: 503,
    Rejection.UPSTREAM_FAILED: 502,
    Rejection.UPSTREAM_TIMEOUT: 504,
}
PATHS = {
    Dialect.OPENAI: "/v1/chat/completions",
    Dialect.ANTHROPIC: "/v1/messages",
    Dialect.OLLAMA: "/api/chat",
    Dialect.TGI: "/generate",
    Dialect.TRITON: "/v2/models/m01/infer",
}
BODY = b'{"model":"m01"}'


async def error_of(client: RawClient, request: bytes) -> tuple[int, bytes, Any]:
    """Send a request and return status, head and JSON body of the answer."""
    await client.send(request)
    head = await client.read_head()
    assert header(head, "content-type") == "application/json"
    body = await client.reader.readexactly(int(header(head, "content-length") or 0))
    return int(head.split(b" ")[1]), head, json.loads(body)


def assert_dialect(dialect: Dialect, body: Any, request_id: str | None) -> None:
    match dialect:
        case Dialect.OPENAI:
            assert set(body) == {"error"}
            assert set(body["error"]) == {"message", "type", "param", "code"}
            assert all(isinstance(body["error"][key], str) for key in ("message", "type", "code"))
        case Dialect.ANTHROPIC:
            assert body["type"] == "error"
            assert set(body["error"]) == {"type", "message"}
            assert body["request_id"] == request_id
        case Dialect.TGI:
            assert set(body) == {"error", "error_type"}
        case Dialect.OLLAMA | Dialect.TRITON:
            assert set(body) == {"error"}
            assert isinstance(body["error"], str)


def test_the_table_has_every_reason_with_its_status() -> None:
    assert {reason: form.status for reason, form in FORMS.items()} == STATUSES
    assert list(FORMS) == list(Rejection)


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize("reason", [reason for reason in Rejection if reason is not Rejection.UNAUTHORIZED])
async def test_a_refusal_of_the_core_is_told_in_the_dialect_of_the_route(reason: Rejection, dialect: Dialect) -> None:
    async with running() as node, raw_client(node.port) as client:
        node.core.refusal = (reason, Duration(7 * SECOND), False)
        status, head, body = await error_of(client, post_bytes(PATHS[dialect], BODY, "x-request-id: abc"))
        record = await node.settled(1)
        assert status == STATUSES[reason]
        assert_dialect(dialect, body, "abc")
        assert f"refused because of {reason.value}" in json.dumps(body)
        assert header(head, "x-swapd-reason") == reason.value
        assert header(head, "x-request-id") == "abc"
        assert node.core.outcomes == [Outcome.REJECTED]
        assert (record.reason, record.status) == (reason, status)
        if reason is Rejection.MANUAL_MODE:
            assert header(head, "x-should-retry") == "false"
        else:
            assert header(head, "retry-after") == "7"
            assert header(head, "retry-after-ms") == "7350"
        assert (header(head, "connection") == "close") is (reason is Rejection.DRAINING)


async def test_a_lasting_refusal_tells_not_to_try_again() -> None:
    async with running() as node, raw_client(node.port) as client:
        node.core.refusal = (Rejection.LOAD_FAILED, Duration(7 * SECOND), True)
        _, head, body = await error_of(client, post_bytes(PATHS[Dialect.OPENAI], BODY))
        assert header(head, "x-should-retry") == "false"
        assert header(head, "retry-after") is None
        assert body["error"]["code"] == "model_load_failed"


async def test_a_refusal_without_a_time_gets_the_tables() -> None:
    async with running() as node, raw_client(node.port) as client:
        node.core.refusal = (Rejection.DRAINING, None, False)
        _, head, _ = await error_of(client, post_bytes(PATHS[Dialect.OPENAI], BODY))
        assert header(head, "retry-after") == "5"


def test_an_unauthorized_answer_names_the_scheme() -> None:
    assert failure_of(Rejection.UNAUTHORIZED, "x").headers == {"WWW-Authenticate": "Bearer"}


@pytest.mark.parametrize("seconds", [0, 0.2, 1, 2.5, 5, 30, 119.9, 120, 100_000])
@pytest.mark.parametrize("random", [0.0, 0.5, 0.999])
def test_retry_after_is_at_least_the_wait_and_stays_between_1_and_120_seconds(seconds: float, random: float) -> None:
    failure = Failure(503, "t", "c", "m", retry_after=Duration(round(seconds * SECOND)))
    headers = retry_headers(failure, lambda: random)
    least = min(max(seconds, 1), 120)
    assert least <= int(headers["Retry-After"]) <= 120
    assert least * 1000 <= int(headers["retry-after-ms"]) <= 120_000


@pytest.mark.parametrize("seconds", [1, 2, 5])
def test_the_jitter_of_a_short_wait_shows_in_the_milliseconds_only(seconds: int) -> None:
    failure = Failure(503, "t", "c", "m", retry_after=Duration(seconds * SECOND))
    headers = retry_headers(failure, lambda: 0.999)
    assert headers == {"Retry-After": str(seconds), "retry-after-ms": str(int(seconds * 1099.9))}


def test_the_jitter_of_a_long_wait_shows_in_the_seconds_too() -> None:
    failure = Failure(503, "t", "c", "m", retry_after=Duration(60 * SECOND))
    told = [retry_headers(failure, iter((random,)).__next__)["Retry-After"] for random in (0.0, 0.5, 0.999)]
    assert told == ["60", "63", "66"]


@pytest.mark.parametrize("dialect", list(Dialect))
def test_the_error_of_a_stream_is_one_event_of_its_own(dialect: Dialect) -> None:
    failure = failure_of(Rejection.DRAINING, "a\nb")
    event = stream_error(dialect, failure, "id")
    lines = [line for line in event.split(b"\n") if line]
    data = lines[-1].removeprefix(b"data: ")
    assert msgspec.json.decode(data) == error_object(dialect, failure, "id")
    assert event.startswith(b"\n")
    assert event.endswith(b"\n")


@pytest.mark.parametrize(
    ("request_line", "status", "dialect"),
    [
        ("GET /nowhere", 404, Dialect.OPENAI),
        ("GET /", 404, Dialect.OPENAI),
        ("GET /v1/messages/x", 404, Dialect.ANTHROPIC),
        ("GET /api/nothing", 404, Dialect.OLLAMA),
        ("GET /v2/nothing", 404, Dialect.TRITON),
        ("GET /v1/models/nobody", 404, Dialect.OPENAI),
        ("GET /v1/chat%2Fcompletions", 404, Dialect.OPENAI),
        ("POST /v1/../v1/models", 404, Dialect.OPENAI),
        ("GET /v1/models#x", 404, Dialect.OPENAI),
        ("GET /v1/chat/completions", 405, Dialect.OPENAI),
        ("DELETE /v1/messages", 405, Dialect.ANTHROPIC),
        ("PUT /api/chat", 405, Dialect.OLLAMA),
        ("GET /generate", 405, Dialect.TGI),
        ("OPTIONS /v1/chat/completions", 405, Dialect.OPENAI),
        ("POST /v1/models", 405, Dialect.OPENAI),
        ("GET /v1/realtime?model=m01", 426, Dialect.OPENAI),
        ("GET /upstream/m01", 404, Dialect.OPENAI),
        ("GET /upstream/nobody/x", 404, Dialect.OPENAI),
        ("GET /upstream/m01/slots", 404, Dialect.OPENAI),
        ("GET /upstream/m01//x", 400, Dialect.OPENAI),
    ],
)
async def test_every_error_of_swapds_own_has_a_body_in_the_dialect_and_an_id(
    request_line: str, status: int, dialect: Dialect
) -> None:
    async with running() as node, raw_client(node.port) as client:
        request = f"{request_line} HTTP/1.1\r\nHost: n\r\nContent-Length: 0\r\n\r\n".encode()
        got, head, body = await error_of(client, request)
        assert got == status
        assert_dialect(dialect, body, header(head, "x-request-id"))
        assert header(head, "x-request-id")
        assert header(head, "x-swapd-reason") == "invalid_request" or status == 404
        assert header(head, "access-control-allow-origin") is None
        if status == 405:
            assert header(head, "allow") in {"POST", "GET, HEAD", "GET"}
        node.assert_nothing_left()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET /v1/models HTTP/9.9\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\nHost: n\r\nContent-Length: x\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\nHost: n\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nBad Header: 1\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: n\r\nX: a\x00b\r\n\r\n",
        b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
    ],
)
async def test_malformed_http_is_a_400_with_a_body(request_bytes: bytes) -> None:
    async with running() as node, raw_client(node.port) as client:
        status, head, body = await error_of(client, request_bytes)
        assert status == 400
        assert_dialect(Dialect.OPENAI, body, None)
        assert header(head, "x-request-id")
        assert await client.read_all() == b""


async def test_a_bug_is_a_500_with_a_body_and_ends_the_lease() -> None:
    async with running() as node, raw_client(node.port) as client:
        node.endpoints[INSTANCE] = cast("Endpoint", object())
        status, head, body = await error_of(client, post_bytes(PATHS[Dialect.ANTHROPIC], BODY))
        assert status == 500
        assert_dialect(Dialect.ANTHROPIC, body, header(head, "x-request-id"))
        assert header(head, "x-swapd-reason") is None
        record = await node.settled(1)
        assert record.status == 500


async def test_a_bug_is_logged_with_its_path_but_without_the_query() -> None:
    async with running() as node, raw_client(node.port) as client:
        node.endpoints[INSTANCE] = cast("Endpoint", object())
        with capture_logs() as logged:
            status, _, _ = await error_of(client, post_bytes("http://u:pw@n/v1/messages?api_key=secret", BODY))
        assert status == 500
        assert [entry["path"] for entry in logged if entry["event"] == "request_failed"] == ["/v1/messages"]
        assert "secret" not in str([{**entry, "exc_info": None} for entry in logged])
        await node.settled(1)


async def test_errors_while_another_model_loads_have_bodies_too() -> None:
    async with running() as node, raw_client(node.port) as waiting, raw_client(node.port) as client:
        node.core.hold = True
        await waiting.send(post_bytes(PATHS[Dialect.OPENAI], BODY))
        await asyncio.sleep(0)
        node.core.refusal = (Rejection.NO_CAPACITY, None, False)
        for _ in range(10):
            status, _, body = await error_of(client, post_bytes(PATHS[Dialect.OPENAI], b'{"model":"m02"}'))
            assert status == 503
            assert_dialect(Dialect.OPENAI, body, None)
        waiting.leave()
        await node.settled(11)


@pytest.mark.parametrize("given", ["a", "A.b_c-9", "x" * 128])
def test_a_well_formed_id_is_kept(given: str) -> None:
    assert request_id_of(given) == given


@pytest.mark.parametrize("given", [None, "", "a b", "x" * 129, "é", "a\n", "<script>"])
def test_another_id_is_replaced(given: str | None) -> None:
    made = request_id_of(given)
    assert made != given
    assert request_id_of(made) == made
    assert made != request_id_of(given)


async def test_random_paths_and_names_get_nothing_but_4xx() -> None:
    dice = randomness.Random(7)
    pieces = ["v1", "upstream", "m01", "..", ".", "", "%2e%2e", "%00", "models", "v2", "api", "?", "&model=", "~", "💥"]
    async with running() as node:
        for _ in range(150):
            path = "/" + "/".join(dice.choices(pieces, k=dice.randint(1, 6)))
            method = dice.choice(["GET", "POST", "PUT", "DELETE", "OPTIONS", "FOO", "HEAD"])
            name = "".join(dice.choices('m01/%.\\é"', k=dice.randint(0, 300)))
            body = json.dumps({"model": name}).encode()
            node.core.refusal = (Rejection.UNKNOWN_MODEL, None, False)
            async with raw_client(node.port) as client:
                await client.send(
                    f"{method} {path} HTTP/1.1\r\nHost: n\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
                )
                head = await client.read_head()
                assert head.split(b" ")[1][:1] == b"4" or (method in {"GET", "HEAD"} and b" 200 " in head), (
                    method,
                    path,
                )
        node.assert_nothing_left()
