"""The end of each request is counted once and told in one log line."""

import io
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
import structlog

from swapd.agent import logs, requests
from swapd.agent.requests import RequestObserver
from swapd.core.ids import SECOND, Duration, InstanceId, ModelName, RequestId, seconds
from swapd.core.reasons import Outcome, Rejection
from swapd.history.arrivals import Row
from swapd.proxy.record import EVENT, RequestRecord


@pytest.fixture(autouse=True)
def _restored_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # a logger remembers the configuration under which it was used first
    monkeypatch.setattr(requests, "_log", structlog.get_logger("swapd.requests"))
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


SERVED = RequestRecord(
    timestamp=1_000.0,
    level="",
    event=EVENT,
    request_id="abc",
    request=RequestId(7),
    model=ModelName("m01"),
    method="POST",
    path="/v1/chat/completions",
    status=200,
    reason=None,
    outcome=Outcome.SERVED,
    cold_start=True,
    waited_s=2.0,
    served_s=1.0,
    stages={},
    instance=None,
    ttfb_s=3.0,
    duration_s=4.0,
    bytes_in=10,
    bytes_out=20,
    prompt_tokens=None,
    completion_tokens=5,
)


class CountingMetrics:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.first_bytes: list[float] = []

    def first_byte(self, after: float) -> None:
        self.first_bytes.append(after)

    def request_finished(self, model: str | None, **facts: Any) -> None:
        self.told.append({"model": model, **facts})

    def requests_served(self, model: str | None, code: int, records: Sequence[RequestRecord]) -> None:
        self.told += ({"model": model, "code": code, "record": record} for record in records)


class FirstBytes(list[tuple[InstanceId, Duration]]):
    """Keeps which instances have begun to answer, and how long ago."""

    def __call__(self, instance: InstanceId, *, ago: Duration) -> None:
        self.append((instance, ago))


def _observed(record: RequestRecord, promise: Duration | None) -> tuple[CountingMetrics, FirstBytes]:
    metrics, begun = CountingMetrics(), FirstBytes()
    observer = RequestObserver(
        metrics,  # type: ignore[arg-type]
        max_wait=lambda _: promise,
        arrived=lambda _: None,
        first_byte=begun,
        later=lambda _, tell: tell(),
        wall=lambda: 1_000.0,
    )
    observer.finished(msgspec.structs.replace(record))
    return metrics, begun


def _told(record: RequestRecord, promise: Duration | None = Duration(10 * SECOND)) -> dict[str, Any]:
    [told] = _observed(record, promise)[0].told
    return told


def test_the_facts_of_a_request_reach_the_metrics_unchanged() -> None:
    told = _told(SERVED)
    assert told == {
        "model": "m01",
        "code": 200,
        "outcome": Outcome.SERVED,
        "cold_start": True,
        "duration_s": 4.0,
        "queue_wait_s": 2.0,
        "first_byte_s": 3.0,
        "reason": None,
        "prompt_tokens": None,
        "completion_tokens": 5,
        "promise_kept": True,
    }


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"ttfb_s": 11.0}, False),
        ({"ttfb_s": None, "outcome": Outcome.UPSTREAM_FAILED}, False),
        ({"reason": Rejection.WAIT_TIMEOUT, "ttfb_s": None, "outcome": Outcome.REJECTED}, False),
        ({"reason": Rejection.LOAD_FAILED, "ttfb_s": None, "outcome": Outcome.REJECTED}, False),
        ({"cold_start": False}, None),
        ({"cold_start": False, "reason": Rejection.WAIT_TIMEOUT, "ttfb_s": None, "outcome": Outcome.REJECTED}, None),
        ({"cold_start": False, "reason": Rejection.QUEUE_FULL, "ttfb_s": None, "outcome": Outcome.REJECTED}, None),
        ({"outcome": Outcome.CANCELLED, "ttfb_s": None}, None),
        ({"outcome": Outcome.CANCELLED, "ttfb_s": None, "duration_s": 11.0}, False),
        ({"outcome": Outcome.CANCELLED}, True),
    ],
    ids=[
        "late",
        "never",
        "refused after the whole wait",
        "refused by a failed load",
        "resident",
        "resident, refused after waiting for a slot",
        "refused at once",
        "client left",
        "client left when its time was up",
        "client left in the middle of its answer",
    ],
)
def test_a_cold_start_keeps_its_promise_only_with_a_first_byte_in_time(
    change: dict[str, Any], kept: bool | None
) -> None:
    assert _told(msgspec.structs.replace(SERVED, **change)).get("promise_kept") is kept


