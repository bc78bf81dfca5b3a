"""Reads the configuration's words: names, signals, programs, request paths, URLs, environments, bodies, kinds of GPUs.

Each function takes what the YAML held and returns the checked value, or raises ValueError with one sentence that says
what to write. Durations, sizes and addresses stand in ``units``.
"""

import json
import re
import signal
from difflib import get_close_matches
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit, urlunsplit

from swapd.config.units import is_loopback, show

MAX_NAME: Final = 256
NAME_PATTERN: Final = r"^[^,\s\x00-\x1f\x7f](?:[^,\x00-\x1f\x7f]*[^,\s\x00-\x1f\x7f])?$"
#: the label under which metrics count requests for models that are not configured
RESERVED_NAME: Final = "__unknown__"
CAPABILITY_PATTERN: Final = r"^[1-9][0-9]?\.[0-9]$"
SHA256_PATTERN: Final = r"^[0-9A-Fa-f]{64}$"
#: where weights can come from; the weight cache has a reader for each
SOURCE_SCHEMES: Final = ("file", "https", "http", "hf", "s3", "gs", "az")
_SOURCE_EXAMPLES: Final = ("hf://Qwen/Qwen3-8B@main", "https://example.org/m01.gguf")


def _refuse(sentence: str) -> NoReturn:
    raise ValueError(sentence)


def parse_name(value: object) -> str:
    """Return a model name or alias."""
    if not isinstance(value, str) or not value:
        _refuse("give the model a name, for example qwen3-8b")
    if not re.fullmatch(NAME_PATTERN, value) or not value.isprintable() or len(value) > MAX_NAME:
        _refuse(
            f"use a name without commas, control characters and outer spaces, at most {MAX_NAME} characters long, "
            f"not {show(value)}"
        )
    if value == RESERVED_NAME:
        _refuse(f"choose another name: {RESERVED_NAME} stands for unknown models in the metrics")
    return value


def parse_signal(value: object) -> str:
    """Return the full name of a signal, ``SIGTERM`` for ``TERM``."""
    names = [member.name for member in signal.Signals]
    text = value.upper() if isinstance(value, str) else ""
    name = text if text.startswith("SIG") else f"SIG{text}"
    if name in names:
        return name
    close = get_close_matches(name, names, n=1) if text else []
    _refuse(
        f"write the name of a signal such as SIGTERM or SIGINT, not {show(value)}"
        + "".join(f"; did you mean {guess}?" for guess in close)
    )


def parse_text(value: object) -> str:
    """Return a string that can be an argument or a variable's value."""
    if not isinstance(value, str):
        _refuse(f'write text in quotes, for example "1", not {show(value)}')
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        _refuse("leave out NUL and half characters, the system cannot pass them on")
    return value


def parse_program(value: object) -> tuple[str, ...]:
    """Return a program with its arguments, or arguments alone."""
    if not isinstance(value, list | tuple):
        _refuse(
            'write a list with one item per word, for example [python, serve.py, --port, "{port}"], '
            f"not {show(value)}; no shell is involved"
        )
    return tuple(parse_text(item) for item in value)


def parse_program_or_null(value: object) -> tuple[str, ...] | None:
    """Return a program with its arguments, or ``None`` for none."""
    if value is None:
        return None
    program = parse_program(value)
    if not program:
        _refuse("write program and arguments as a list, or null for no command")
    return program


def parse_request_path(value: object) -> str:
    """Return the path (and query) of a request to an engine."""
    if not isinstance(value, str) or not re.fullmatch(r"/[!-~]*", value) or "#" in value:
        _refuse(f"write a request path that begins with a slash, for example /health, not {show(value)}")
    return value


def parse_loopback_url(value: object) -> str:
    """Return the base URL of a server on this machine, without a slash at its end."""
    example = "for example http://127.0.0.1:8000"
    if not isinstance(value, str) or not re.fullmatch(r"[!-~]+", value):
        _refuse(f"write the base URL of the server, {example}, not {show(value)}")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        _refuse(f"write the base URL of the server, {example}, not {show(value)}")
    if parts.scheme != "http" or not parts.hostname or not port:
        _refuse(f"write the base URL of the server with its port, {example}, not {show(value)}")
    if parts.username is not None or parts.query or parts.fragment:
        _refuse(f"write a base URL without user, query and fragment, {example}, not {show(value)}")
    if not is_loopback(parts.hostname):
        _refuse(f"name a server on this machine's loopback, {example}, not {show(value)}")
    return parts.geturl().rstrip("/")


