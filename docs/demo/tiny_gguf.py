"""Writes a tiny, valid Llama GGUF that answers any prompt with its own name ("I am m07 .").

    python tiny_gguf.py m07.gguf --name m07 [--mb 4] [--layers 2] [--loop]

Whoever reads an answer knows which model gave it. Needs the standard library only; the same arguments give the same
bytes on any machine.

How it works: attention and feed-forward end in projections that are all zero, so the hidden state is the embedding of
the last token. Embedding and output matrix make a state machine of it: any token but a word is state 0, word n is
state n + 1, and state n is answered by word n, the last one by end-of-sequence (with `--loop` by word 0 again, so that
only the token limit ends an answer). The other projections hold repeatable noise: they give the file its size and cost
the engine the full arithmetic.
"""

import argparse
import enum
import random
import struct
import sys
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

WIDTH = 64
HEADS = 2
CONTEXT = 2048
ALIGNMENT = 32
NARROWEST_FEED_FORWARD = 64
BLANK = "\u2581"
"""SentencePiece's mark for the blank before a word."""
CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


class Kind(enum.IntEnum):
    """Types of metadata values, as numbered by the format."""

    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9


class Element(enum.IntEnum):
    """Types of tensor elements."""

    F32 = 0
    F16 = 1


class TokenKind(enum.IntEnum):
    """Types of vocabulary entries."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    BYTE = 6


UNKNOWN, BEGIN, END = range(3)
"""The special tokens' ids."""
PACKING = {Kind.UINT32: "<I", Kind.INT32: "<i", Kind.FLOAT32: "<f", Kind.BOOL: "<?"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One matrix or vector; its first dimension is the one that varies fastest."""

    name: str
    dims: tuple[int, ...]
    element: Element
    data: bytes


@dataclass(frozen=True, slots=True)
class Token:
    """One vocabulary entry."""

    text: str
    score: float
    kind: TokenKind


class Noise:
    """Small Gaussian values in F16, cut from one block made from the seed."""

    def __init__(self, seed: int, *, values: int = 8192) -> None:
        self._random = random.Random(seed)  # noqa: S311 - filler for weights
        self._block = struct.pack(f"<{values}e", *(self._random.gauss(0, 0.02) for _ in range(values)))

    def take(self, values: int) -> bytes:
        """Return so many values, beginning somewhere in the block."""
        cut = 2 * self._random.randrange(len(self._block) // 2)
        block = self._block[cut:] + self._block[:cut]
        return (block * (2 * values // len(block) + 1))[: 2 * values]


def write_model(path: Path, name: str, *, megabytes: float = 4.0, layers: int = 2, loop: bool = False) -> None:
    """Write a model of about that many MiB; raises ``ValueError`` for a name that is not one word of its own."""
    words = ["I", "am", name, "."]
    if name.split() != [name] or len(set(words)) < len(words):
        raise ValueError(f"a model's name must be one word other than those it is said with: {name!r}")
    tokens = vocabulary(words)
    feed_forward = feed_forward_width(megabytes, layers)
    noise = Noise(zlib.crc32(name.encode()))
    embedding, output = state_machine(len(tokens), len(words), loop=loop)
    tensors = [
        Tensor("token_embd.weight", (WIDTH, len(tokens)), Element.F16, embedding),
        *(tensor for layer in range(layers) for tensor in block(layer, feed_forward, noise)),
        Tensor("output_norm.weight", (WIDTH,), Element.F32, ones()),
        Tensor("output.weight", (WIDTH, len(tokens)), Element.F16, output),
    ]
    write_file(path, metadata(name, tokens, layers=layers, feed_forward=feed_forward), tensors)


def vocabulary(words: Sequence[str]) -> list[Token]:
    """Return the special tokens, one token per byte, and the words."""
    special = [("<unk>", TokenKind.UNKNOWN), ("<s>", TokenKind.CONTROL), ("</s>", TokenKind.CONTROL)]
    return [
        *(Token(text, 0.0, kind) for text, kind in special),
        *(Token(f"<0x{byte:02X}>", -1.0, TokenKind.BYTE) for byte in range(256)),
        *(Token(BLANK + word, -2.0 - rank, TokenKind.NORMAL) for rank, word in enumerate(words)),
    ]


def feed_forward_width(megabytes: float, layers: int) -> int:
    """Return the width that gives the file its size, by 32s."""
    values_per_layer = megabytes * 2**20 / 2 / layers
    return max(NARROWEST_FEED_FORWARD, int((values_per_layer - 4 * WIDTH**2) / (3 * WIDTH)) // 32 * 32)


def state_machine(tokens: int, words: int, *, loop: bool) -> tuple[bytes, bytes]:
    """Return embedding (token to state) and output (state to next token)."""
    first = tokens - words
    followers = [*range(first, tokens), first if loop else END]
    embedding = sparse(tokens, ((token, max(0, token - first + 1), 1.0) for token in range(tokens)))
    output = sparse(tokens, ((token, state, 8.0) for state, token in enumerate(followers)))
    return embedding, output


def sparse(rows: int, cells: Iterable[tuple[int, int, float]]) -> bytes:
    """Return an F16 matrix of ``rows`` x WIDTH that is zero but for these (row, column, value)."""
    matrix = bytearray(2 * rows * WIDTH)
    for row, column, value in cells:
        struct.pack_into("<e", matrix, 2 * (row * WIDTH + column), value)
    return bytes(matrix)


def ones() -> bytes:
    """Return an F32 vector of ones."""
    return struct.pack(f"<{WIDTH}f", *[1.0] * WIDTH)


def block(layer: int, feed_forward: int, noise: Noise) -> list[Tensor]:
    """Return the tensors of one transformer block; what it adds to the hidden state is zero."""
    square, wide = WIDTH * WIDTH, WIDTH * feed_forward
    norms = [("attn_norm", (WIDTH,), ones()), ("ffn_norm", (WIDTH,), ones())]
    matrices = [
        ("attn_q", (WIDTH, WIDTH), noise.take(square)),
        ("attn_k", (WIDTH, WIDTH), noise.take(square)),
        ("attn_v", (WIDTH, WIDTH), noise.take(square)),
        ("attn_output", (WIDTH, WIDTH), bytes(2 * square)),
        ("ffn_gate", (WIDTH, feed_forward), noise.take(wide)),
        ("ffn_up", (WIDTH, feed_forward), noise.take(wide)),
        ("ffn_down", (feed_forward, WIDTH), bytes(2 * wide)),
    ]
    return [
        *(Tensor(f"blk.{layer}.{name}.weight", dims, Element.F32, data) for name, dims, data in norms),
        *(Tensor(f"blk.{layer}.{name}.weight", dims, Element.F16, data) for name, dims, data in matrices),
    ]


def metadata(name: str, tokens: Sequence[Token], *, layers: int, feed_forward: int) -> list[bytes]:
    """Return the encoded key-value pairs."""
    return [
        pair("general.architecture", Kind.STRING, "llama"),
        pair("general.name", Kind.STRING, name),
        pair("general.file_type", Kind.UINT32, 1),
        pair("llama.vocab_size", Kind.UINT32, len(tokens)),
        pair("llama.context_length", Kind.UINT32, CONTEXT),
        pair("llama.embedding_length", Kind.UINT32, WIDTH),
        pair("llama.block_count", Kind.UINT32, layers),
        pair("llama.feed_forward_length", Kind.UINT32, feed_forward),
        pair("llama.attention.head_count", Kind.UINT32, HEADS),
        pair("llama.attention.head_count_kv", Kind.UINT32, HEADS),
        pair("llama.attention.layer_norm_rms_epsilon", Kind.FLOAT32, 1e-5),
        pair("llama.rope.dimension_count", Kind.UINT32, WIDTH // HEADS),
        pair("tokenizer.ggml.model", Kind.STRING, "llama"),
        array("tokenizer.ggml.tokens", Kind.STRING, [token.text for token in tokens]),
        array("tokenizer.ggml.scores", Kind.FLOAT32, [token.score for token in tokens]),
        array("tokenizer.ggml.token_type", Kind.INT32, [token.kind for token in tokens]),
        pair("tokenizer.ggml.unknown_token_id", Kind.UINT32, UNKNOWN),
        pair("tokenizer.ggml.bos_token_id", Kind.UINT32, BEGIN),
        pair("tokenizer.ggml.eos_token_id", Kind.UINT32, END),
        pair("tokenizer.ggml.add_bos_token", Kind.BOOL, value=True),
        pair("tokenizer.ggml.add_space_prefix", Kind.BOOL, value=False),
        pair("tokenizer.chat_template", Kind.STRING, CHAT_TEMPLATE),
    ]


def pair(key: str, kind: Kind, value: str | float) -> bytes:
    """Encode a key with one value."""
    return string(key) + struct.pack("<I", kind) + scalar(kind, value)


def array(key: str, kind: Kind, values: Sequence[str | float]) -> bytes:
    """Encode a key with a list of values."""
    head = struct.pack("<IIQ", Kind.ARRAY, kind, len(values))
    return string(key) + head + b"".join(scalar(kind, value) for value in values)


def scalar(kind: Kind, value: str | float) -> bytes:
    """Encode one value without its type."""
    return string(str(value)) if kind is Kind.STRING else struct.pack(PACKING[kind], value)


def string(text: str) -> bytes:
    """Encode a string: its length in bytes, then UTF-8."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def padded(data: bytes) -> bytes:
    """Fill up to the next alignment border."""
    return data + bytes(-len(data) % ALIGNMENT)


def write_file(path: Path, pairs: Sequence[bytes], tensors: Sequence[Tensor]) -> None:
    """Write header, metadata, tensor index, tensor data."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    offset = 0
    for tensor in tensors:
        shape = struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
        head += string(tensor.name) + shape + struct.pack("<IQ", tensor.element, offset)
        offset += len(padded(tensor.data))
    path.write_bytes(padded(head) + b"".join(padded(tensor.data) for tensor in tensors))


def main() -> int:
    """Write the model that the command line asks for."""
    parser = argparse.ArgumentParser(description="Write a tiny GGUF model that answers with its own name.")
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("--name", required=True, help="the word that it answers")
    parser.add_argument("--mb", type=float, default=4.0, help="size in MiB (default 4)")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--loop", action="store_true", help="answers have no end but the token limit")
    options = parser.parse_args()
    try:
        write_model(options.out, options.name, megabytes=options.mb, layers=options.layers, loop=options.loop)
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
