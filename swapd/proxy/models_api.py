"""Answers what the node knows from memory: its models and their states, in the forms of the APIs it fronts.

Nothing here starts, keeps or delays a model. Every configured model and alias is listed, resident or not.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import swapd
from swapd.core.ids import ModelName
from swapd.core.reasons import State
from swapd.core.view import ModelView
from swapd.proxy.errors import invalid, unknown_model
from swapd.proxy.failure import RefusedError
from swapd.proxy.naming import name_in_path
from swapd.proxy.routes import Kind, Match
from swapd.proxy.services import ListedModel, Services

_ABSENT: Final = "absent"
_FAILED: Final = "failed"


def answer(services: Services, match: Match) -> dict[str, Any]:
    """Return the JSON object for a route of swapd's own; raises ``RefusedError``."""
    name = match.path_name or ""
    match match.route.kind:
        case Kind.HEALTH:
            return {"status": "ok"}
        case Kind.MODELS:
            return {"object": "list", "data": list(_listing(services))}
        case Kind.MODEL:
            return _one(services, name)
        case Kind.OLLAMA_TAGS:
            return {"models": list(_tags(services))}
        case Kind.OLLAMA_VERSION:
            return {"version": swapd.__version__}
        case Kind.TRITON_MODEL:
            model = _known(services, name)
            return {"name": model, "versions": ["1"], "platform": "swapd", "inputs": [], "outputs": []}
        case Kind.TRITON_READY:
            return _triton_ready(services, name)
        case Kind.INFERENCE | Kind.UPSTREAM | Kind.WEBSOCKET as kind:
            raise AssertionError(f"{kind} is not answered from memory")


def state_of(view: ModelView | None) -> str:
    """Return a model's state in the words of the core; ``absent`` or ``failed`` without an instance."""
    if view is not None and view.instance is not None:
        return view.instance.state.value
    return _FAILED if view is not None and view.cooling_until is not None else _ABSENT


def _views(services: Services) -> dict[ModelName, ModelView]:
    return {view.model: view for view in services.view().models}


def _listing(services: Services) -> Iterator[dict[str, Any]]:
    views = _views(services)
    for model in services.directory.models():
        state = state_of(views.get(model.name))
        yield _entry(model.name, model, state)
        for alias in model.aliases:
            yield {**_entry(alias, model, state), "alias_of": model.name}


def _entry(name: str, model: ListedModel, state: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": model.created, "owned_by": "swapd", "state": state}


def _one(services: Services, raw_name: str) -> dict[str, Any]:
    name = name_in_path(raw_name)
    _known(services, raw_name)
    return next(entry for entry in _listing(services) if entry["id"] == name)


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
    state = state_of(_views(services).get(model))
    if state != State.READY:
        raise RefusedError(invalid(f"The model {model} is {state}; a request loads it.", code="model_not_ready"))
    return {}


def _known(services: Services, raw_name: str) -> ModelName:
    name = name_in_path(raw_name)
    model = services.directory.resolve(name)
    if model is None:
        raise RefusedError(unknown_model(name))
    return model
