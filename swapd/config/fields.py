"""Gives each kind of configuration value its pydantic type: how it is read, written back and described to editors.

Reading is done by ``units`` and ``values``, which raise ValueError with a whole sentence; ``explain`` puts the key and
the line in front of it. ``x-form`` in a JSON Schema is the short form shown in the reference.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, Strict, WithJsonSchema

from swapd.config import units, values
from swapd.core.ids import Bytes, Duration


def _text(form: str, pattern: str, **extra: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "x-form": form, **extra})


def _either(form: str, *schemas: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": list(schemas), "x-form": form})


_DURATION: Final[dict[str, Any]] = {"type": "string", "pattern": units.DURATION_PATTERN}
_ZERO: Final[dict[str, Any]] = {"const": 0}
_NULL: Final[dict[str, Any]] = {"type": "null"}
_STRINGS: Final[dict[str, Any]] = {"type": "array", "items": {"type": ["string", "number", "boolean"]}}


def _positive_duration(value: object) -> Duration:
    duration = units.parse_duration(value)
    if duration == 0:
        raise ValueError("write a duration above 0, for example 10s")
    return duration


def _positive_size(value: object) -> Bytes:
    size = units.parse_size(value)
    if size == 0:
        raise ValueError("write a size above 0, for example 1GiB")
    return size


def _host_memory(value: object) -> Bytes | Literal["auto"] | None:
    if value == "auto":
        return "auto"
    if value == "off" or value is False:  # YAML 1.1 reads a plain off as the boolean false
        return None
    try:
        return _positive_size(value)
    except ValueError as error:
        raise ValueError(f"{error}, or auto or off") from None


def _write_host_memory(value: Bytes | Literal["auto"] | None) -> str:
    if value is None:
        return "off"
    return value if isinstance(value, str) else units.format_size(value)


def _or(
    word: str | None, parse: Callable[[object], Duration] = units.parse_duration
) -> Callable[[object], Duration | None]:
    """Make a reader of durations that takes one word (``None``: YAML's null) for "no duration"."""

    def read(value: object) -> Duration | None:
        # YAML 1.1 reads a plain off as the boolean false
        if value == word or (word == "off" and value is False):
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"{error}, or {word or 'null for no limit'}") from None

    return read


def _write_or(word: str | None) -> PlainSerializer:
    return PlainSerializer(lambda value: word if value is None else units.format_duration(value))


_WRITE_DURATION: Final = PlainSerializer(units.format_duration, return_type=str)

