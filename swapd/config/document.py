"""Writes the configuration reference and the JSON Schema for editors, both from the schema's own descriptions.

Run ``python -m swapd.config.document`` at the top of the repository after a change; a test fails while the committed
files are stale.
"""

import ast
import inspect
import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticUndefined, core_schema
from typing_extensions import override

from swapd.config import cache, devices, model, schema
from swapd.config.example import EXAMPLE
from swapd.config.section import Section

REFERENCE: Final = Path("docs", "configuration.md")
JSON_SCHEMA: Final = Path("docs", "swapd.schema.json")

_SECTIONS: Final[tuple[tuple[str, type[Section]], ...]] = (
    ("http", schema.Http),
    ("metrics", schema.Metrics),
    ("admin", schema.Admin),
    ("state", schema.State),
    ("cache", cache.Cache),
    ("engines", schema.Engines),
    ("devices", devices.Devices),
    ("devices.virtual", devices.VirtualDevices),
    ("scheduling", schema.Scheduling),
    ("defaults", schema.Defaults),
    ("models.<name>", model.Model),
    ("models.<name>.weights", cache.WeightsSource),
    ("models.<name>.health", model.Health),
    ("models.<name>.warmup", model.WarmupRequest),
    ("models.<name>.stop", model.Stop),
)

_INTRODUCTION: Final = """\
# Configuration

<!-- Made by `python -m swapd.config.document`; edit swapd/config instead. -->

One YAML file; `swapd check FILE` says what is wrong with it, or shows what was understood. Unknown keys and keys given
twice are refused. Editors complete and check the file with [swapd.schema.json](swapd.schema.json): put
`# yaml-language-server: $schema=…/swapd.schema.json` on its first line.

```yaml
"""

_UNITS: Final = """\
```

* **Durations** are written with units: `500ms`, `15s`, `10m`, `1h30m`; a bare `0` is allowed, any other bare number is
  not. **Sizes** are `64MiB`, `80GB` or a plain number of bytes.
* **Addresses** are `127.0.0.1:8090`, `"[::1]:8090"` or `:8090` for every address of the machine.
* **Paths** are relative to the directory of the configuration file, `~` is the home directory; engines run there.
* **Names** of models and aliases hold no comma, no control character and no outer spaces. A slash is fine.
* **Commands** are lists, one item per word; no shell is involved. `{port}`, `{weights}`, `{name}` and `{devices}` are
  filled in; other braces, as in JSON arguments, are left alone.
* Anchors, aliases and `<<` work. The file is at most 4 MiB.

## Reloading

A changed file (also the symlink swap of a Kubernetes ConfigMap) and SIGHUP are applied as a difference: an unchanged
model keeps its process, its port and its requests; a removed one drains; a changed one is loaded again when it is
idle, unless only `aliases`, `pin`, `concurrency`, `max_queue`, `max_wait`, `load_timeout`, `load_stall`,
`request_timeout`, `load_estimate`, `on_client_abort` or `priority` differ, or `nvlink` between `preferred` and
`ignore`, all of which take effect at once. A file that is refused changes nothing, and `swapd status` and a metric say
so. Keys with “Restart to change it” are read when the daemon starts.

## What is refused beyond single keys

* a name or alias that stands for two models; a program, or weights, that this machine does not have; a kind of
  source whose package is not installed. Whether a source answers is not tried
* a model that can never be placed: more GPUs or memory than the node has, or more GPUs than the pins leave
* pins that need more GPUs together than there are, or than `max_pinned_gpus` allows
* `on_thrash: pin` without `max_pinned_gpus`
* keys about GPUs beside `devices.virtual`; a model's own `CUDA_VISIBLE_DEVICES` where devices are not virtual
* a port written into two places; `engine: command` without `{port}` in its command; a placeholder that does not exist
* an address beyond loopback in `http.listen` without `auth: none` beside it

What depends on the GPUs is known only when they have been found: `swapd check` looks at those of its machine, or of
any other whose topology matrix it is given (`--fixture`), and warns of models that have no place there. The daemon
takes such a configuration, and answers requests for such a model with the reason.

A warning is given when a load is expected to take longer than `max_wait`, when pins take more than a quarter of the
GPUs or may not all fit at once, when a model's number of GPUs is no power of two, when weights come by `http://`
from another machine without `sha256`, when `protect_max_wait` is `never`, and when `on_thrash: pin` may take more than
a quarter of virtual devices.
"""


