"""Answers what the node knows from memory: its models and their states, in the forms of the APIs it fronts.

Nothing here starts, keeps or delays a model. Every configured model and alias is listed, resident or not. The object
``swapd`` of a model says what a cold start is promised to take at most, and what it took of late by where the weights
came from.
"""

from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

import swapd
from swapd.core.ids import SECOND, Duration, ModelName
from swapd.core.reasons import State
from swapd.core.view import Offer
from swapd.proxy.errors import invalid, unknown_model
from swapd.proxy.failure import RefusedError
from swapd.proxy.naming import name_in_path
from swapd.proxy.routes import Kind, Match
from swapd.proxy.services import ListedModel, Services

#: of these the answer grows with the node
LISTINGS: Final = frozenset({Kind.MODELS, Kind.OLLAMA_TAGS})
_ABSENT: Final = "absent"
_CACHED: Final = "cached"
_FAILED: Final = "failed"
_RESIDENT: Final = frozenset({State.READY, State.DRAINING})
_ASLEEP: Final = frozenset({State.SLEEPING, State.ASLEEP, State.WAKING})


def answer_in_steps(services: Services, match: Match) -> Generator[None, None, bytes]:
    """Build the answer for a route of swapd's own in small steps, between which the node may change; return its JSON.

    Raises ``RefusedError``.
    """
    match match.route.kind:
        case Kind.MODELS:
            return b'{"object":"list","data":[%b]}' % (yield from _joined(_listing(services)))
        case Kind.OLLAMA_TAGS:
            return b'{"models":[%b]}' % (yield from _joined(_tags(services)))
        case _:
            return answer(services, match)


def answer(services: Services, match: Match) -> bytes:
    """Return the answer for a route of swapd's own that is not among ``LISTINGS``; raises ``RefusedError``."""
    return msgspec.json.encode(_one_object(services, match))


def _joined(entries: Iterator[dict[str, Any]]) -> Generator[None, None, bytes]:
    written = []
    for entry in entries:
        written.append(msgspec.json.encode(entry))
        yield
    return b",".join(written)


def _one_object(services: Services, match: Match) -> dict[str, Any]:
    name = match.path_name or ""
    match match.route.kind:
        case Kind.HEALTH:
            return {"status": "ok"}
        case Kind.MODEL:
            return _one(services, name)
        case Kind.OLLAMA_VERSION:
            return {"version": swapd.__version__}
        case Kind.TRITON_MODEL:
            model = _known(services, name)
            return {"name": model, "versions": ["1"], "platform": "swapd", "inputs": [], "outputs": []}
        case Kind.TRITON_READY:
            return _triton_ready(services, name)
        case Kind.INFERENCE | Kind.UPSTREAM | Kind.WEBSOCKET | Kind.MODELS | Kind.OLLAMA_TAGS as kind:
            raise AssertionError(f"{kind} is not answered by one object from memory")


def state_of(offer: Offer | None) -> str:
    """Return a model's state in the words of the core; ``failed``, ``cached`` or ``absent`` without an instance."""
    if offer is None:
        return _ABSENT
    if offer.instance is not None:
        return offer.instance.state.value
    if offer.cooling:
        return _FAILED
    return _CACHED if offer.cached else _ABSENT


def cold_start_of(offer: Offer) -> dict[str, Any]:
    """Return the promise, the median of the last five cold starts by source, in seconds, and where the weights are."""
    return {
        "state": _whereabouts(offer),
        "max_wait_s": _seconds(offer.max_wait),
        "cold_start_s": {source.value: _seconds(duration) for source, duration in offer.load_times.items()},
    }


def _whereabouts(offer: Offer) -> str:
    state = None if offer.instance is None else offer.instance.state
    if state in _RESIDENT:
        return "resident"
    if state in _ASLEEP:
        return "asleep"
    return _CACHED if offer.cached else _ABSENT


def _seconds(duration: Duration) -> float:
    return round(duration / SECOND, 3)


def _listing(services: Services) -> Iterator[dict[str, Any]]:
    for model in services.directory.models():
        yield from _entries(services, model)


def _entries(services: Services, model: ListedModel) -> Iterator[dict[str, Any]]:
    """Yield a model's entry, and one for each of its aliases."""
    offer = services.offer(model.name)
    told = {"object": "model", "created": model.created, "owned_by": "swapd", "state": state_of(offer)}
    if offer is not None:
        told["swapd"] = cold_start_of(offer)
    yield {"id": model.name, **told}
    for alias in model.aliases:
        yield {"id": alias, **told, "alias_of": model.name}


def _one(services: Services, raw_name: str) -> dict[str, Any]:
    known = _known(services, raw_name)
    model = next(model for model in services.directory.models() if model.name == known)
    return next(entry for entry in _entries(services, model) if entry["id"] == name_in_path(raw_name))


def _tags(services: Services) -> Iterator[dict[str, Any]]:
    for entry in _listing(services):
        modified = datetime.fromtimestamp(entry["created"], UTC).isoformat()
        yield {
            "name": entry["id"],
            "model": entry["id"],
            "modified_at": modified,
            "size": 0,
            "digest": "",
            "details": {"format": "", "family": "", "parameter_size": "", "quantization_level": ""},
            "state": entry["state"],
        }


def _triton_ready(services: Services, raw_name: str) -> dict[str, Any]:
    model = _known(services, raw_name)
    state = state_of(services.offer(model))
    if state != State.READY:
        raise RefusedError(invalid(f"The model {model} is {state}; a request loads it.", code="model_not_ready"))
    return {}


def _known(services: Services, raw_name: str) -> ModelName:
    name = name_in_path(raw_name)
    model = services.directory.resolve(name)
    if model is None:
        raise RefusedError(unknown_model(name))
    return model
