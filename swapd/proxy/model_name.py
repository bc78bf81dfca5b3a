"""Finds the model that a complete body names, by a parse of two fields; everything else in it is the engine's affair.

What the strict parser says is not by itself the verdict. Decided on purpose:

* duplicate keys: the last one counts, as in the engines' own parsers, whatever types the earlier ones had;
* a UTF-8 byte order mark is passed over; other encodings than UTF-8 are refused, in any part of the body;
* ``NaN``, ``Infinity`` and half a surrogate pair (an emoji cut in two), which Python engines read, are accepted
  in bodies up to 256 KiB (their parser is slow);
* nesting deeper than the parsers can follow is refused;
* other malformed JSON, a body that is no object, and a name that is no string, empty, too long or has control
  characters are refused.

The bytes are never changed.
"""

import codecs
import json
from typing import Final, NamedTuple

import msgspec

from swapd.proxy.errors import refuse

MAX_NAME_LENGTH: Final = 256
"""Characters."""
_TOLERANT_LIMIT: Final = 256 << 10
_TOLERATED: Final = (b"NaN", b"Infinity", b"\\ud", b"\\uD")
_UTF8_BLOCK: Final = 128 << 10
_UNSET: Final = msgspec.Raw(b"")


class _Fields(msgspec.Struct):
    model: msgspec.Raw = _UNSET
    stream: msgspec.Raw = _UNSET


class BodyFields(NamedTuple):
    """What swapd reads in a body."""

    #: checked; ``None``: the body names none
    model: str | None
    #: the client asked for a stream
    stream: bool


class PlainFields(msgspec.Struct):
    """The same of an ordinary body; its model is a name."""

    model: str = ""
    stream: bool = False


_DECODER: Final = msgspec.json.Decoder(_Fields)
_PLAIN: Final = msgspec.json.Decoder(PlainFields)


def read_plain(body: bytes) -> PlainFields | None:
    """Return what ``read_json`` would say of the ordinary body, for less; ``None``: ask that one."""
    if not body.isascii():
        return None
    try:
        fields = _PLAIN.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return fields if fields.model else None


def read_json(body: bytes | bytearray | memoryview, *, tolerant: bool = True) -> BodyFields:
    """Return model and stream flag of a JSON body; raises ``RefusedError`` with a sentence for the client.

    Not ``tolerant``: what only engines' parsers read is refused whatever its size.
    """
    _check_utf8(body)
    has_mark = body[: len(codecs.BOM_UTF8)] == codecs.BOM_UTF8
    view = memoryview(body)[len(codecs.BOM_UTF8) :] if has_mark else body
    try:
        fields = _DECODER.decode(view)
    except msgspec.ValidationError:
        raise refuse("The body must be a JSON object with a string field 'model'.") from None
    except RecursionError:
        raise refuse("The body's JSON is nested too deeply.") from None
    except msgspec.DecodeError as error:
        return _read_tolerantly(view if tolerant else b"", str(error))
    raw = bytes(fields.model)
    if not raw:
        return BodyFields(None, bytes(fields.stream) == b"true")
    try:
        model = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        model = None
    return BodyFields(checked_name(model), bytes(fields.stream) == b"true")


def checked_name(name: object) -> str:
    """Return the name if it can be one; raises ``RefusedError``."""
    if not isinstance(name, str):
        raise refuse("The field 'model' must be a string.", param="model")
    if not name:
        raise refuse("The model's name is empty.", param="model")
    if len(name) > MAX_NAME_LENGTH:
        raise refuse(f"The model's name is longer than {MAX_NAME_LENGTH} characters.", param="model")
    if not name.isprintable():
        raise refuse("The model's name has characters that cannot be printed.", param="model")
    return name


def _read_tolerantly(view: bytes | bytearray | memoryview, complaint: str) -> BodyFields:
    """Read what the strict parser refused, if something that engines accept may be the cause."""
    body = bytes(view) if len(view) <= _TOLERANT_LIMIT else b""
    if any(mark in body for mark in _TOLERATED):
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            model = checked_name(found["model"]) if "model" in found else None
            return BodyFields(model, found.get("stream") is True)
    raise refuse(f"The body is not valid JSON: {complaint.removeprefix('JSON is malformed: ')}.")


def _check_utf8(body: bytes | bytearray | memoryview) -> None:
    """Raise ``RefusedError`` unless the body is UTF-8; in blocks, so that no second copy of it comes to be."""
    if not isinstance(body, memoryview) and body.isascii():
        return
    view, start = memoryview(body), 0
    try:
        while start < len(view):
            end = start + _UTF8_BLOCK
            start += codecs.utf_8_decode(view[start:end], "strict", end >= len(view))[1]
    except UnicodeDecodeError:
        raise refuse("The body must be encoded in UTF-8.") from None
