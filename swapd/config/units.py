"""Reads and writes the units of the configuration: durations, sizes, port ranges, listen addresses.

Rules: strict (a number without a unit is refused unless it can only mean one thing), exact (no float ever; a value that
is no whole number of nanoseconds or bytes is refused), and every error is a sentence with an example. What ``format_*``
writes, ``parse_*`` reads back to the same value.
"""

import ipaddress
import json
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from swapd.core.ids import Bytes, Duration

_DURATION_UNITS: Final = {
    "d": 86_400_000_000_000,
    "h": 3_600_000_000_000,
    "m": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "ns": 1,
}
_SIZE_UNITS: Final = {
    "TiB": 1 << 40,
    "GiB": 1 << 30,
    "MiB": 1 << 20,
    "KiB": 1 << 10,
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "kB": 10**3,
    "B": 1,
}
_NUMBER: Final = r"[0-9]{1,19}(?:\.[0-9]{1,9})?"
DURATION_PATTERN: Final = rf"^(?:0|(?:{_NUMBER}(?:d|h|ms|us|ns|m|s))+)$"
SIZE_PATTERN: Final = rf"^{_NUMBER} ?(?:TiB|GiB|MiB|KiB|TB|GB|MB|kB|KB|B)$"
SHARE_PATTERN: Final = r"^[0-9]{1,2}(?:\.[0-9]{1,2})?%$"
RATE_PATTERN: Final = rf"^{_NUMBER} ?(?:TiB|GiB|MiB|KiB|TB|GB|MB|kB|KB|B) ?/s$"
PORTS_PATTERN: Final = r"^[0-9]{1,5}-[0-9]{1,5}$"
LISTEN_PATTERN: Final = r"^(?:\[[0-9a-fA-F:.]+\]|[^\[\]:/@\s]*):[0-9]{1,5}$"

_DURATION_PART: Final = re.compile(rf"({_NUMBER})(d|h|ms|us|ns|m|s)")
_SIZE: Final = re.compile(rf"({_NUMBER}) ?(TiB|GiB|MiB|KiB|TB|GB|MB|kB|KB|B)")
_LONGEST: Final = 10 * 366 * _DURATION_UNITS["d"]
_LARGEST: Final = 1 << 60
_LAST_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class PortRange:
    """A range of TCP ports, both ends included."""

    first: int
    last: int

    def __contains__(self, port: int) -> bool:
        return self.first <= port <= self.last

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Listen:
    """Where a server listens."""

    #: host name or address without brackets; empty: every address of the machine
    host: str
    #: 0: any free port
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect; a host name other than ``localhost`` counts as reachable."""
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True)
class MinResidency:
    """The least time between ready and eviction; the larger one counts."""

    #: absolute
    duration: Duration = Duration(0)
    #: as a multiple of the model's load time
    load_times: float = 0.0


def is_loopback(host: str) -> bool:
    """Say whether a host name or address (without brackets) can only mean this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def show(value: object) -> str:
    """Return a value as an error message quotes it: short, on one line, with the words of YAML."""
    text = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def parse_duration(value: object) -> Duration:
    """Return nanoseconds for ``15s``, ``1h30m``, ``500ms`` or 0. Raises ValueError with a sentence."""
    if value == 0 and not isinstance(value, bool):
        return Duration(0)
    text = value.strip() if isinstance(value, str) else ""
    if not isinstance(value, bool) and isinstance(value, int) and 0 < value < 10**6:
        text = str(value)
    if re.fullmatch("0*[1-9][0-9]{0,18}", text):
        raise ValueError(f"write the unit of the duration, for example {text}s or {text}m")
    if not re.fullmatch(DURATION_PATTERN, text):
        raise ValueError(f"write a duration such as 500ms, 15s, 10m or 1h30m, not {show(value)}")
    total, smallest = Fraction(0), None
    for number, unit in _DURATION_PART.findall(text):
        factor = _DURATION_UNITS[unit]
        if smallest is not None and factor >= smallest:
            raise ValueError(
                f"write the units of a duration from large to small and each once, as in 1h30m, not {text!r}"
            )
        total, smallest = total + Fraction(number) * factor, factor
    if total.denominator != 1:
        raise ValueError(f"write a duration in whole nanoseconds, for example 15s, not {text!r}")
    if total > _LONGEST:
        raise ValueError(f"write a duration of at most ten years, for example 24h, not {text!r}")
    return Duration(int(total))


def format_duration(duration: Duration) -> str:
    """Return the shortest exact writing that ``parse_duration`` reads back; days are written in hours."""
    if duration == 0:
        return "0"
    parts, rest = [], int(duration)
    for unit, factor in _DURATION_UNITS.items():
        if unit != "d" and rest >= factor:
            parts.append(f"{rest // factor}{unit}")
            rest %= factor
    return "".join(parts)


