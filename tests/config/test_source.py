"""Reading YAML: bounded, safe, with lines; whatever the bytes are, the answer is settings or a ConfigError."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swapd.config import ConfigError, load
from swapd.config.schema import Settings
from swapd.config.source import MAX_BYTES, SourceError, read

Refused = Callable[[str], list[str]]


def value(text: str) -> object:
    return read(text.encode(), lambda _: False).value


def test_each_value_knows_its_line() -> None:
    source = read(b"a:\n  b: 1\n  c:\n  - x\n  - {d: 2}\n", lambda _: False)
    assert source.lines == {
        (): 1,
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "c"): 3,
        ("a", "c", 0): 4,
        ("a", "c", 1): 5,
        ("a", "c", 1, "d"): 5,
    }
    assert source.line(("a", "c", 1, "none", "of", "these")) == 5


@pytest.mark.parametrize(
    "text",
    [
        "a: &x {b: 1}\nc: {<<: *x, d: 2}\n",
        "a: [1, 2.5, true, null, text, 'quoted']\n",
        "a: |\n  two\n  lines\nb: >-\n  folded\n  text\n",
        "",
        "# only a comment\n",
    ],
)
def test_plain_yaml_is_read_as_everybody_reads_it(text: str) -> None:
    assert value(text) == yaml.safe_load(text)


def test_an_earlier_merged_mapping_wins_over_a_later_one_as_yaml_says() -> None:
    read_as = value("x: &x {a: 1, b: 1}\ny: &y {<<: *x, a: 2, c: 2}\nz: {c: 3, <<: [*y, *x]}\n")
    assert read_as == {"x": {"a": 1, "b": 1}, "y": {"a": 2, "b": 1, "c": 2}, "z": {"a": 2, "b": 1, "c": 3}}


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        ("a: [1, 2\nb: 3\n", 2, "correct the YAML here: while parsing a flow sequence"),
        ("a: 1\n\tb: 2\n", 2, "correct the YAML here: while scanning"),
        ("a: *nothing\n", 1, "correct the YAML here: found undefined alias"),
        ("a: 1\n---\nb: 2\n", 2, "correct the YAML here: expected a single document"),
        (
            "a: 1\nb: !!python/object/apply:os.system [ls]\n",
            2,
            "remove the tag tag:yaml.org,2002:python/object/apply:os.sys",
        ),
        ("a: 1\nb: !mine x\n", 2, "remove the tag !mine: only plain YAML is read"),
        ("a: !!binary aGk=\n", 1, "remove the tag tag:yaml.org,2002:binary"),
        ("a: !!set {x, y}\n", 1, "remove the tag tag:yaml.org,2002:set"),
        ("a: 1\n? [x]\n: 2\n", 2, "use plain text as a key, not a list or mapping"),
        ("a: 1\n<<: 3\n", 2, "merge a mapping or a list of mappings with <<"),
        ("a: !!int many\n", 1, "correct the value many: it is no YAML int"),
        ("a: !!bool maybe\n", 1, "correct the value maybe: it is no YAML bool"),
        (f"a: {'9' * 5000}\n", 1, "correct the value 9999"),
        ("- a\n- b\n", 1, "begin the file with a section, for example http: or models:"),
        ("just words\n", 1, "begin the file with a section, for example http: or models:"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_with_its_line(directory: Path, text: str, line: int, sentence: str) -> None:
    path = directory / "swapd.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    found = [problem for problem in caught.value.problems if problem.message.startswith(sentence)]
    assert [problem.line for problem in found] == [line], caught.value.problems


@pytest.mark.parametrize(
    ("content", "line", "sentence"),
    [
        (b"a: 1\nb: \xff\n", 2, "save the file as UTF-8"),
        (b"a: 1\nb: \x01\n", 2, "remove the control character"),
        (b"#" * (MAX_BYTES + 1), 1, "make the file smaller than 4 MiB"),
        (b"a: " + b"[" * 5000, 1, "correct the YAML"),
        (b"a: " + b"{a: " * 200 + b"}" * 200, 1, "nest at most 64 levels deep"),
        (b"a: &a [*a]\n", 1, "nest at most 64 levels deep, and let no alias contain itself"),
        (b"a: &a {<<: *a}\n", 1, "merge fewer mappings, and none into itself"),
    ],
)
def test_hostile_bytes_are_refused_at_once(content: bytes, line: int, sentence: str) -> None:
    with pytest.raises(SourceError) as caught:
        read(content, lambda _: False)
    assert (caught.value.line, caught.value.message[: len(sentence)]) == (line, sentence)


@pytest.mark.parametrize("container", ["[{}]", "{{{}}}"])
def test_aliases_that_multiply_without_end_are_refused(container: str) -> None:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 12):
        items = [f"*l{level - 1}"] * 9
        inner = ", ".join(items if container == "[{}]" else [f"k{key}: {item}" for key, item in enumerate(items)])
        lines.append(f"l{level}: &l{level} {container.format(inner)}")
    with pytest.raises(SourceError, match="with its aliases it holds over 200,000 values"):
        read("\n".join(lines).encode(), lambda _: False)


def test_merges_that_multiply_without_end_are_refused() -> None:
    lines = ["l0: &l0 {x: 1}"]
    lines += [f"l{level}: &l{level} {{<<: [{', '.join([f'*l{level - 1}'] * 9)}]}}" for level in range(1, 12)]
    with pytest.raises(SourceError, match="merge fewer mappings"):
        read("\n".join(lines).encode(), lambda _: False)


def test_a_mark_at_the_start_of_the_file_is_no_content() -> None:
    assert value("\ufeffa: 1\n") == {"a": 1}


def _keys() -> st.SearchStrategy[str]:
    names = list(Settings.model_fields)
    inner = [key for field in Settings.model_fields.values() for key in getattr(field.annotation, "model_fields", {})]
    model = [
        "a",
        "engine",
        "command",
        "memory",
        "weights",
        "gpus",
        "pin",
        "aliases",
        "env",
        "stop",
        "warmup",
        "health",
        "url",
    ]
    return st.sampled_from([*names, *inner, *model, "virtual", "count", "signal", "path", "body", "<<"]) | st.text(
        max_size=5
    )


_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.dates()
    | st.binary(max_size=4)
    | st.sampled_from(["auto", "never", "1GiB", "15s", "command", "vllm", "external", "./serve", "{port}", "off", "1x"])
)
_TREES: st.SearchStrategy[Any] = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_keys(), inner, max_size=6), max_leaves=30
)
_QUIET = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)


def _loads_or_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        load(path)
    except ConfigError as error:
        problems = error.problems
    else:
        return
    assert problems
    assert all(problem.line >= 1 and problem.message for problem in problems)
    assert list(problems) == sorted(problems)


@_QUIET
@given(st.binary(max_size=400))
def test_random_bytes_are_refused_in_words(directory: Path, content: bytes) -> None:
    _loads_or_is_refused(directory / "swapd.yaml", content)


@_QUIET
@given(st.text(alphabet="ab: -[]{}&*!<|>'\"#%@\n\t0", max_size=80))
def test_random_yaml_text_is_refused_in_words(directory: Path, text: str) -> None:
    _loads_or_is_refused(directory / "swapd.yaml", text.encode())


@_QUIET
@given(st.dictionaries(_keys(), _TREES, max_size=5))
def test_random_trees_are_refused_in_words(directory: Path, tree: dict[str, Any]) -> None:
    _loads_or_is_refused(directory / "swapd.yaml", yaml.safe_dump(tree).encode())


_MODEL_KEYS = [
    "engine",
    "command",
    "args",
    "memory",
    "weights",
    "gpus",
    "pin",
    "aliases",
    "env",
    "stop",
    "warmup",
    "health",
    "url",
    "exclusive",
    "max_wait",
    "priority",
]


@_QUIET
@given(
    st.dictionaries(st.text(max_size=4), st.dictionaries(st.sampled_from(_MODEL_KEYS), _TREES, max_size=8), max_size=3)
)
def test_random_models_are_refused_in_words(directory: Path, models: dict[str, Any]) -> None:
    tree = {"devices": {"virtual": {"count": 2, "memory": "2GiB"}}, "models": models}
    _loads_or_is_refused(directory / "swapd.yaml", yaml.safe_dump(tree).encode())