def test_nothing_was_promised_for_a_model_that_has_left_the_configuration() -> None:
    assert _told(SERVED, promise=None)["promise_kept"] is None


def test_a_client_that_left_before_any_status_counts_as_499_and_a_refusal_before_the_queue_has_no_wait() -> None:
    told = _told(msgspec.structs.replace(SERVED, status=0, request=None, outcome=None))
    assert (told["code"], told["queue_wait_s"]) == (499, None)


@pytest.mark.parametrize(
    ("change", "level"),
    [({}, "info"), ({"status": 503}, "warning"), ({"outcome": Outcome.CUT}, "warning"), ({"status": 404}, "info")],
)
def test_broken_answers_stand_out_in_the_log(change: dict[str, Any], level: str) -> None:
    with structlog.testing.capture_logs() as lines:
        _told(msgspec.structs.replace(SERVED, **change))
    [line] = lines
    [told] = line["event"]
    assert (line["log_level"], told.event, told.request_id, told.model) == (level, "request", "abc", "m01")


def test_the_line_of_a_request_is_flat_and_begins_like_any_other() -> None:
    stream = io.StringIO()
    writer = logs.configure("json", "info", stream)
    _told(msgspec.structs.replace(SERVED, ttfb_s=None, path='/v1/"\udc80'))
    writer.close()
    [line] = map(json.loads, stream.getvalue().splitlines())
    assert list(line)[:4] == ["timestamp", "level", "event", "request_id"]
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "level": "info",
        "event": "request",
        "request_id": "abc",
        "request": 7,
        "model": "m01",
        "instance": None,
        "method": "POST",
        "path": '/v1/"\udc80',
        "status": 200,
        "reason": None,
        "outcome": "served",
        "cold_start": True,
        "stages": {},
        "waited_s": 2.0,
        "served_s": 1.0,
        "ttfb_s": None,
        "duration_s": 4.0,
        "bytes_in": 10,
        "bytes_out": 20,
        "prompt_tokens": None,
        "completion_tokens": 5,
        "logger": "swapd.requests",
    }


def test_on_a_console_the_line_of_a_request_is_for_people() -> None:
    stream = io.StringIO()
    writer = logs.configure("console", "info", stream)
    _told(SERVED)
    writer.close()
    assert "request_id=abc" in stream.getvalue()


COLD = msgspec.structs.replace(
    SERVED,
    instance=InstanceId(9),
    stages={"queued": 0.5, "fetch": 1.0, "load": 0.5},
    # half a second before it came to the core, two in the queue, the first byte a second after the grant
    ttfb_s=3.5,
    duration_s=5.5,
    served_s=3.0,
)


def test_the_first_byte_of_a_cold_start_is_told_once_from_the_grant_on() -> None:
    with structlog.testing.capture_logs() as lines:
        metrics, begun = _observed(COLD, None)
    assert metrics.first_bytes == [1.0]
    assert begun == [(InstanceId(9), seconds(2))]
    [told] = lines[0]["event"]
    assert told.stages == {"queued": 0.5, "fetch": 1.0, "load": 0.5, "first_byte": 1.0}


@pytest.mark.parametrize(
    "change",
    [{"cold_start": False}, {"ttfb_s": None}, {"instance": None, "served_s": None}],
    ids=["resident", "no byte", "no grant"],
)
def test_other_requests_tell_of_no_first_byte(change: dict[str, Any]) -> None:
    metrics, begun = _observed(msgspec.structs.replace(COLD, **change), None)
    assert (metrics.first_bytes, begun) == ([], [])


