"""Durations, sizes, ports and addresses: what is read, what is refused, and that writing and reading agree."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.config import units
from swapd.core.ids import Bytes, Duration

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("15s", 15 * SECOND),
        ("10m", 600 * SECOND),
        ("24h", 86_400 * SECOND),
        ("7d", 7 * 86_400 * SECOND),
        ("500ms", SECOND // 2),
        ("1h30m", 5400 * SECOND),
        ("1.5h", 5400 * SECOND),
        ("0.1s", SECOND // 10),
        (0, 0),
        ("0", 0),
        ("0s", 0),
        (" 2s ", 2 * SECOND),
        ("1us1ns", 1001),
    ],
)
def test_a_duration_is_a_number_with_units(text: object, nanoseconds: int) -> None:
    assert units.parse_duration(text) == nanoseconds


@pytest.mark.parametrize(
    "value",
    [
        15,
        -1,
        "15",
        "15 s",
        "s",
        "",
        "1m1h",
        "1s1s",
        "1,5s",
        "-3s",
        "1e3s",
        True,
        False,
        None,
        1.5,
        [],
        "0.1ns",
        "99999999d",
        "9" * 5000,
        "١s",
        "²",
    ],
)
def test_anything_else_is_no_duration_and_the_error_shows_one(value: object) -> None:
    with pytest.raises(ValueError, match=r"\d(ms|s|m|h)"):
        units.parse_duration(value)


def test_a_duration_without_a_unit_is_answered_with_the_likely_ones() -> None:
    with pytest.raises(ValueError, match="write the unit of the duration, for example 90s or 90m"):
        units.parse_duration(90)


@given(st.integers(min_value=0, max_value=10 * 365 * 86_400 * SECOND))
def test_a_written_duration_reads_back_the_same(nanoseconds: int) -> None:
    text = units.format_duration(Duration(nanoseconds))
    assert units.parse_duration(text) == nanoseconds
    assert re.fullmatch(units.DURATION_PATTERN, text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 64 << 20),
        ("1GiB", 1 << 30),
        ("80GB", 80 * 10**9),
        ("1.5GiB", 3 << 29),
        ("4 KiB", 4096),
        ("10kB", 10_000),
        ("10KB", 10_000),
        (12_345, 12_345),
        ("12345", 12_345),
        ("17B", 17),
        (0, 0),
        ("1TiB", 1 << 40),
    ],
)
def test_a_size_is_a_number_with_a_unit_or_of_bytes(text: object, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize(
    "value",
    ["64M", "64mib", "64 mb", "", "MiB", "-1MiB", -1, True, None, 1.5, "0.3B", "1e9", "9" * 40 + "TiB", 1 << 61, {}],
)
def test_anything_else_is_no_size_and_the_error_shows_one(value: object) -> None:
    with pytest.raises(ValueError, match="64MiB"):
        units.parse_size(value)


@given(st.integers(min_value=0, max_value=1 << 60))
def test_a_written_size_reads_back_the_same(size: int) -> None:
    text = units.format_size(Bytes(size))
    assert units.parse_size(text) == size
    assert re.fullmatch(units.SIZE_PATTERN, text)


def test_sizes_are_written_in_the_unit_they_were_meant_in() -> None:
    written = [units.format_size(Bytes(size)) for size in (64 << 20, 80 * 10**9, 3 << 29, 1000, 7)]
    assert written == ["64MiB", "80GB", "1536MiB", "1kB", "7B"]


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (4_000_000, "3.81 MiB"), (1 << 30, "1 GiB"), (1020 << 30, "1020 GiB")],
)
def test_an_approximate_size_has_three_figures(size: int, text: str) -> None:
    assert units.approximate_size(Bytes(size)) == text


def test_a_range_of_ports_holds_both_ends() -> None:
    ports = units.parse_ports("20000-29999")
    assert (len(ports), 20000 in ports, 29999 in ports, 30000 in ports) == (10_000, True, True, False)
    assert units.format_ports(ports) == "20000-29999"


@pytest.mark.parametrize("value", ["", "20000", 20000, "2-1", "0-10", "1-65536", "a-b", "1 - 2", None])
def test_anything_else_is_no_range_of_ports(value: object) -> None:
    with pytest.raises(ValueError, match="20000-29999"):
        units.parse_ports(value)


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:8090", "127.0.0.1", 8090, True),
        ("127.3.2.1:0", "127.3.2.1", 0, True),
        ("[::1]:8090", "::1", 8090, True),
        ("localhost:80", "localhost", 80, True),
        (":8090", "", 8090, False),
        ("0.0.0.0:8090", "0.0.0.0", 8090, False),
        ("[::]:8090", "::", 8090, False),
        ("node7.example:8090", "node7.example", 8090, False),
    ],
)
def test_a_listen_address_is_host_and_port(text: str, host: str, port: int, *, loopback: bool) -> None:
    listen = units.parse_listen(text)
    assert (listen.host, listen.port, listen.loopback) == (host, port, loopback)
    assert units.format_listen(listen) == text


@pytest.mark.parametrize(
    "value",
    [
        "",
        "8090",
        8090,
        "127.0.0.1",
        "127.0.0.1:",
        "::1:8090",
        "[::1:8090",
        "[abc]:1",
        "a b:1",
        "h:70000",
        "h:-1",
        None,
        ["h", 1],
    ],
)
def test_anything_else_is_no_listen_address(value: object) -> None:
    with pytest.raises(ValueError, match=r"127\.0\.0\.1:8090|\[::1\]:8090"):
        units.parse_listen(value)


@pytest.mark.parametrize(
    ("text", "rule", "written"),
    [
        (0, units.MinResidency(), "0"),
        ("30s", units.MinResidency(duration=Duration(30 * SECOND)), "30s"),
        ("1x", units.MinResidency(load_times=1.0), "1x"),
        ("2.5x", units.MinResidency(load_times=2.5), "2.5x"),
    ],
)
def test_the_least_residency_is_a_time_or_a_multiple_of_the_load_time(
    text: object, rule: units.MinResidency, written: str
) -> None:
    assert units.parse_min_residency(text) == rule
    assert units.format_min_residency(rule) == written


@pytest.mark.parametrize("value", ["x", "1 x", 1, "-1x", None, True])
def test_anything_else_is_no_least_residency(value: object) -> None:
    with pytest.raises(ValueError, match="multiple of the load time such as 1x"):
        units.parse_min_residency(value)
