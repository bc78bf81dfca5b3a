"""Reads YAML into plain values and remembers on which line each of them stands.

Rules: only YAML's safe types; a key given twice is refused; a mapping's keys are text, exactly as written. Everything
is bounded: bytes, depth, and the values that come out (aliases are expanded, so a small file can mean a large one).
Knows nothing of what the values mean, except which ones the caller wants as text, whatever they look like.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import yaml
from yaml.constructor import SafeConstructor

MAX_BYTES: Final = 4 << 20
MAX_VALUES: Final = 200_000
MAX_DEPTH: Final = 64

#: where a value stands: the keys and list positions that lead to it from the top
Where = tuple[str | int, ...]

_TAG: Final = "tag:yaml.org,2002:"
#: the same safe loader, in C where PyYAML has been built with it
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class SourceError(Exception):
    """The text cannot be read as YAML at all, or goes beyond a limit."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.message = message


@dataclass(slots=True)
class Source:
    """What a file says and where it says it."""

    #: mappings, lists and scalars; ``None`` for an empty file
    value: object = None
    #: line of each value (for a mapping's values: of the key), counting from 1
    lines: dict[Where, int] = field(default_factory=dict)
    #: (line, sentence) of each thing that is wrong with the YAML itself
    problems: list[tuple[int, str]] = field(default_factory=list)

    def line(self, where: Where) -> int:
        """Return the line of a value, or of the closest one above it that the file holds."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)


def read(content: bytes, as_text: Callable[[Where], bool]) -> Source:
    """Read a YAML document; scalars for which ``as_text`` holds stay as they are written. Raises SourceError."""
    if len(content) > MAX_BYTES:
        raise SourceError(1, f"make the file smaller than {MAX_BYTES >> 20} MiB")
    reader = _Reader(as_text)
    root = _compose(_decode(content))
    if root is not None:
        reader.source.lines[()] = root.start_mark.line + 1
        reader.source.value = reader.value(root, ())
    return reader.source


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SourceError(line, "save the file as UTF-8: this line holds bytes that are not") from None


def _compose(text: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = " ".join(part for part in (error.context, error.problem) if part)
        raise SourceError(mark.line + 1 if mark else 1, f"correct the YAML here: {said}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        raise SourceError(line, "remove the control character: YAML allows printable text only") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SourceError(
            1, f"correct the YAML: {str(error).splitlines()[0] if str(error) else 'it cannot be read'}"
        ) from None
    return node


class _Reader:
    """Turns YAML nodes into values."""

    def __init__(self, as_text: Callable[[Where], bool]) -> None:
        self.source = Source()
        self._as_text = as_text
        self._constructor = SafeConstructor()
        self._values = 0

    def value(self, node: yaml.Node, where: Where) -> object:
        """Return the value of a node. Raises SourceError beyond a limit; lesser things are noted and left out."""
        self._values += 1
        if self._values > MAX_VALUES:
            raise SourceError(
                _line(node), f"make the file simpler: with its aliases it holds over {MAX_VALUES:,} values"
            )
        if len(where) > MAX_DEPTH:
            raise SourceError(_line(node), f"nest at most {MAX_DEPTH} levels deep, and let no alias contain itself")
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, where)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return self._sequence(node, where)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, where)
        self._note(node, f"remove the tag {_short(node.tag)}: only plain YAML is read")
        return None

    def _sequence(self, node: yaml.SequenceNode, where: Where) -> list[object]:
        items = []
        for position, item in enumerate(node.value):
            self.source.lines[*where, position] = _line(item)
            items.append(self.value(item, (*where, position)))
        return items

    def _mapping(self, node: yaml.MappingNode, where: Where) -> dict[str, object]:
        own: dict[str, yaml.Node] = {}
        merged: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        result: dict[str, object] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                for base_key, value in self._merged(value_node, depth=0):
                    merged.setdefault(base_key.value, (base_key, value))
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self._note(key_node, "use plain text as a key, not a list or mapping")
                continue
            key = key_node.value
            if key in own:
                self._note(
                    key_node, f"remove one of the two `{_short(key)}`: it stands on line {_line(own[key])} already"
                )
                continue
            own[key] = key_node
            self.source.lines[*where, key] = _line(key_node)
            result[key] = self.value(value_node, (*where, key))
        for key, (key_node, value_node) in merged.items():
            if key not in own:
                self.source.lines[*where, key] = _line(key_node)
                result[key] = self.value(value_node, (*where, key))
        return result

    def _merged(self, node: yaml.Node, depth: int) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
        """Yield what ``<<: *base`` brings in, the closest first."""
        self._values += 1
        if depth > MAX_DEPTH or self._values > MAX_VALUES:
            raise SourceError(_line(node), "merge fewer mappings, and none into itself")
        if isinstance(node, yaml.SequenceNode):
            for item in node.value:
                yield from self._merged(item, depth + 1)
        elif isinstance(node, yaml.MappingNode):
            bases = [value for key, value in node.value if key.tag == _TAG + "merge"]
            for key, value in node.value:
                self._values += 1
                if isinstance(key, yaml.ScalarNode) and key.tag != _TAG + "merge":
                    yield key, value
            for base in bases:
                yield from self._merged(base, depth + 1)
        else:
            self._note(node, "merge a mapping or a list of mappings with <<, as in <<: *base")

    def _scalar(self, node: yaml.ScalarNode, where: Where) -> object:
        tag = node.tag.removeprefix(_TAG)
        plain = not node.style
        if tag in {"str", "timestamp", "value"} or (plain and tag != "null" and self._as_text(where)):
            return node.value
        if tag in {"int", "float"} and ":" in node.value:
            return node.value  # YAML 1.1 would read 1:30 as ninety
        if tag not in {"null", "bool", "int", "float"}:
            self._note(node, f"remove the tag {_short(node.tag)}: only plain YAML is read")
            return None
        try:
            return self._constructor.construct_object(node)
        except (ValueError, KeyError, yaml.YAMLError):
            self._note(node, f"correct the value {_short(node.value)}: it is no YAML {tag}")
            return None

    def _note(self, node: yaml.Node, message: str) -> None:
        self.source.problems.append((_line(node), message))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"
