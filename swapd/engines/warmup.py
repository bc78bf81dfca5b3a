"""Writes the one-token requests that prove that a server can answer."""

import json

from swapd.engines.base import EngineOptions, Warmup, WarmupPlan, WarmupRequest


def chat(name: str) -> WarmupRequest:
    """Ask for one token in OpenAI's chat form."""
    messages = [{"role": "user", "content": "hi"}]
    return _post("/v1/chat/completions", {"model": name, "messages": messages, "max_tokens": 1})


def completion(name: str) -> WarmupRequest:
    """Ask for one token in OpenAI's completion form."""
    return _post("/v1/completions", {"model": name, "prompt": "hi", "max_tokens": 1})


def embedding(name: str) -> WarmupRequest:
    """Ask for one embedding in OpenAI's form."""
    return _post("/v1/embeddings", {"model": name, "input": "hi"})


def llama_completion(_name: str) -> WarmupRequest:
    """Ask for one token in llama.cpp's own form."""
    return _post("/completion", {"prompt": "hi", "n_predict": 1})


def warmup_plan(options: EngineOptions, auto: tuple[WarmupRequest, ...]) -> WarmupPlan:
    """Turn the configured choice into requests; ``auto`` are those that this engine may have, likeliest first."""
    match options.warmup:
        case Warmup.AUTO:
            return WarmupPlan(auto)
        case Warmup.NONE:
            return WarmupPlan(())
        case WarmupRequest() as request:
            return WarmupPlan((request,), exact=True)


def _post(path: str, body: object) -> WarmupRequest:
    return WarmupRequest(path, json.dumps(body).encode())