def parse_environment(value: object) -> dict[str, str]:
    """Return variables and their values."""
    if not isinstance(value, dict):
        _refuse(f'write variables and values, for example {{OMP_NUM_THREADS: "1"}}, not {show(value)}')
    for key in value:
        if not isinstance(key, str) or not re.fullmatch(r"[^=\0]+", key):
            _refuse(f"use a variable name without = and NUL, for example OMP_NUM_THREADS, not {show(key)}")
    return {parse_text(key): parse_text(text) for key, text in value.items()}


def parse_json_body(value: object) -> dict[str, Any]:
    """Return the JSON object a request carries."""
    if not isinstance(value, dict):
        _refuse(
            "write the JSON body of the request as a mapping, for example {prompt: hi, max_tokens: 1}, "
            f"not {show(value)}"
        )
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        _refuse("leave .nan and .inf out of the body: JSON has no such numbers")
    return value


def parse_gpu_name(value: object) -> str | None:
    """Return the pattern that product names of GPUs must match, or ``None`` for any."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        _refuse(f'write a pattern of the product name such as "*H100*", or null for any, not {show(value)}')
    return value.strip()


def parse_compute_capability(value: object) -> tuple[int, int] | None:
    """Return major and minor number of a compute capability, or ``None`` for any; YAML may hold it as a number."""
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(float(value))
    if not isinstance(value, str) or not re.fullmatch(CAPABILITY_PATTERN, value):
        _refuse(f"write a compute capability such as 8.0, or null for any, not {show(value)}")
    major, _, minor = value.partition(".")
    return int(major), int(minor)


def format_compute_capability(value: tuple[int, int]) -> str:
    """Return what ``parse_compute_capability`` reads back."""
    return f"{value[0]}.{value[1]}"


def parse_weights_path(value: object) -> str:
    """Return the path of weights on this machine, as written."""
    if isinstance(value, str) and re.match(r"[A-Za-z][A-Za-z0-9+]*://", value):
        # not quoted: it may hold a secret
        _refuse("write {source: URL} for weights that come from elsewhere, or a path for those that lie here")
    return parse_path(value)


def parse_source(value: object) -> str:
    """Return the URL that weights come from. No error quotes it, because it may hold a secret."""
    scheme, separator, rest = value.partition("://") if isinstance(value, str) else ("", "", "")
    if not separator:
        _refuse(f"write where the weights come from, for example {' or '.join(_SOURCE_EXAMPLES[:2])}")
    if scheme not in SOURCE_SCHEMES:
        _refuse(f"write a source that begins with {', '.join(f'{known}://' for known in SOURCE_SCHEMES)}")
    if not re.fullmatch(r"[!-~]+", rest):
        _refuse("leave out spaces and write other special characters of the source as in any URL, %20 for a space")
    if scheme == "file" and not re.fullmatch(r"(localhost)?/.+", rest):
        _refuse("write an absolute path after file://, for example file:///mnt/models/m01.gguf")
    if scheme == "hf" and not re.fullmatch(r"[^/@]+(/[^/@]+)?(@[^@]+)?", rest):
        _refuse("write hf://organisation/name or hf://organisation/name@revision")
    if scheme != "file" and not _host(f"{scheme}://{rest}"):
        _refuse(f"write host or bucket after {scheme}://")
    return f"{scheme}://{rest}"


def _host(url: str) -> str:
    try:
        _ = urlsplit(url).port  # which raises for a port that is none
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def shown_source(source: str) -> str:
    """Return a source without what must not be shown: credentials, and the query, which may be a signature."""
    parts = urlsplit(source)
    if parts.scheme == "hf":
        return source
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def parse_sha256(value: object) -> str | None:
    """Return a SHA-256 checksum in lower case, or ``None`` for none."""
    if value is None:
        return None
    if not isinstance(value, str) or not re.fullmatch(SHA256_PATTERN, value):
        _refuse(f"write the 64 hexadecimal digits that sha256sum prints, in quotes, not {show(value)}")
    return value.lower()


def parse_pattern(value: object) -> str:
    """Return a pattern of file names below a source."""
    text = parse_text(value)
    if not text or text.startswith("/"):
        _refuse(f'write a pattern of names below the source, for example "*.safetensors", not {show(value)}')
    return text


def parse_path(value: object) -> str:
    """Return the path of a file, as written."""
    if not isinstance(value, str) or not value or "\0" in value:
        _refuse(f"write the path of a file, for example models/m01.gguf, not {show(value)}")
    return parse_text(value)
