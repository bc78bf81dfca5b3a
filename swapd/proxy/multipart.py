"""Finds the ``model`` field of a multipart form that is complete in memory, without copying its files."""

from collections.abc import Iterator, Mapping, Sequence
from email.message import Message
from typing import Final

from swapd.proxy.errors import refuse
from swapd.proxy.model_name import checked_name

_MAX_PART_HEAD: Final = 2 << 10
_MAX_VALUE: Final = 2 << 10
_MAX_PARTS: Final = 64
"""Many parts, or long heads, would hold up the loop; real forms have a handful of short ones."""
_MAX_PARAMETERS: Final = 32
"""In one header, told by its semicolons: the library's time for them grows with their square."""


def read_form(content_type: str, body: bytes | bytearray) -> str | None:
    """Return the form's last ``model`` field, checked, ``None`` if it has none; raises ``RefusedError``."""
    boundary = _parameters("content-type", content_type).get("boundary")
    if not boundary:
        raise refuse("The multipart form does not say its boundary.")
    name = None
    for count, (start, end) in enumerate(_parts(body, b"--" + boundary.encode("utf-8", "surrogateescape"))):
        if count == _MAX_PARTS:
            raise refuse(f"The multipart form has more than {_MAX_PARTS} parts.")
        head_end = body.find(b"\r\n\r\n", start, min(end, start + _MAX_PART_HEAD))
        if head_end >= 0 and _field_name(bytes(body[start:head_end])) == "model":
            name = _value(bytes(body[head_end + 4 : min(end, head_end + 4 + _MAX_VALUE)]))
    return name


def _parts(body: bytes | bytearray, delimiter: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each part (head and value); raises ``RefusedError`` if the form has no end."""
    at = 0 if body.startswith(delimiter) else body.find(b"\r\n" + delimiter) + 2
    if at < 2 and not body.startswith(delimiter):
        raise refuse("The multipart form does not contain its boundary.")
    while True:
        start = at + len(delimiter)
        if body[start : start + 2] == b"--":
            return
        end = body.find(b"\r\n" + delimiter, start)
        if end < 0:
            raise refuse("The multipart form breaks off before its closing boundary.")
        yield start, end
        at = end + 2


def _field_name(head: bytes) -> str | None:
    """Return the field's name; ``None`` for a file."""
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-disposition":
            text = value.decode("utf-8", "replace").strip()
            parameters = _parameters("content-disposition", text)
            return None if parameters.get("filename") is not None else parameters.get("name")
    return None


def _value(value: bytes) -> str:
    try:
        return checked_name(value.decode().strip())
    except UnicodeDecodeError:
        raise refuse("The field 'model' must be encoded in UTF-8.", param="model") from None


def _parameters(header: str, value: str) -> Mapping[str, str | None]:
    """Return a header's parameters by their names in lower case, ``None`` for a value in an encoding of its own."""
    if value.count(";") > _MAX_PARAMETERS:
        raise refuse(f"A header of the multipart form has more than {_MAX_PARAMETERS} semicolons.")
    message = Message()
    message[header] = value
    try:
        listed: Sequence[tuple[str, object]] = message.get_params(header=header) or ()
    except (ValueError, LookupError, TypeError, AttributeError):  # what the library makes of malformed continuations
        raise refuse("A header of the multipart form is malformed.") from None
    # of two with the same name the first counts
    return {name.lower(): found if isinstance(found, str) else None for name, found in reversed(listed)}
