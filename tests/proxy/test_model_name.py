"""Where and how a request's model is found."""

import json
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swapd.proxy.failure import RefusedError
from swapd.proxy.model_name import MAX_NAME_LENGTH, checked_name, read_json
from swapd.proxy.multipart import read_form
from tests.proxy.harness import header, http_engine, post_bytes, raw_client, running

DEEP = b"[" * 50_000 + b"]" * 50_000


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (b'{"model":"a"}', "a"),
        (b'{"x":{"model":"no"},"model":"a"}', "a"),
        (b'{"model":"a","model":"b"}', "b"),
        (b'{"model":17,"model":"b"}', "b"),
        (b'{"mod\\u0065l":"a"}', "a"),
        (b'{"model":"\\u0061\\/b"}', "a/b"),
        ('{"model":"größe-模型"}'.encode(), "größe-模型"),
        (b'\xef\xbb\xbf {"model":"a"}', "a"),
        (b'{"temperature":NaN,"model":"a"}', "a"),
        (b'{"temperature":-Infinity,"model":"a","model":"b"}', "b"),
        (b'{"x":1e999,"model":"a"}', "a"),
        (b'{"x":"cut \\ud83d","model":"a"}', "a"),
        (b'\n\t {"model" : "a" }\r\n', "a"),
        (b'{"Model":"x"}', None),
        (b"{}", None),
    ],
)
def test_the_model_is_found_in_a_json_body(body: bytes, model: str | None) -> None:
    assert read_json(body).model == model
    assert read_json(bytearray(body)).model == model


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "not valid JSON"),
        (b'{"model":"a"', "not valid JSON"),
        (b'{"model":"a"} x', "not valid JSON"),
        (b"{'model':'a'}", "not valid JSON"),
        (b'{"x":"\x01","model":"a"}', "not valid JSON"),
        (b'{"x":NaN,"model":"a"', "not valid JSON"),
        (b'{"x":NaN,"pad":"' + b"y" * (300 << 10) + b'","model":"a"}', "not valid JSON"),
        (b'["model"]', "must be a JSON object"),
        (b'"model"', "must be a JSON object"),
        (b"[NaN]", "must be a JSON object"),
        (b'{"model":null}', "must be a string"),
        (b'{"model":["a"]}', "must be a string"),
        (b'{"model":"a","model":1}', "must be a string"),
        (b'{"model":"\\ud800"}', "cannot be printed"),
        (b'{"model":""}', "is empty"),
        (b'{"model":"a\\nb"}', "cannot be printed"),
        (b'{"model":"' + b"a" * (MAX_NAME_LENGTH + 1) + b'"}', "longer than"),
        (b'{"model":"a","x":"\xff"}', "UTF-8"),
        ('{"model":"a"}'.encode("utf-16"), "UTF-8"),
        (b'{"model":"a","x":' + DEEP + b"}", "nested too deeply"),
        (b'{"model":' + DEEP + b"}", "nested too deeply"),
    ],
)
def test_a_body_that_names_no_model_in_a_way_to_rely_on_is_refused_with_a_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises(RefusedError, match=sentence) as refused:
        read_json(body)
    assert refused.value.failure.status == 400
    assert refused.value.failure.message.endswith(".")


@pytest.mark.parametrize(
    ("body", "stream"),
    [
        (b'{"stream":true}', True),
        (b'{"stream":false}', False),
        (b'{"stream":"true"}', False),
        (b'{"x":NaN,"stream":true}', True),
    ],
)
def test_only_a_true_asks_for_a_stream(body: bytes, *, stream: bool) -> None:
    assert read_json(body).stream is stream


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(str.isprintable)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, str]:
    """Return a JSON body with a model at any place of its top level, in any layout, and the model."""
    name = draw(NAMES)
    before = draw(st.dictionaries(st.text().filter(lambda key: key != "model"), JSON, max_size=4))
    after = draw(st.dictionaries(st.text().filter(lambda key: key != "model"), JSON, max_size=4))
    document: dict[str, Any] = {**before, "model": name, **after}
    ascii_only = draw(st.booleans())
    text = json.dumps(document, ensure_ascii=ascii_only, indent=draw(st.none() | st.integers(0, 3)))
    try:
        return text.encode(), name
    except UnicodeEncodeError:
        return json.dumps(document).encode(), name


