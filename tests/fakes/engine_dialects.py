"""Writes what a model server answers, in every dialect: the sentence of its name, with usage where the dialect has it.

Pure: a request's path and body in, the pieces of the answer out.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PROMPT_TOKENS = 7
JSON = "application/json"
SSE = "text/event-stream"
NDJSON = "application/x-ndjson"
#: routes that just say who they are
PLAIN = (
    "/v1/rerank",
    "/v1/score",
    "/v1/moderations",
    "/rerank",
    "/score",
    "/tokenize",
    "/detokenize",
    "/infill",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/images/variations",
    "/api/embed",
    "/api/show",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: one piece is a plain body, several are a stream."""

    content_type: str
    pieces: Iterator[bytes]
    stream: bool


def answer(name: str, path: str, body: dict[str, Any], tokens: int) -> Answer | None:
    """Answer a request with that many tokens (below 0: without end); ``None``: no such route."""
    words = _Words(name, tokens)
    stream = bool(body.get("stream"))
    include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    match path:
        case "/v1/chat/completions" | "/v1/completions":
            chat = path.endswith("chat/completions")
            pieces = _openai_stream(name, words, chat=chat, usage=include_usage)
            return _either(stream, SSE, pieces, _openai(name, words, chat=chat) if not stream else {})
        case "/v1/responses":
            return _either(stream, SSE, _responses_stream(name, words), _responses(name, words) if not stream else {})
        case "/v1/messages":
            return _either(stream, SSE, _messages_stream(name, words), _messages(name, words) if not stream else {})
        case "/v1/messages/count_tokens":
            return _whole({"input_tokens": PROMPT_TOKENS})
        case "/v1/embeddings":
            usage = {"prompt_tokens": PROMPT_TOKENS, "total_tokens": PROMPT_TOKENS}
            data = [{"object": "embedding", "index": 0, "embedding": [0.0, 1.0]}]
            return _whole({"object": "list", "model": name, "data": data, "usage": usage})
        case "/api/chat" | "/api/generate":
            stream = body.get("stream", True) is not False  # the one dialect that streams unless told otherwise
            lines = _ollama(name, words, chat=path == "/api/chat", stream=stream)
            return Answer(NDJSON, lines, stream=True) if stream else Answer(JSON, lines, stream=False)
        case "/completion":
            return _either(stream, SSE, _llama_stream(words), _llama(words) if not stream else {})
        case "/generate" if not stream:
            text = "".join(words)
            return _whole({"generated_text": text, "details": {"generated_tokens": len(text.split())}})
        case "/generate" | "/generate_stream":
            return Answer(SSE, _tgi_stream(words), stream=True)
        case _ if path in PLAIN:
            return _whole({"model": name, "text": f"I am {name} ."})
        case _ if path.startswith("/v2/models/") and path.endswith(("/infer", "/generate")):
            return _whole({"model_name": name, "outputs": [], "text_output": f"I am {name} ."})
        case _:
            return None


class _Words:
    """The words of an answer, which can say how many went out."""

    def __init__(self, name: str, tokens: int) -> None:
        self._sentence = (" I", " am", f" {name}", " .")
        self._tokens = tokens
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        while self.count != self._tokens:
            self.count += 1
            yield self._sentence[(self.count - 1) % len(self._sentence)]


def _whole(body: object) -> Answer:
    return Answer(JSON, iter([json.dumps(body).encode()]), stream=False)


def _either(stream: bool, content_type: str, pieces: Iterator[bytes], body: object) -> Answer:
    return Answer(content_type, pieces, stream=True) if stream else _whole(body)


def _data(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _event(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\n".encode() + _data({"type": kind, **fields})


def _openai_usage(count: int) -> dict[str, int]:
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": count, "total_tokens": PROMPT_TOKENS + count}


def _openai(name: str, words: _Words, *, chat: bool) -> object:
    said = list(words)
    text = "".join(said)
    choice: dict[str, object] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    kind = "chat.completion" if chat else "text_completion"
    choices = [{"index": 0, "finish_reason": "stop", **choice}]
    return {"id": "fake", "object": kind, "model": name, "choices": choices, "usage": _openai_usage(len(said))}


def _openai_stream(name: str, words: _Words, *, chat: bool, usage: bool) -> Iterator[bytes]:
    kind = "chat.completion.chunk" if chat else "text_completion"
    head = {"id": "fake", "object": kind, "model": name}
    for word in words:
        part = {"delta": {"content": word}} if chat else {"text": word}
        yield _data({**head, "choices": [{"index": 0, "finish_reason": None, **part}]})
    end: dict[str, object] = {"delta": {}} if chat else {"text": ""}
    yield _data({**head, "choices": [{"index": 0, "finish_reason": "stop", **end}]})
    if usage:
        yield _data({**head, "choices": [], "usage": _openai_usage(words.count)})
    yield b"data: [DONE]\n\n"


def _response_body(name: str, count: int) -> dict[str, object]:
    usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": count, "total_tokens": PROMPT_TOKENS + count}
    return {"id": "fake", "object": "response", "model": name, "status": "completed", "usage": usage}


def _responses(name: str, words: _Words) -> object:
    said = list(words)
    content = [{"type": "output_text", "text": "".join(said)}]
    output = [{"type": "message", "role": "assistant", "content": content}]
    return {**_response_body(name, len(said)), "output": output}


def _responses_stream(name: str, words: _Words) -> Iterator[bytes]:
    yield _event("response.created", response={"id": "fake", "model": name})
    for word in words:
        yield _event("response.output_text.delta", delta=word)
    yield _event("response.completed", response=_response_body(name, words.count))


def _messages(name: str, words: _Words) -> object:
    said = list(words)
    content = [{"type": "text", "text": "".join(said)}]
    usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": len(said)}
    head = {"id": "fake", "type": "message", "role": "assistant", "model": name}
    return {**head, "content": content, "stop_reason": "end_turn", "usage": usage}


def _messages_stream(name: str, words: _Words) -> Iterator[bytes]:
    usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": 0}
    yield _event("message_start", message={"id": "fake", "model": name, "usage": usage})
    for word in words:
        yield _event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
    yield _event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": words.count})
    yield _event("message_stop")


def _ollama(name: str, words: _Words, *, chat: bool, stream: bool) -> Iterator[bytes]:
    def line(text: str, **fields: object) -> bytes:
        part: dict[str, object] = {"message": {"role": "assistant", "content": text}} if chat else {"response": text}
        return json.dumps({"model": name, **part, **fields}).encode() + b"\n"

    text = ""
    for word in words:
        text += word
        if stream:
            yield line(word, done=False)
    counts = {"prompt_eval_count": PROMPT_TOKENS, "eval_count": words.count}
    yield line("" if stream else text, done=True, done_reason="stop", **counts)


def _llama(words: _Words) -> object:
    said = list(words)
    counts = {"tokens_evaluated": PROMPT_TOKENS, "tokens_predicted": len(said)}
    return {"content": "".join(said), "stop": True, **counts}


def _llama_stream(words: _Words) -> Iterator[bytes]:
    for word in words:
        yield _data({"content": word, "stop": False})
    yield _data({"content": "", "stop": True, "tokens_evaluated": PROMPT_TOKENS, "tokens_predicted": words.count})


def _tgi_stream(words: _Words) -> Iterator[bytes]:
    text = ""
    for word in words:
        text = (text + word)[-1000:]
        yield _data({"token": {"text": word}, "generated_text": None})
    end = {"token": {"text": ""}, "generated_text": text, "details": {"generated_tokens": words.count}}
    yield _data(end)
