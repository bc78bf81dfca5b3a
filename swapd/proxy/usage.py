"""Reads the engine's own token counts out of an answer that passes by: exact, or none.

Never changes or delays a byte: pieces are fed after they have been written. Memory is bounded: a plain body is kept up
to 1 MiB (of a longer one its end), an event of a stream up to 64 KiB. The fields of all APIs are told apart by name:

* OpenAI: ``usage.prompt_tokens``/``completion_tokens`` or ``input_tokens``/``output_tokens``, also in ``response``;
* Anthropic: input in ``message.usage``, output in the ``usage`` of ``message_delta``; cached input counts as input;
* Ollama: ``prompt_eval_count``, ``eval_count``; TGI: ``details.generated_tokens``, ``details.input_length``;
* llama.cpp: ``tokens_evaluated``, ``tokens_predicted``; else ``timings`` (with its cached part).

In a stream the last value counts, since all of these are sums up to their event. A broken-off answer has no counts.
"""

import functools
from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import msgspec

from swapd.proxy.front.chunks import unframed

_PLAIN_LIMIT: Final = 1 << 20
_TAIL_LIMIT: Final = 64 << 10
_EVENT_LIMIT: Final = 64 << 10


class Usage(NamedTuple):
    """Tokens of one request; ``None``: not told."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


NOTHING_TOLD: Final = Usage()

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
"""What could not be a number of tokens is none: a counter never falls, and its sum has to stay a number."""


class _Counts(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None
    cache_creation_input_tokens: _Count | None = None
    cache_read_input_tokens: _Count | None = None

    def prompt(self) -> int | None:
        if self.prompt_tokens is not None or self.input_tokens is None:
            return self.prompt_tokens
        cached = (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)
        return self.input_tokens + cached

    def completion(self) -> int | None:
        return self.completion_tokens if self.completion_tokens is not None else self.output_tokens


class _Holder(msgspec.Struct):
    usage: _Counts | None = None


class _Timings(msgspec.Struct):
    prompt_n: _Count | None = None
    cache_n: _Count | None = None
    predicted_n: _Count | None = None


class _Details(msgspec.Struct):
    generated_tokens: _Count | None = None
    input_length: _Count | None = None


class _Document(msgspec.Struct):
    usage: _Counts | None = None
    message: _Holder | str | None = None
    response: _Holder | str | None = None
    prompt_eval_count: _Count | None = None
    eval_count: _Count | None = None
    tokens_evaluated: _Count | None = None
    tokens_predicted: _Count | None = None
    timings: _Timings | None = None
    details: _Details | None = None

    def prompt(self) -> int | None:
        count = self.prompt_eval_count if self.prompt_eval_count is not None else self.tokens_evaluated
        for holder in (self.message, self.response, self):
            if count is None and holder is not None and not isinstance(holder, str) and holder.usage is not None:
                count = holder.usage.prompt()
        if count is None and self.details is not None:
            count = self.details.input_length
        timings = self.timings
        if count is None and timings is not None and timings.prompt_n is not None and timings.cache_n is not None:
            count = timings.prompt_n + timings.cache_n
        return count

    def completion(self) -> int | None:
        # the output in Anthropic's message_start is only a beginning: message is left out on purpose
        count = self.eval_count if self.eval_count is not None else self.tokens_predicted
        for holder in (self.response, self):
            if count is None and holder is not None and not isinstance(holder, str) and holder.usage is not None:
                count = holder.usage.completion()
        if count is None and self.details is not None:
            count = self.details.generated_tokens
        if count is None and self.timings is not None:
            count = self.timings.predicted_n
        return count


_DOCUMENT: Final = msgspec.json.Decoder(_Document)
_COUNTS: Final = msgspec.json.Decoder(_Counts)


@functools.lru_cache(maxsize=64)
def _forms(content_type: str, content_encoding: str) -> tuple[bool, bool]:
    """Tell whether an answer is read by lines, and whether it is read as one JSON document."""
    media_type = content_type.partition(";")[0].strip().lower()
    plain = content_encoding.strip().lower() in {"", "identity"}
    lines = media_type in {"text/event-stream", "application/x-ndjson", "application/ndjson"}
    return plain and lines, plain and media_type == "application/json"


@functools.lru_cache(maxsize=64)
def _telling(content_type: bytes, content_encoding: bytes) -> tuple[str, str] | None:
    form = content_type.decode("latin-1"), content_encoding.decode("latin-1")
    return form if any(_forms(*form)) else None


def _may_tell(text: bytes) -> bool:
    """Tell whether one of the words that stand in every document with counts is there."""
    # "in" looks for a number first, and fails: that costs as much as to look for the bytes
    return text.find(b"tokens") >= 0 or text.find(b"eval_count") >= 0 or text.find(b'"timings"') >= 0


class UsageReader:
    """Follows one answer."""

    __slots__ = ("_found", "_json", "_kept", "_lines", "_shortened", "_skipping")

    def __init__(self, content_type: str, content_encoding: str) -> None:
        self._lines, self._json = _forms(content_type, content_encoding)
        self._kept = bytearray()
        self._skipping = False
        self._shortened = False
        self._found = NOTHING_TOLD

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> "UsageReader":
        """Return a reader for the answer with these header fields."""
        return cls(headers.get("Content-Type", ""), headers.get("Content-Encoding", ""))

    def feed(self, chunk: bytes) -> None:
        """Take the next piece of the body."""
        if self._lines:
            # nearly every piece of a stream is a whole event without counts
            if not (chunk.endswith(b"\n") and self.passes_over(chunk)):
                self._feed_lines(chunk)
        elif self._json:
            self._kept += chunk
            if len(self._kept) > _PLAIN_LIMIT:
                del self._kept[:-_TAIL_LIMIT]
                self._shortened = True

    def read_chunks(self, chunks: bytes, *, in_lines: bool) -> None:
        """Take whole chunks; ``in_lines``: each of them is known to end with a line."""
        if not (in_lines and self.passes_over(chunks)):
            self.feed(unframed(chunks))

    def passes_over(self, lines: bytes) -> bool:
        """Tell whether these whole lines need not be fed; they may have something between them that is no word."""
        if self._kept or self._skipping or not self._lines:
            return False
        # as in ``_may_tell``
        return lines.find(b"tokens") < 0 and lines.find(b"eval_count") < 0 and lines.find(b'"timings"') < 0

    def finish(self) -> Usage:
        """Return the counts of a complete answer."""
        if self._lines:
            self._take_line(bytes(self._kept))
        elif self._json and self._shortened:
            self._take_tail(bytes(self._kept))
        elif self._json:
            self._take(bytes(self._kept))
        self._kept = bytearray()
        return self._found

    def _feed_lines(self, chunk: bytes) -> None:
        if b"\n" not in chunk:
            self._keep(chunk)
            return
        first, *rest = chunk.split(b"\n")
        self._keep(first)
        for line in rest:
            if not self._skipping:
                self._take_line(bytes(self._kept))
            self._kept.clear()
            self._skipping = False
            self._keep(line)

    def _keep(self, part: bytes) -> None:
        if self._skipping or len(self._kept) + len(part) > _EVENT_LIMIT:
            self._skipping = True
            self._kept.clear()
        else:
            self._kept += part

    def _take_line(self, line: bytes) -> None:
        self._take(line.removeprefix(b"data:").strip())

    def _take(self, document: bytes) -> None:
        if not _may_tell(document):
            return
        try:
            read = _DOCUMENT.decode(document)
        except (msgspec.DecodeError, RecursionError):
            return
        prompt, completion = read.prompt(), read.completion()
        self._found = Usage(
            self._found.prompt_tokens if prompt is None else prompt,
            self._found.completion_tokens if completion is None else completion,
        )

    def _take_tail(self, tail: bytes) -> None:
        """Read ``usage`` if it is the last member of the top-level object: its brace and the last one end the body."""
        start = tail.rfind(b'"usage"')
        text = tail[start + len(b'"usage"') :].strip()
        if start < 0 or not text.startswith(b":") or not text.endswith(b"}"):
            return
        try:
            counts = _COUNTS.decode(text[1:-1].strip())
        except (msgspec.DecodeError, RecursionError):
            return
        self._found = Usage(counts.prompt(), counts.completion())


def usage_reader(content_type: bytes, content_encoding: bytes) -> UsageReader | None:
    """Return a reader for an answer with these header fields, ``None`` if it cannot tell anything."""
    form = _telling(content_type, content_encoding)
    return None if form is None else UsageReader(*form)


def usage_in(content_type: bytes, content_encoding: bytes, body: bytes) -> Usage:
    """Return what a complete answer with these header fields tells."""
    # as in ``_may_tell``
    if body.find(b"tokens") < 0 and body.find(b"eval_count") < 0 and body.find(b'"timings"') < 0:
        return NOTHING_TOLD
    form = _telling(content_type, content_encoding)
    if form is None:
        return NOTHING_TOLD
    reader = UsageReader(*form)
    reader.feed(body)
    return reader.finish()