@given(bodies())
def test_any_json_object_with_a_model_at_its_top_level_is_understood(case: tuple[bytes, str]) -> None:
    body, name = case
    before = bytes(body)
    assert read_json(body).model == name
    assert body == before


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_but_a_refusal_or_a_name(body: bytes) -> None:
    try:
        found = read_json(body)
    except RefusedError:
        return
    assert found.model is None or checked_name(found.model)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=8), JSON, max_size=3), min_size=1, max_size=5))
def test_whatever_else_a_body_says_it_is_forwarded_byte_for_byte(documents: list[dict[str, Any]]) -> None:
    import asyncio

    sent = []
    for number, document in enumerate(documents):
        document.pop("model", None)
        items = list(document.items())
        items.insert(number % (len(items) + 1), ("model", "m01"))
        sent.append(json.dumps(dict(items), indent=number % 3).encode())
    assert asyncio.run(_forwarded(sent)) == sent


async def _forwarded(sent: list[bytes]) -> list[bytes]:
    got: list[bytes] = []

    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        got.append(await request.content.read())
        return web.Response(text="ok")

    async with http_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        for body in sent:
            await client.send(post_bytes("/v1/completions", body))
            head = await client.read_head()
            assert head.startswith(b"HTTP/1.1 200"), body
            await client.reader.readexactly(int(header(head, "content-length") or 0))
        await node.settled(len(sent))
    return got


def form(*parts: bytes, boundary: bytes = b"XX") -> bytes:
    return b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + boundary + b"--\r\n"


AUDIO = (
    b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n\x00--XY\r\n--X'
)
MODEL = b'Content-Disposition: form-data; name="model"\r\n\r\nm01'


@pytest.mark.parametrize(
    ("body", "model"),
    [
        (form(MODEL, AUDIO), "m01"),
        (form(AUDIO, MODEL), "m01"),
        (b"preamble\r\n" + form(AUDIO, MODEL), "m01"),
        (form(MODEL, MODEL.replace(b"m01", b"m02")), "m02"),
        (form(b"content-disposition:form-data;name=model\r\n\r\nm01"), "m01"),
        (form(b'X-Other: 1\r\nContent-Disposition: form-data; name="model"\r\n\r\n m01 '), "m01"),
        (form(b'Content-Disposition: form-data; name="model"; filename="x"\r\n\r\nm01'), None),
        (form(MODEL.replace(b'"model"', b'"model"' + b";" * 31)), "m01"),
        (form(MODEL.replace(b'"model"', b'"model"; Name=other')), "m01"),
        (form(MODEL.replace(b'"model"', b'"other"; name=model')), None),
        (form(AUDIO), None),
    ],
)
def test_the_model_is_found_in_a_form(body: bytes, model: str | None) -> None:
    assert read_form('multipart/form-data; boundary="XX"', body) == model
    assert read_form("multipart/form-data; boundary=XX", bytearray(body)) == model


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", form(MODEL)),
        ("multipart/form-data; boundary=YY", form(MODEL)),
        ("multipart/form-data; boundary=XX", form(MODEL)[:-8]),
        ("multipart/form-data; boundary=XX", form(MODEL.replace(b"m01", b""))),
        ("multipart/form-data; boundary=XX", form(MODEL.replace(b"m01", b"\xff"))),
        ("multipart/form-data; boundary=XX", form(MODEL.replace(b"m01", b"m" * 5000))),
        ("multipart/form-data; boundary=XX", b""),
        ("multipart/form-data; boundary=XX", form(*[b""] * 100_000)),
        (
            "multipart/form-data; boundary=XX",
            form(b"Content-Disposition: form-data; name*=xx''%ff; name*0*=q\r\n\r\nm01"),
        ),
        ("multipart/form-data; boundary=XX" + ";" * 32, form(MODEL)),
        ("multipart/form-data; boundary=XX", form(MODEL.replace(b"; ", b";" * 33 + b" "))),
        ("multipart/form-data; boundary=XX", form(MODEL.replace(b"; ", b'; x="' + b";" * 32 + b'"; '))),
    ],
    ids=[
        "no boundary",
        "another",
        "no end",
        "empty",
        "not UTF-8",
        "too long",
        "no body",
        "too many parts",
        "malformed",
        "too many parameters of the form",
        "too many parameters of a part",
        "too many semicolons in quotes",
    ],
)
def test_a_malformed_form_is_refused(content_type: str, body: bytes) -> None:
    with pytest.raises(RefusedError):
        read_form(content_type, body)


