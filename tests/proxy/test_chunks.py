"""Chunks are followed exactly, whichever way they are looked at."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from swapd.proxy.front.chunks import LAST, SHORT, STARTS, Chunks, framed, unframed, whole_chunks

PIECES = st.lists(st.binary(min_size=1, max_size=300) | st.just(b"data: {}\n\n"), max_size=6)
BROKEN = [
    b"5\r\nab\r\n",
    b"05\r\nabcde\r\n",
    b"+1\r\na\r\n",
    b"1;x\r\na\r\n",
    b" 1\r\na\r\n",
    b"1_0\r\n",
    b"1\r\nab\r\n",
    b"\r\n",
    LAST,
]


@given(pieces=PIECES, rest=st.sampled_from([b"", *BROKEN]) | st.binary(max_size=8))
def test_whole_chunks_end_where_they_end_and_no_other_is_among_them(pieces: list[bytes], rest: bytes) -> None:
    whole = b"".join(map(framed, pieces))
    end, size, in_lines = whole_chunks(whole + rest)
    assert end >= len(whole)
    assert len(unframed((whole + rest)[:end])) == size
    if end == len(whole):
        assert unframed(whole) == b"".join(pieces)
        assert in_lines == all(piece.endswith(b"\n") for piece in pieces)


@given(pieces=PIECES, cuts=st.lists(st.integers(0, 2000), max_size=5))
def test_a_body_is_the_same_with_and_without_the_short_way(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(framed, pieces)) + LAST
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks, got = Chunks(), b""
    for start, stop in itertools.pairwise(bounds):
        part = data[start:stop]
        if chunks.between:
            end, _, _ = whole_chunks(part)
            got += unframed(part[:end])
            part = part[end:]
        got += b"".join(chunks.feed(part))
    assert got == b"".join(pieces)
    assert chunks.ended


def test_what_is_not_plain_is_left_to_the_exact_reader() -> None:
    for data in BROKEN:
        assert whole_chunks(data)[0] == 0


def test_a_short_chunk_begins_as_its_length_says() -> None:
    lengths = set()
    for size in range(1, SHORT):
        chunk = framed(bytes(size))
        if len(chunk) < SHORT:
            lengths.add(len(chunk))
            start = STARTS[len(chunk)]
            assert chunk.startswith(start)
            assert len(chunk) - len(start) - 2 == size
    for length in set(range(SHORT)) - lengths:
        assert len(STARTS[length]) > length