class _Described(GenerateJsonSchema):
    """Puts descriptions in, and leaves defaults out, because pydantic shows them as parsed.

    The defaults are put back as a file writes them.
    """

    @override
    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    @override
    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        described = super().model_schema(schema)
        for key, text in _descriptions(schema["cls"]).items():
            described["properties"][key]["description"] = text
        return described


def reference() -> str:
    """Return the text of the reference page."""
    parts = [_INTRODUCTION + EXAMPLE + _UNITS]
    for key, section in _SECTIONS:
        parts.append(f"\n## `{key}`\n\n{_line(section.__doc__ or '')}\n\n")
        parts.append("| key | value | default | meaning |\n|---|---|---|---|\n")
        parts.extend(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in _rows(section))
    return "".join(parts)


def json_schema() -> str:
    """Return the JSON Schema, as text."""
    described = _described(schema.Settings)
    for _, section in _SECTIONS:
        properties = described["$defs"][section.__name__]["properties"]
        for key, default in _written_defaults(section).items():
            properties[key]["default"] = default
    top = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "swapd configuration",
        "description": "Configuration of swapd, the node-local model-swap daemon.",
    }
    return json.dumps({**_plain(described), **top}, indent=2, ensure_ascii=False) + "\n"


def _rows(section: type[Section]) -> Iterator[tuple[str, str, str, str]]:
    described, texts = _described(section), _descriptions(section)
    written = _written_defaults(section)
    for key, field in section.model_fields.items():
        form = _form(described["properties"][key], described.get("$defs", {}))
        if field.is_required():
            default = "required"
        else:
            default = "see below" if isinstance(written[key], dict) and written[key] else f"`{_yaml(written[key])}`"
        yield f"`{key}`", form, default, _line(texts.get(key, ""))


def _descriptions(section: type[BaseModel]) -> dict[str, str]:
    """Return the text under each field of a section."""
    (written,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(written, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(written.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _described(section: type[Section]) -> dict[str, Any]:
    return section.model_json_schema(schema_generator=_Described)


def _written_defaults(section: type[Section]) -> dict[str, Any]:
    """Return each default as a file would write it."""
    defaults = {
        key: field.get_default(call_default_factory=True, validated_data={})
        for key, field in section.model_fields.items()
    }
    known = {key: value for key, value in defaults.items() if value is not PydanticUndefined}
    return section.model_construct(**known).model_dump(mode="json", include=set(known))


def _form(described: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return in a few words what may be written."""
    if "$ref" in described:
        described = {**definitions[described["$ref"].rpartition("/")[2]], **described}
    if "x-form" in described:
        return str(described["x-form"])
    if "enum" in described or "const" in described:
        return ", ".join(f"`{word}`" for word in described.get("enum", [described.get("const")]))
    if "anyOf" in described or "oneOf" in described:
        options = described.get("anyOf", described.get("oneOf", []))
        return " or ".join(_form(option, definitions) for option in options if option != {"type": "null"})
    match described["type"]:
        case "boolean":
            return "`true`, `false`"
        case "integer":
            return "whole number"
        case "array":
            return f"list of {_form(described['items'], definitions)}s"
        case kind:
            return "keys below" if kind == "object" else str(kind)


def _yaml(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case list() | dict():
            return json.dumps(value)
        case _:
            return str(value)


def _plain(described: Any) -> Any:
    """Drop what only the reference page needs, and line breaks in descriptions."""
    if isinstance(described, dict):
        kept = {key: _plain(value) for key, value in described.items() if key not in {"x-form", "title"}}
        if isinstance(kept.get("description"), str):
            kept["description"] = _line(kept["description"])
        return kept
    return [_plain(item) for item in described] if isinstance(described, list) else described


def _line(text: str) -> str:
    return " ".join(text.split())


def main(root: Path) -> None:
    """Write both files below the repository's top."""
    (root / REFERENCE).write_text(reference())
    (root / JSON_SCHEMA).write_text(json_schema())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
