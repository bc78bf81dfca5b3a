"""Says in one sentence what is wrong with a value, for each error pydantic finds in a configuration.

A sentence names the key in backticks, from the top (``models.m01.memory``), and says what to write instead.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError

from swapd.config.schema import Defaults, Settings
from swapd.config.source import Where
from swapd.config.units import show

#: a place in the file and what is to be done there
Finding = tuple[Where, str]

#: what a required key wants, by its last part
_EXAMPLES: Final = {
    "count": "count: 2",
    "memory": "memory: 2GiB",
    "path": "path: /v1/completions",
    "source": "source: hf://Qwen/Qwen3-8B@main",
    "body": "body: {prompt: hi, max_tokens: 1}",
}


def explain(error: ValidationError, value: object) -> Iterator[Finding]:
    """Yield place and sentence of each error; ``value`` is what the file said before ``defaults`` were filled in."""
    for detail in error.errors(include_url=False):
        where = _place(detail["loc"], value, missing=detail["type"] == "missing")
        if where is not None:
            yield where, _sentence(where, dict(detail))


def dotted(where: Where) -> str:
    """Return a key as sentences name it: ``models.m01.memory``, ``models.m01.command[2]``."""
    text = "".join(f"[{part + 1}]" if isinstance(part, int) else f".{part}" for part in where)
    return text.removeprefix(".") or "the file"


def at(where: Where, sentence: str) -> Finding:
    """Put the key in front of a sentence about it."""
    return where, f"`{dotted(where)}`: {sentence}"


def suggestion(word: str, known: Iterator[str] | list[str]) -> str:
    """Return ``; did you mean `x`?`` for the closest known word, or nothing."""
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean `{close[0]}`?" if close else ""


def _place(location: tuple[str | int, ...], value: object, *, missing: bool) -> Where | None:
    """Follow a location through the file; parts that are pydantic's own (names of union members) lead nowhere.

    ``None``: the value came from ``defaults``, where the same error is reported.
    """
    where: list[str | int] = []
    for position, part in enumerate(location):
        last = position == len(location) - 1
        below = _below(value, part)
        if below or (last and missing):
            where.append(part)
            value = below[0] if below else None
        elif last and len(where) == 2 and where[0] == "models" and part in Defaults.model_fields:
            return None
    return tuple(where)


def _below(value: object, part: str | int) -> tuple[object, ...]:
    """Return what stands under a key or at a position, in a tuple; nothing if there is none."""
    if isinstance(value, dict):
        return (value[part],) if part in value else ()
    return (value[part],) if isinstance(value, list) and isinstance(part, int) and part < len(value) else ()


def _sentence(where: Where, detail: Mapping[str, Any]) -> str:
    key, given, context = dotted(where), show(detail["input"]), detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            example = _EXAMPLES.get(str(where[-1]))
            return f"add `{key}`" + (f", for example {example}" if example else "")
        case "extra_forbidden":
            known = _known_keys(where[:-1])
            hint = suggestion(str(where[-1]), known) or f"; possible here: {', '.join(known)}"
            return f"remove or correct `{key}`: there is no such key{hint}"
        case "value_error":
            return f"`{key}`: {context['error']}"
        case "enum" | "literal_error":
            expected = str(context["expected"]).replace("'", "")
            hint = suggestion(str(detail["input"]), expected.replace(" or ", ", ").split(", "))
            return f"`{key}`: write {expected}, not {given}{hint}"
        case "bool_type" | "bool_parsing":
            return f"`{key}`: write true or false, not {given}"
        case "int_type" | "int_parsing" | "int_from_float":
            return f"`{key}`: write a whole number, for example 2, not {given}"
        case "greater_than_equal":
            return f"`{key}`: write a number of at least {context['ge']}, not {given}"
        case "less_than_equal":
            return f"`{key}`: write a number of at most {context['le']}, not {given}"
        case "tuple_type" | "list_type":
            return f"`{key}`: write a list, for example [first, second], not {given}"
        case "model_type" | "model_attributes_type" | "dict_type" | "mapping_type":
            return f"`{key}`: write keys and values below it, not {given}"
        case _:
            return f"`{key}`: correct {given}: {detail['msg']}"


def _known_keys(where: Where) -> list[str]:
    """List the keys that may stand in a section."""
    section: Any = Settings
    for part in where:
        section = _section_below(section, part)
    return list(section.model_fields) if _is_section(section) else []


def _section_below(section: Any, part: str | int) -> Any:
    annotation = (
        section.model_fields[part].annotation if _is_section(section) and part in section.model_fields else section
    )
    return next((kind for kind in _flatten(annotation) if _is_section(kind)), annotation)


def _flatten(annotation: Any) -> Iterator[Any]:
    yield annotation
    for argument in get_args(annotation):
        yield from _flatten(argument)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
