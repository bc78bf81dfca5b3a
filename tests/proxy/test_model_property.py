"""The model of a body is ``json.loads(body)["model"]``, or the body is refused on purpose, with a sentence.

Bodies are written here by hand, not by a library: spaces, escapes, duplicates, numbers and nesting that no library
writes but that a client may send.
"""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swapd.proxy.failure import RefusedError
from swapd.proxy.model_name import BodyFields, checked_name, read_json, read_plain

TOLERANT = 256 << 10
SPACE = st.sampled_from(["", "", "", " ", "\n", "\t\r\n "])


@st.composite
def written(draw: st.DrawFn, text: str) -> str:
    """Return a JSON string that means ``text``, each character escaped or not."""
    out = []
    for char in text:
        short = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
        units = char.encode("utf-16-be", "surrogatepass")
        long = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
        forms = [long, long.upper().replace("U", "u")]
        if char in short:
            forms.append(short[char])
        if char not in {'"', "\\"} and char >= " " and not "\ud800" <= char <= "\udfff":
            forms += [char] * 5
        out.append(draw(st.sampled_from(forms)))
    return '"' + "".join(out) + '"'


TEXTS = st.text(st.characters(), max_size=12)
STRINGS = TEXTS.flatmap(written)
NUMBERS = st.one_of(
    st.integers().map(str),
    st.floats(allow_nan=True, allow_infinity=True).map(json.dumps),
    st.sampled_from(["-0", "1e999", "-1E-999", "0.0e+0", "9" * 400, "1" + "0" * 4290, "NaN", "Infinity", "-Infinity"]),
)
LITERALS = st.sampled_from(["null", "true", "false"])


@st.composite
def joined(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    """Return an array or an object of other values."""
    items = draw(st.lists(inner, max_size=4))
    gap = draw(SPACE)
    if draw(st.booleans()):
        return f"[{gap}" + f"{gap},{gap}".join(items) + f"{gap}]"
    pairs = [f"{draw(STRINGS)}{gap}:{gap}{item}" for item in items]
    return f"{{{gap}" + f",{gap}".join(pairs) + f"{gap}}}"


VALUES = st.recursive(st.one_of(STRINGS, NUMBERS, LITERALS), joined, max_leaves=10)
DEEP = st.integers(1, 300).map(lambda depth: "[" * depth + "]" * depth)
NAMES = st.one_of(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40),
    TEXTS,
)
MODEL_KEYS = st.just("model").flatmap(written)
OTHER_KEYS = st.one_of(st.sampled_from(["Model", "model ", "mode", "modell", "stream", "messages"]), TEXTS).flatmap(
    written
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Return a body that is most often an object with a model somewhere, more than one perhaps, of any size."""
    pairs = draw(st.lists(st.tuples(OTHER_KEYS, st.one_of(VALUES, DEEP)), max_size=5))
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 1, 2, 3]))):
        value = draw(st.one_of(NAMES.flatmap(written), NAMES.flatmap(written), VALUES))
        pairs.insert(draw(st.integers(0, len(pairs))), (draw(MODEL_KEYS), value))
    size = draw(st.sampled_from([0, 0, 0, 0, 1_000, 70_000, TOLERANT + 1]))
    if size:
        pairs.insert(draw(st.integers(0, len(pairs))), ('"pad"', '"' + draw(st.sampled_from("xé")) * size + '"'))
    gap = draw(SPACE)
    text = gap + "{" + ",".join(f"{gap}{key}{gap}:{gap}{value}{gap}" for key, value in pairs) + "}" + gap
    return (b"\xef\xbb\xbf" if draw(st.integers(0, 9)) == 0 else b"") + text.encode("utf-8", "surrogatepass")


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a body in which some bytes are others, are missing or are too many."""
    body = bytearray(draw(bodies()))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 2))] = draw(
            st.one_of(st.binary(max_size=2), st.sampled_from([b'"', b"\\", b","]))
        )
    return bytes(body)


def meant(body: bytes) -> dict[str, Any] | None:
    """Return the body as Python's parser reads it; ``None`` if it is no JSON object, or not in UTF-8."""
    try:
        body.decode()
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def is_name(value: object) -> bool:
    """Tell whether a model can have this name."""
    with contextlib.suppress(RefusedError):
        return checked_name(value) == value
    return False


def check(body: bytes) -> None:
    """Compare what is read of a body with what it means."""
    document, found = meant(body), read_or_refused(body)
    assert read_or_refused(memoryview(bytearray(body))) == found
    plain = read_plain(body)
    if plain is not None and is_name(plain.model):
        assert found == (plain.model, plain.stream)
    if isinstance(found, BodyFields):
        assert document is not None
        assert found.model == document.get("model")
        assert found.model is not None or "model" not in document
        assert found.stream is (document.get("stream") is True)
        return
    assert found.endswith(".")
    if document is not None and ("model" not in document or is_name(document["model"])):
        # refused although it is JSON that names a model: for its size only
        assert "not valid JSON" in found
        assert len(body) > TOLERANT
        assert any(mark in body for mark in (b"NaN", b"Infinity", b"\\ud", b"\\uD"))


def read_or_refused(body: bytes | memoryview) -> BodyFields | str:
    """Return what is read of a body, or the sentence of its refusal."""
    try:
        return read_json(body)
    except RefusedError as error:
        return error.failure.message


@settings(deadline=None)
@given(bodies())
@example(b'{"model":"a","model":"b"}')
@example(b'{"mod\\u0065l":"a","x":"\\ud83d"}')
@example(b'\xef\xbb\xbf{"model":"a"}')
@example(b'{"x":' + b"[" * 900 + b"]" * 900 + b',"model":"a"}')
def test_the_model_is_what_pythons_parser_reads_or_the_refusal_has_a_reason(body: bytes) -> None:
    check(body)


@settings(deadline=None)
@given(damaged())
@example(b'{"model":"a","x":01}')
@example(b'{"model":"a","x":"\x01"}')
@example(b'{"model":"a","x":"\\x"}')
@example(b'{"model":"a","x":1.}')
@example(b'{"model":"a","x":"\xed\xa0\x80"}')
@example(b'{"model":"a","x":tru}')
@example(b'{"model":"a",}')
@example(b'{"model":"a"}\0')
def test_nothing_is_read_of_what_is_no_json(body: bytes) -> None:
    check(body)


@pytest.mark.parametrize("digits", [5_000, 100_000])
def test_a_number_longer_than_pythons_parser_reads_is_no_reason_to_refuse(digits: int) -> None:
    assert read_json(b'{"x":' + b"9" * digits + b',"model":"a"}').model == "a"