def parse_size(value: object) -> Bytes:
    """Return bytes for ``64MiB``, ``80GB`` or a plain number of bytes. Raises ValueError with a sentence."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = Fraction(value)
    else:
        text = value.strip() if isinstance(value, str) else ""
        if re.fullmatch("[0-9]{1,19}", text):
            text += "B"
        match = _SIZE.fullmatch(text)
        if match is None:
            raise ValueError(f"write a size such as 64MiB, 80GB or a plain number of bytes, not {show(value)}")
        number, unit = match.groups()
        size = Fraction(number) * _SIZE_UNITS["kB" if unit == "KB" else unit]
    if size.denominator != 1 or not 0 <= size <= _LARGEST:
        raise ValueError(f"write a size in whole bytes between 0 and 1 EiB, for example 64MiB, not {show(value)}")
    return Bytes(int(size))


def format_size(size: Bytes) -> str:
    """Return the shortest exact writing that ``parse_size`` reads back: the largest unit that divides the size."""
    if size == 0:
        return "0B"
    candidates = (f"{size // factor}{unit}" for unit, factor in _SIZE_UNITS.items() if size % factor == 0)
    return min(candidates, key=len)


def approximate_size(size: Bytes) -> str:
    """Return a size for people: three figures and a binary unit. Cannot be read back exactly."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= _SIZE_UNITS[unit]:
            return (
                f"{size / _SIZE_UNITS[unit]:.3g} {unit}"
                if size < 1000 * _SIZE_UNITS[unit]
                else f"{size / _SIZE_UNITS[unit]:.0f} {unit}"
            )
    return f"{size} B"


def parse_ports(value: object) -> PortRange:
    """Return the range for ``20000-29999``. Raises ValueError with a sentence."""
    match = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"write a range of ports such as 20000-29999, not {show(value)}")
    first, last = int(match[1]), int(match[2])
    if not 1 <= first <= last <= _LAST_PORT:
        raise ValueError(
            f"write a range of ports between 1 and 65535, smaller one first, such as 20000-29999, not {value!r}"
        )
    return PortRange(first, last)


def format_ports(ports: PortRange) -> str:
    """Return what ``parse_ports`` reads back."""
    return f"{ports.first}-{ports.last}"


def parse_listen(value: object) -> Listen:
    """Return host and port for ``127.0.0.1:8090``, ``[::1]:8090`` or ``:8090``. Raises ValueError with a sentence."""
    text = value.strip() if isinstance(value, str) else ""
    if not re.fullmatch(LISTEN_PATTERN, text):
        raise ValueError(f'write address and port such as 127.0.0.1:8090, "[::1]:8090" or :8090, not {show(value)}')
    host, _, port = text.rpartition(":")
    if int(port) > _LAST_PORT:
        raise ValueError(f"write a port between 0 and 65535, for example 127.0.0.1:8090, not {show(value)}")
    if host.startswith("["):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(
                f'write an IPv6 address in the brackets, for example "[::1]:8090", not {show(value)}'
            ) from None
    return Listen(host, int(port))


def format_listen(listen: Listen) -> str:
    """Return what ``parse_listen`` reads back."""
    host = f"[{listen.host}]" if ":" in listen.host else listen.host
    return f"{host}:{listen.port}"


def parse_share(value: object) -> float:
    """Return 0.1 for ``10%``; 0 to below 1. Raises ValueError with a sentence."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    if not isinstance(value, str) or not re.fullmatch(SHARE_PATTERN, value.strip()):
        raise ValueError(f"write a share of the whole such as 10%, below 100%, not {show(value)}")
    return float(Fraction(value.strip().removesuffix("%")) / 100)


def format_share(share: float) -> str:
    """Return what ``parse_share`` reads back."""
    return f"{share * 100:g}%"


def parse_rate(value: object) -> Bytes:
    """Return bytes a second for ``100MB/s``. Raises ValueError with a sentence."""
    text = value.strip() if isinstance(value, str) else ""
    if not re.fullmatch(RATE_PATTERN, text):
        raise ValueError(f"write a rate such as 100MB/s, not {show(value)}")
    rate = parse_size(text.removesuffix("/s").rstrip())
    if rate == 0:
        raise ValueError("write a rate above 0, for example 100MB/s")
    return rate


def format_rate(rate: Bytes) -> str:
    """Return what ``parse_rate`` reads back."""
    return f"{format_size(rate)}/s"


def parse_min_residency(value: object) -> MinResidency:
    """Return the rule for ``0``, ``30s`` or ``1x`` (times the load time). Raises ValueError with a sentence."""
    if isinstance(value, str) and (match := re.fullmatch(r"([0-9]{1,3}(?:\.[0-9]{1,3})?)x", value.strip())):
        return MinResidency(load_times=float(match[1]))
    try:
        return MinResidency(duration=parse_duration(value))
    except ValueError as error:
        raise ValueError(f"{error}, or a multiple of the load time such as 1x") from None


def format_min_residency(rule: MinResidency) -> str:
    """Return what ``parse_min_residency`` reads back."""
    return f"{rule.load_times:g}x" if rule.load_times else format_duration(rule.duration)
