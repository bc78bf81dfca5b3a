"""What is read of a large body while it comes is what is read of it as a whole, to the letter."""

import itertools
import json

import pytest
from aiohttp import web
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from swapd.proxy import gist
from swapd.proxy.failure import RefusedError
from swapd.proxy.gist import BLOCK, ENOUGH, Gist
from swapd.proxy.model_name import BodyFields, read_json
from tests.proxy.harness import http_engine, post_bytes, raw_client, running
from tests.proxy.test_model_property import VALUES, read_or_refused

TEXT = b"words, and more of them, of no importance. "
LONG = TEXT * (1 << 15)
IDS = b"12345, 678, " * (1 << 17)


def read(body: bytes, step: int = 100_000) -> BodyFields:
    """Read a body that comes in pieces."""
    found, memory = Gist(), bytearray(body)
    for end in (*range(step, len(body), step), len(body)):
        found.look(memory, end)
    return found.read(memoryview(memory))


def read_in_pieces(body: bytes, step: int) -> BodyFields | str:
    try:
        return read(body, step)
    except RefusedError as error:
        return error.failure.message


def left(body: bytes) -> int:
    """Return how many bytes are left to be read at the end."""
    found = Gist()
    found.look(bytearray(body), len(body))
    return len(body) - sum(end - start for start, end in found._cuts)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the sizes of what is parsed."""
    seen: list[int] = []

    def noted(body: bytes | memoryview, *, tolerant: bool = True) -> BodyFields:
        seen.append(len(body))
        return read_json(body, tolerant=tolerant)

    monkeypatch.setattr(gist, "read_json", noted)
    return seen


# ── what is left out ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "value",
    [
        b'"' + LONG + b'"',
        b'"' + LONG.replace(b", ", b"\\n") + b'"',
        b'"' + LONG.replace(b"o", b"\xc3\xb6") + b'"',
        f'"{"漢" * (1 << 19)}"'.encode(),
        b"[" + IDS + b"1]",
        b"[[" + IDS + b"1], [1]]",
    ],
    ids=["text", "escapes", "some others than ASCII", "others than ASCII", "numbers", "numbers in two arrays"],
)
@pytest.mark.parametrize("before", [b"", b'"q":"\\\\","r":"\\"\\\\\\"",', b'"q":[{"r":"s"}],' * 20_000])
def test_of_long_text_and_of_many_numbers_little_is_left_to_be_read(
    value: bytes, before: bytes, parsed: list[int]
) -> None:
    body = b'{"stream":true,' + before + b'"x":' + value + b',"model":"a"}'
    assert left(body) < 3 * BLOCK + len(before)
    assert left(body) < len(body) - len(value) // 2
    assert read(body) == BodyFields("a", stream=True)
    assert parsed == [left(body)]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a","x":[' + b'"words", ' * 100_000 + b'""]}',
        b'{"model":"a","x":[' + b"[[1], 2], " * 100_000 + b"1]}",
        b'{"model":"a","x":"' + b"\\\\" * 500_000 + b'"}',
    ],
    ids=["short strings", "arrays", "backslashes"],
)
def test_where_nothing_can_be_left_out_the_whole_is_read(body: bytes) -> None:
    assert left(body) == len(body)
    assert read(body) == BodyFields("a", stream=False)


def test_a_rest_that_would_be_too_large_a_copy_is_not_made(parsed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"model":"a","x":"' + LONG + b'"}'
    read(body)
    monkeypatch.setattr(gist, "_MOST_JOINED", 1000)
    read(body)
    assert parsed == [left(body), len(body)]


def test_numbers_are_more_work_than_text_and_what_is_left_in_place_is_none() -> None:
    def work(body: bytes) -> int:
        return Gist().look(bytearray(body), len(body))

    assert work(b'{"x":[' + IDS[: 2 * BLOCK]) >= ENOUGH
    assert 0 < work(b'{"x":"' + LONG[: 2 * BLOCK]) < ENOUGH
    assert work(b'{"x":[' + b'"words", ' * 100_000) == 0


def test_the_quotes_of_many_short_strings_are_counted_little_by_little_once_that_is_worth_it() -> None:
    strings = b'{"x":["' + b'words", "' * BLOCK
    memory = bytearray(strings + LONG * 6 + b'"],"model":"a"}')
    found, counted = Gist(), [0]
    found.look(memory, len(strings))
    assert found._counted == 0
    for end in range(len(strings) + BLOCK, len(memory), BLOCK):
        work = found.look(memory, end)
        counted.append(found._counted)
        assert work >= ENOUGH or found._cuts or not found._counted
    steps = [after - before for before, after in itertools.pairwise(counted) if before < len(strings)]
    assert len(steps) > 2
    assert max(steps) <= 3 * BLOCK
    found.look(memory, len(memory))
    assert sum(end - start for start, end in found._cuts) > len(LONG)
    assert found.read(memoryview(memory)) == BodyFields("a", stream=False)


# ── what would be wrong ──────────────────────────────────────────────────────────────────────────────────────────────

HALF = len(LONG) // 2
DEEP = b"[" * 700, b"]" * 700


def in_a_block(before: bytes, block: bytes, after: bytes) -> bytes:
    """Return a body of which just ``block`` is looked at in one go, or in several."""
    body = b'{"z":"'.ljust(gist._FIRST - len(before), b"z") + before + block
    assert (len(body) - gist._FIRST) % BLOCK == 0
    return body + after


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a","x":"' + LONG[:HALF] + b"\x01" + LONG[HALF:] + b'"}',
        b'{"model":"a","x":"' + LONG[:HALF] + b"\\x" + LONG[HALF:] + b'"}',
        b'{"model":"a","x":"' + LONG[:HALF] + b"\\ud83d" + LONG[HALF:] + b'"}',
        b'{"model":"a","x":"' + LONG[:HALF] + b"\xed\xa0\x80" + LONG[HALF:] + b'"}',
        b'{"model":"a","x":"' + LONG[:HALF] + b'","' + LONG[HALF:] + b'"}',
        b'{"model":"a","x":"' + LONG,
        b'{"model":"a",' + LONG + b"}",
        b'{"model":"a"} ' + LONG,
        b'"model"' + b", 1" * BLOCK,
        b'{"model":"a",' + IDS + b'"x":1}',
        b'{"model":"a","x":1, ' + IDS + b'"y":1}',
        b'{"model":"a","x":[' + IDS + b", 1]}",
        b'{"model":"a","x":[' + IDS + b", " + IDS + b"1]}",
        b'{"model":"a","x":[' + IDS + b"01, " + IDS + b"1]}",
        b'{"model":"a","x":[' + IDS + b"1], " + IDS + b"1]}",
        b'{"model":"a","x":[' + b"1, " + b" " * 2 * BLOCK + b", 1]}",
        b'{"model":"a","x":[' + IDS + b"1}",
        b'{"model":"a","x":NaN,"y":"' + LONG + b'"}',
        b'{"model":"' + LONG + b'"}',
        b'{"model":"' + b"\\ud83d\\ude00" * BLOCK + b'"}',
        b'{"model":[' + IDS + b"1]}",
        b'{"x":"' + LONG + b'","model":1}',
        b'{"model":"a"' + LONG + b'"x":1}',
        b'{"model":"a","x":' + DEEP[0] + IDS + DEEP[0] + b"1" + DEEP[1] + b", " + IDS + b"1" + DEEP[1] + b"}",
        in_a_block(b'","model":"', b"a" * BLOCK, b'"}'),
        in_a_block(b'","model":"', b"a" * 3 * BLOCK, b'"}'),
        in_a_block(b'","model":"a","x":', b"1," * (BLOCK // 2), b'"y":1}'),
        in_a_block(b'","model":"a","x":[', b"1," + b", 1,".rjust(BLOCK - 2), b"1]}"),
        in_a_block(b'","model":"a","x":[', b"1,".ljust(BLOCK), b" ,1]}"),
    ],
)
def test_what_is_refused_as_a_whole_is_refused_with_the_same_sentence(body: bytes) -> None:
    sentence = read_or_refused(body)
    assert isinstance(sentence, str)
    assert read_in_pieces(body, 100_000) == sentence


@pytest.mark.parametrize("key", [b"model" + LONG, b"mod" + LONG + b"el", LONG + b"model"])
def test_a_long_key_does_not_become_a_short_one(key: bytes) -> None:
    assert read(b'{"' + key + b'":"b"}') == BodyFields(None, stream=False)
    assert read(b'{"model":"a","' + key + b'":"b"}') == BodyFields("a", stream=False)


def test_what_python_engines_read_is_accepted_up_to_the_same_size() -> None:
    body = b'{"model":"a","x":NaN,"y":"' + LONG[:200_000] + b'"}'
    assert read(body) == BodyFields("a", stream=False)


# ── any body ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SEEDS = st.sampled_from(
    [
        "ab c",
        "1, 2, ",
        "é",
        "漢",
        "\\n",
        '\\"',
        "\\\\",
        "\\u00e9",
        "\\ud83d\\ude00",
        "[1], ",
        "[",
        '"',
        '"x", ',
        " ",
        ",",
    ]
)
STRETCHES = st.lists(st.tuples(SEEDS, st.integers(1, 1500)), min_size=1, max_size=3).map(
    lambda parts: "".join(seed * times for seed, times in parts)
)
LARGE = st.one_of(STRETCHES.map(lambda text: f'"{text}"'), STRETCHES.map(lambda text: f"[{text}0]"), VALUES)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Return a body with long stretches of one kind, perhaps with a few wrong bytes."""
    pairs = draw(st.lists(st.tuples(st.sampled_from(['"x"', '"y"', '"stream"']), LARGE), min_size=1, max_size=4))
    pairs.insert(draw(st.integers(0, len(pairs))), ('"model"', '"a"'))
    body = bytearray(("{" + ",".join(f"{key}:{value}" for key, value in pairs) + "}").encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        at = draw(st.integers(0, len(body)))
        wrong = st.sampled_from([b"", b'"', b"\\", b",", b"]", b"[", b"\n", b"\xff"])
        body[at : at + draw(st.integers(0, 1))] = draw(wrong)
    return bytes(body)


@pytest.fixture
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make what is large small, that much happens in few bytes."""
    for name, value in {"BLOCK": 256, "_FIRST": 64, "_NEAR": 16, "_KEPT": 32}.items():
        monkeypatch.setattr(gist, name, value)


@pytest.mark.usefixtures("_small_blocks")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bodies(), st.integers(1, 5000))
@example(b'{"x":"' + b"a" * 500 + b'","model":"a","y":[' + b"1, " * 500 + b"1]}", 300)
def test_the_pieces_tell_what_the_whole_tells(body: bytes, step: int) -> None:
    assert read_in_pieces(body, step) == read_or_refused(body)


# ── through the front door ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [b"[" + IDS + b"1]", b'"' + LONG + b'"'], ids=["numbers", "text"])
async def test_a_body_that_is_looked_at_in_several_turns_arrives_whole(value: bytes) -> None:
    async def engine(request: web.BaseRequest) -> web.StreamResponse:
        got = await request.content.read()
        return web.Response(text=json.dumps([len(got), got == body]))

    body = b'{"x":' + value + b',"model":"m01"}'
    async with http_engine(engine) as port, running(engine_port=port) as node, raw_client(node.port) as client:
        for _ in range(3):
            await client.send(post_bytes("/v1/chat/completions", body))
            await client.read_until(f"[{len(body)}, true]".encode())
        await node.settled(3)
        assert node.front.buffered_bytes == 0