@given(st.binary(max_size=300), st.text(max_size=20))
def test_no_form_does_anything_but_a_refusal_or_a_name(body: bytes, boundary: str) -> None:
    try:
        found = read_form(f"multipart/form-data; boundary={boundary}", body)
    except RefusedError:
        return
    assert found is None or checked_name(found)


@pytest.mark.parametrize(
    ("path", "body", "fields", "status", "model"),
    [
        ("/v1/completions", b'{"model":"m01"}', (), 200, "m01"),
        ("/v1/completions", b'{"model":"tiny-one"}', (), 200, "m01"),
        ("/generate", b'{"inputs":"x"}', ("x-swapd-model: m02",), 200, "m02"),
        ("/generate?model=m01&model=m02", b'{"inputs":"x"}', ("x-swapd-model: m01",), 200, "m02"),
        ("/generate?model=m02", b'{"model":"m01"}', ("x-swapd-model: m02",), 200, "m01"),
        ("/generate", b"RIFF....", ("x-swapd-model: m01", "Content-Type: audio/wav"), 200, "m01"),
        ("/generate", b'{"model":"m01"}', ("Content-Type: application/octet-stream",), 200, "m01"),
        ("/generate", b'{"model":"m01"}', ("Content-Type: application/x-www-form-urlencoded",), 200, "m01"),
        ("/generate", b"", ("x-swapd-model: m01",), 200, "m01"),
        ("/generate", b'{"inputs":"x"}', (), 400, None),
        ("/generate", b"{broken", ("x-swapd-model: m01",), 400, None),
        ("/v2/models/m01/infer", b'{"model":"other"}', (), 200, "m01"),
        ("/v2/models/meta%2Fllama/versions/1/generate", b"{}", (), 200, "meta/llama"),
        ("/v2/models/nobody/infer", b"{}", (), 404, None),
        (
            "/v1/audio/transcriptions",
            form(AUDIO, MODEL),
            ("Content-Type: multipart/form-data; boundary=XX",),
            200,
            "m01",
        ),
        ("/v1/audio/transcriptions", form(AUDIO), ("Content-Type: multipart/form-data; boundary=XX",), 400, None),
    ],
)
async def test_the_model_comes_from_path_body_query_or_header_in_this_order(
    path: str, body: bytes, fields: tuple[str, ...], status: int, model: str | None
) -> None:
    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        assert await request.content.read() == body
        return web.Response(text="ok")

    async with http_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes(path, body, *fields))
        head = await client.read_head()
        assert head.split(b" ")[1] == str(status).encode()
        record = await node.settled(1)
    assert record.model == model


@pytest.mark.parametrize(
    ("value", "status", "priority"), [("low", 200, 2), ("Normal", 200, 1), ("high", 200, 0), ("urgent", 400, None)]
)
async def test_the_priority_header_is_passed_to_the_core(value: str, status: int, priority: int | None) -> None:
    async def engine(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="ok")

    async with http_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        await client.send(post_bytes("/v1/completions", b'{"model":"m01"}', f"x-swapd-priority: {value}"))
        assert (await client.read_head()).split(b" ")[1] == str(status).encode()
        await node.settled(1)
        assert [arrival.priority for arrival in node.core.arrivals] == ([] if priority is None else [priority])
