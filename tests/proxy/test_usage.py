"""Token counts are the engine's own, exact, or none."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swapd.proxy.front.chunks import framed
from swapd.proxy.usage import Usage, UsageReader

SSE = "text/event-stream; charset=utf-8"
NDJSON = "application/x-ndjson"


def sse(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def ndjson(*lines: Any) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


CASES = [
    pytest.param(
        "application/json",
        json.dumps({"usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}}).encode(),
        Usage(5, 7),
        id="OpenAI plain",
    ),
    pytest.param(
        "application/json", b'{"data":[],"usage":{"prompt_tokens":8,"total_tokens":8}}', Usage(8, None), id="embeddings"
    ),
    pytest.param(
        SSE,
        sse(
            {"choices": [{"delta": {"content": '"usage"'}}], "usage": None},
            {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        ),
        Usage(3, 2),
        id="OpenAI stream",
    ),
    pytest.param(
        SSE,
        sse(
            {"usage": {"prompt_tokens": 3, "completion_tokens": 1}},
            {"usage": {"prompt_tokens": 3, "completion_tokens": 2}},
        ),
        Usage(3, 2),
        id="usage in every chunk",
    ),
    pytest.param(SSE, sse({"choices": [{"delta": {"content": "x"}}]}), Usage(), id="stream without usage"),
    pytest.param(
        SSE,
        b'event: response.completed\ndata: {"type":"response.completed","response":'
        b'{"usage":{"input_tokens":4,"output_tokens":6}}}\n\n',
        Usage(4, 6),
        id="OpenAI responses stream",
    ),
    pytest.param(
        "application/json", b'{"usage":{"input_tokens":4,"output_tokens":6}}', Usage(4, 6), id="OpenAI responses plain"
    ),
    pytest.param(
        SSE,
        b'event: message_start\r\ndata: {"message":{"usage":{"input_tokens":10,"cache_read_input_tokens":90,'
        b'"cache_creation_input_tokens":5,"output_tokens":1}}}\r\n\r\n'
        b'event: message_delta\r\ndata: {"delta":{},"usage":{"output_tokens":15}}\r\n\r\n',
        Usage(105, 15),
        id="Anthropic stream, split",
    ),
    pytest.param(
        SSE,
        b'event: message_start\ndata: {"message":{"usage":{"input_tokens":10,"output_tokens":1}}}\n\n',
        Usage(10, None),
        id="Anthropic stream without its last part",
    ),
    pytest.param(
        NDJSON,
        ndjson(
            {"message": {"content": "a"}, "done": False}, {"done": True, "prompt_eval_count": 26, "eval_count": 298}
        ),
        Usage(26, 298),
        id="Ollama stream",
    ),
    pytest.param(
        NDJSON,
        ndjson({"response": "a"}, {"response": "", "done": True, "prompt_eval_count": 2, "eval_count": 3})[:-1],
        Usage(2, 3),
        id="Ollama stream without a last newline",
    ),
    pytest.param(
        "application/json",
        b'{"tokens_predicted":9,"tokens_evaluated":4,"content":""}',
        Usage(4, 9),
        id="llama.cpp plain",
    ),
    pytest.param(
        SSE,
        sse({"choices": [], "timings": {"cache_n": 10, "prompt_n": 4, "predicted_n": 6}}),
        Usage(14, 6),
        id="llama.cpp timings",
    ),
    pytest.param(
        SSE, sse({"timings": {"prompt_n": 4, "predicted_n": 6}}), Usage(None, 6), id="timings without the cached part"
    ),
    pytest.param(
        "application/json", b'{"generated_text":"x","details":{"generated_tokens":5}}', Usage(None, 5), id="TGI plain"
    ),
    pytest.param(
        SSE,
        b'data:{"token":{},"details":null}\n\ndata:{"token":{},"details":{"generated_tokens":5,"input_length":3}}\n\n',
        Usage(3, 5),
        id="TGI stream",
    ),
    pytest.param(
        "application/json",
        b'{"text":"x","usage":{"type":"tokens","input_tokens":14,"output_tokens":45}}',
        Usage(14, 45),
    ),
    pytest.param(
        "application/json", b'{"text":"x","usage":{"type":"duration","seconds":3}}', Usage(), id="audio, seconds"
    ),
    pytest.param("application/json", b'{"usage":{"prompt_tokens":"5"}}', Usage(), id="not a number"),
    pytest.param("application/json", b'{"usage":{"prompt_tokens":-5}}', Usage(), id="less than none"),
    pytest.param("application/json", b'{"usage":{"prompt_tokens":1%b}}' % (b"0" * 400), Usage(), id="too many digits"),
    pytest.param("application/json", b'{"eval_count":-1}', Usage(), id="less than none of ollama"),
    pytest.param("application/json", b'{"usage":{"prompt_tokens":5}', Usage(), id="not JSON"),
    pytest.param("application/json", b'["usage"]', Usage(), id="not an object"),
    pytest.param("application/json", b'{"usage":' + b"[" * 50_000, Usage(), id="too deep"),
    pytest.param("text/plain", b'{"usage":{"prompt_tokens":5}}', Usage(), id="another type"),
]


@pytest.mark.parametrize(("content_type", "body", "usage"), CASES)
def test_counts_are_found_in_every_api_and_however_the_answer_is_cut_into_pieces(
    content_type: str, body: bytes, usage: Usage
) -> None:
    for size in (len(body), 1, 2, 7, 16):
        reader = UsageReader(content_type, "")
        for start in range(0, min(len(body), 4000) if size < 7 else len(body), size):
            reader.feed(body[start : start + size])
        if size >= 7 or len(body) <= 4000:
            assert reader.finish() == usage


@given(st.lists(st.integers(1, 40), max_size=40))
def test_borders_of_pieces_do_not_matter(sizes: list[int]) -> None:
    body = sse({"choices": []}, {"usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    reader = UsageReader(SSE, "")
    at = 0
    for size in sizes:
        reader.feed(body[at : at + size])
        at += size
    reader.feed(body[at:])
    assert reader.finish() == Usage(3, 2)


@given(st.binary(max_size=300), st.sampled_from([SSE, NDJSON, "application/json"]))
def test_no_bytes_make_it_fail(body: bytes, content_type: str) -> None:
    reader = UsageReader(content_type, "")
    reader.feed(body)
    reader.finish()


def test_a_compressed_answer_is_not_read() -> None:
    reader = UsageReader("application/json", "gzip")
    reader.feed(b'{"usage":{"prompt_tokens":5}}')
    assert reader.finish() == Usage()


def test_of_a_long_plain_answer_only_the_end_is_kept_and_read() -> None:
    reader = UsageReader("application/json", "")
    reader.feed(b'{"data":[')
    for _ in range(40):
        reader.feed(b'"' + b"x" * 100_000 + b'",')
        assert len(reader._kept) <= (1 << 20) + 100_003
    reader.feed(b'0],"usage": {"prompt_tokens": 5, "total_tokens": 5} }\n')
    assert reader.finish() == Usage(5, None)


@pytest.mark.parametrize(
    "end",
    [
        b'"],"usage":{"prompt_tokens":5},"more":1}',
        b'","inner":{"usage":{"prompt_tokens":5}}}',
        b'","inner":[{"usage":{"prompt_tokens":5}}]}',
        rb'","text":"\"usage\":{\"prompt_tokens\":5}"}',
        b'"]}',
    ],
)
def test_usage_that_may_stand_elsewhere_in_a_long_answer_is_not_taken(end: bytes) -> None:
    reader = UsageReader("application/json", "")
    reader.feed(b'{"data":["' + b"x" * 2_000_000 + end)
    assert reader.finish() == Usage()


def test_an_event_that_is_too_long_is_passed_over_and_the_next_is_read() -> None:
    reader = UsageReader(SSE, "")
    reader.feed(b"data: " + b"x" * 60_000)
    reader.feed(b"x" * 60_000)
    assert len(reader._kept) == 0
    reader.feed(b'{"usage":{"prompt_tokens":1}}\n\n' + sse({"usage": {"prompt_tokens": 3, "completion_tokens": 2}}))
    assert reader.finish() == Usage(3, 2)


@given(
    pieces=st.lists(
        st.sampled_from(
            [
                b"data: {}\n\n",
                b'data: {"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n',
                b'data: {"usage":{"prom',
                b'pt_tokens":5}}',
                b"\n",
                b"x" * 40_000,
                b"5",
            ]
        ),
        max_size=8,
    ),
    content_type=st.sampled_from(["text/event-stream", "application/json", "text/plain"]),
)
def test_lines_that_are_passed_over_would_have_told_nothing(pieces: list[bytes], content_type: str) -> None:
    sparing, thorough = UsageReader(content_type, ""), UsageReader(content_type, "")
    for piece in pieces:
        if not (piece.endswith(b"\n") and sparing.passes_over(framed(piece))):
            sparing.feed(piece)
        thorough.feed(piece)
    assert sparing.finish() == thorough.finish()


@given(
    pieces=st.lists(
        st.lists(
            st.sampled_from(
                [
                    b"data: {}\n\n",
                    b'data: {"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n',
                    b'data: {"usage":{"completion_tokens":9}}\n\n',
                    b'data: {"usage":{"prom',
                    b'pt_tokens":5}}',
                    b"\n",
                ]
            ),
            min_size=1,
            max_size=4,
        ),
        max_size=12,
    ),
    fed=st.sets(st.integers(0, 12)),
    content_type=st.sampled_from(["text/event-stream", "application/json", "text/plain"]),
)
def test_chunks_that_are_looked_at_together_tell_the_same_as_one_by_one(
    pieces: list[list[bytes]], fed: set[int], content_type: str
) -> None:
    sparing, thorough = UsageReader(content_type, ""), UsageReader(content_type, "")
    for number, group in enumerate(pieces):
        if number in fed:
            sparing.feed(b"".join(group))
        else:
            in_lines = all(piece.endswith(b"\n") for piece in group)
            sparing.read_chunks(b"".join(map(framed, group)), in_lines=in_lines)
        for piece in group:
            thorough.feed(piece)
    assert sparing.finish() == thorough.finish()