AnyDuration = Annotated[
    Duration, PlainValidator(units.parse_duration), _WRITE_DURATION, _either("duration", _DURATION, _ZERO)
]
PositiveDuration = Annotated[
    Duration,
    PlainValidator(_positive_duration),
    _WRITE_DURATION,
    _text("duration above 0", units.DURATION_PATTERN),
]
DurationOrNever = Annotated[
    Duration | None,
    PlainValidator(_or("never")),
    _write_or("never"),
    _either("duration or `never`", _DURATION, _ZERO, {"const": "never"}),
]
PositiveDurationOrNever = Annotated[
    Duration | None,
    PlainValidator(_or("never", _positive_duration)),
    _write_or("never"),
    _either("duration above 0, or `never`", _DURATION, {"const": "never"}),
]
DurationOrAuto = Annotated[
    Duration | None,
    PlainValidator(_or("auto")),
    _write_or("auto"),
    _either("`auto` or duration", _DURATION, _ZERO, {"const": "auto"}),
]
DurationOrOff = Annotated[
    Duration | None,
    PlainValidator(_or("off", _positive_duration)),
    _write_or("off"),
    _either("`off` or duration", _DURATION, {"const": "off"}, {"const": False}),
]
DurationOrNull = Annotated[
    Duration | None,
    PlainValidator(_or(None)),
    _write_or(None),
    _either("duration or `null`", _DURATION, _ZERO, _NULL),
]
MinResidency = Annotated[
    units.MinResidency,
    PlainValidator(units.parse_min_residency),
    PlainSerializer(units.format_min_residency, return_type=str),
    _either(
        "duration, or a multiple of the load time such as `1x`",
        _DURATION,
        _ZERO,
        {"type": "string", "pattern": r"^[0-9]{1,3}(?:\.[0-9]{1,3})?x$"},
    ),
]
Size = Annotated[
    Bytes,
    PlainValidator(_positive_size),
    PlainSerializer(units.format_size, return_type=str),
    _either("size", {"type": "string", "pattern": units.SIZE_PATTERN}, {"type": "integer", "minimum": 1}),
]
AnySize = Annotated[
    Bytes,
    PlainValidator(units.parse_size),
    PlainSerializer(units.format_size, return_type=str),
    _either("size", {"type": "string", "pattern": units.SIZE_PATTERN}, {"type": "integer", "minimum": 0}),
]
SizeOrNull = Annotated[
    Bytes | None,
    PlainValidator(lambda value: None if value is None else _positive_size(value)),
    PlainSerializer(lambda value: None if value is None else units.format_size(value)),
    _either(
        "size or `null`", {"type": "string", "pattern": units.SIZE_PATTERN}, {"type": "integer", "minimum": 1}, _NULL
    ),
]
SizeOrAuto = Annotated[
    Bytes | None,
    PlainValidator(lambda value: None if value == "auto" else _positive_size(value)),
    PlainSerializer(lambda value: "auto" if value is None else units.format_size(value), return_type=str),
    _either(
        "`auto` or size",
        {"const": "auto"},
        {"type": "string", "pattern": units.SIZE_PATTERN},
        {"type": "integer", "minimum": 1},
    ),
]
RateOrNone = Annotated[
    Bytes | None,
    PlainValidator(lambda value: None if value == "none" else units.parse_rate(value)),
    PlainSerializer(lambda value: "none" if value is None else units.format_rate(value), return_type=str),
    _either("`none` or size a second", {"const": "none"}, {"type": "string", "pattern": units.RATE_PATTERN}),
]
Share = Annotated[
    float,
    PlainValidator(units.parse_share),
    PlainSerializer(units.format_share, return_type=str),
    _text("share such as `10%`", units.SHARE_PATTERN),
]
#: ``None`` is ``off``
HostMemory = Annotated[
    Bytes | Literal["auto"] | None,
    PlainValidator(_host_memory),
    PlainSerializer(_write_host_memory, return_type=str),
    _either(
        "`auto`, `off` or size",
        {"enum": ["auto", "off", False]},
        {"type": "string", "pattern": units.SIZE_PATTERN},
        {"type": "integer", "minimum": 1},
    ),
]
Ports = Annotated[
    units.PortRange,
    PlainValidator(units.parse_ports),
    PlainSerializer(units.format_ports, return_type=str),
    _text("range of ports", units.PORTS_PATTERN),
]
Listen = Annotated[
    units.Listen,
    PlainValidator(units.parse_listen),
    PlainSerializer(units.format_listen, return_type=str),
    _text("address and port", units.LISTEN_PATTERN),
]
Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict(), Field(ge=1)]
CountOrNull = Annotated[
    int | None, Field(strict=True, ge=0), _either("whole number or `null`", {"type": "integer", "minimum": 0}, _NULL)
]
PositiveCountOrNull = Annotated[
    int | None, Field(strict=True, ge=1), _either("whole number or `null`", {"type": "integer", "minimum": 1}, _NULL)
]
GpuNameOrNull = Annotated[
    str | None,
    PlainValidator(values.parse_gpu_name),
    PlainSerializer(lambda value: value),
    _either("pattern or `null`", {"type": "string", "minLength": 1}, _NULL),
]
#: major and minor number
ComputeCapabilityOrNull = Annotated[
    tuple[int, int] | None,
    PlainValidator(values.parse_compute_capability),
    PlainSerializer(lambda value: None if value is None else values.format_compute_capability(value)),
    _either(
        "version such as `8.0`, or `null`",
        {"type": "string", "pattern": values.CAPABILITY_PATTERN},
        {"type": "number", "minimum": 1},
        _NULL,
    ),
]
Name = Annotated[
    str,
    BeforeValidator(values.parse_name),
    _text("name", values.NAME_PATTERN, minLength=1, maxLength=values.MAX_NAME),
]
Signal = Annotated[str, BeforeValidator(values.parse_signal), _text("name of a signal", r"^[A-Za-z0-9]+$")]
Program = Annotated[
    tuple[str, ...],
    PlainValidator(values.parse_program),
    PlainSerializer(list),
    WithJsonSchema({**_STRINGS, "x-form": "list of strings"}),
]
ProgramOrNull = Annotated[
    tuple[str, ...] | None,
    PlainValidator(values.parse_program_or_null),
    PlainSerializer(lambda value: None if value is None else list(value)),
    _either("list of strings or `null`", {**_STRINGS, "minItems": 1}, _NULL),
]
RequestPath = Annotated[str, BeforeValidator(values.parse_request_path), _text("path", r"^/[^\s#]*$")]
LoopbackUrl = Annotated[str, BeforeValidator(values.parse_loopback_url), _text("URL", r"^http://")]
FilePath = Annotated[
    Path,
    PlainValidator(lambda value: Path(values.parse_path(value))),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1, "x-form": "path"}),
]
WeightsPath = Annotated[
    Path,
    PlainValidator(lambda value: value if isinstance(value, Path) else Path(values.parse_weights_path(value))),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1, "x-form": "path"}),
]
SourceUrl = Annotated[
    str,
    BeforeValidator(values.parse_source),
    PlainSerializer(values.shown_source, return_type=str),
    _text("URL", rf"^({'|'.join(values.SOURCE_SCHEMES)})://"),
]
Patterns = Annotated[tuple[Annotated[str, BeforeValidator(values.parse_pattern)], ...], PlainSerializer(list)]
Sha256OrNull = Annotated[
    str | None,
    PlainValidator(values.parse_sha256),
    PlainSerializer(lambda value: value),
    _either("64 hexadecimal digits, or `null`", {"type": "string", "pattern": values.SHA256_PATTERN}, _NULL),
]
FilePathOrAuto = Annotated[
    Path | None,
    PlainValidator(lambda value: None if value == "auto" else Path(values.parse_path(value))),
    PlainSerializer(lambda value: "auto" if value is None else str(value), return_type=str),
    WithJsonSchema({"type": "string", "minLength": 1, "x-form": "`auto` or path"}),
]
Environment = Annotated[
    dict[str, str],
    BeforeValidator(values.parse_environment),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean"]},
            "x-form": "mapping of variables",
        }
    ),
]
JsonBody = Annotated[
    dict[str, Any],
    BeforeValidator(values.parse_json_body),
    WithJsonSchema({"type": "object", "x-form": "mapping"}),
]