class Bench:
    """An observer whose clocks stand still, and what it has asked for and told."""

    def __init__(self) -> None:
        self.metrics = CountingMetrics()
        self.later: list[Callable[[], None]] = []
        self.arrivals: list[Row] = []
        self.observer = RequestObserver(
            self.metrics,  # type: ignore[arg-type]
            max_wait=lambda _: None,
            arrived=self.arrivals.extend,
            first_byte=FirstBytes(),
            later=lambda _, tell: self.later.append(tell),
            wall=lambda: 1_000.0,
        )

    def end(self, record: RequestRecord, **change: Any) -> None:
        """End a request with this record, but for what is changed."""
        self.observer.finished(msgspec.structs.replace(record, **change))

    def codes(self) -> list[int]:
        return [told["code"] for told in self.metrics.told]


RESIDENT = msgspec.structs.replace(SERVED, cold_start=False, stages=None, waited_s=0.5)


def test_what_ends_at_about_the_same_time_is_told_together_and_once() -> None:
    bench = Bench()
    for status in (200, 404):
        bench.end(RESIDENT, status=status)
    [tell] = bench.later
    assert bench.codes() == []
    tell()
    bench.end(RESIDENT)
    assert bench.codes() == [200, 404]
    assert len(bench.later) == 2
    bench.observer.tell()
    bench.later[1]()
    assert bench.codes() == [200, 404, 200]


def test_many_ends_are_told_before_their_time_so_that_telling_never_takes_long() -> None:
    bench = Bench()
    for _ in range(2 * requests.AT_ONCE + 1):
        bench.end(RESIDENT)
    assert len(bench.codes()) == 2 * requests.AT_ONCE
    assert len(bench.later) == 1


def test_a_cold_start_is_told_at_once() -> None:
    bench = Bench()
    bench.end(RESIDENT)
    bench.end(SERVED)
    assert bench.codes() == [200, 200]


def test_a_request_is_recorded_with_the_moment_when_it_came_to_the_core() -> None:
    bench = Bench()
    bench.end(RESIDENT)
    bench.end(RESIDENT, served_s=None, outcome=Outcome.REJECTED)
    bench.end(RESIDENT, request=None, outcome=None)
    bench.observer.tell()
    assert bench.arrivals == [(998.5, "m01", 1.0), (999.5, "m01", None)]


def test_requests_of_one_model_and_status_are_counted_together() -> None:
    bench = Bench()
    other = msgspec.structs.replace(RESIDENT, model=ModelName("m02"))
    odd = msgspec.structs.replace(RESIDENT, outcome=Outcome.CUT)
    with structlog.testing.capture_logs() as lines:
        for record in (RESIDENT, other, odd, RESIDENT):
            bench.end(record)
        bench.observer.tell()
    told = [(told["model"], "record" in told) for told in bench.metrics.told]
    assert told == [("m01", False), ("m01", True), ("m01", True), ("m02", True)]
    assert [(line["log_level"], len(line["event"])) for line in lines] == [("warning", 1), ("info", 3)]


def test_a_record_that_cannot_be_told_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    count = bench.metrics.request_finished

    def fussy(model: str | None, **facts: Any) -> None:
        assert facts["code"] != 418
        count(model, **facts)

    monkeypatch.setattr(bench.metrics, "request_finished", fussy)
    with structlog.testing.capture_logs() as lines:
        for status in (404, 418, 200):
            bench.end(RESIDENT, status=status, outcome=Outcome.REJECTED)
        bench.observer.tell()
    assert bench.codes() == [404, 200]
    [odd, ordinary] = lines
    assert (odd["event"], odd["request_id"]) == ("request_not_told", "abc")
    assert [line.status for line in ordinary["event"]] == [404, 418, 200]


def test_requests_that_cannot_be_counted_together_take_no_others_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    count = bench.metrics.requests_served

    def fussy(model: str | None, code: int, records: Sequence[RequestRecord]) -> None:
        assert code != 418
        count(model, code, records)

    monkeypatch.setattr(bench.metrics, "requests_served", fussy)
    with structlog.testing.capture_logs() as lines:
        for status in (418, 418, 200):
            bench.end(RESIDENT, status=status)
        bench.observer.tell()
    assert bench.codes() == [200]
    assert [line["event"] for line in lines[:2]] == ["request_not_told"] * 2
    assert [line.status for line in lines[2]["event"]] == [418, 418, 200]
    assert len(bench.arrivals) == 3
