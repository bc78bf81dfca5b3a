"""Bans: what the linter cannot say about this code base. Each test names the rule; its failure names the lines."""

import ast
import re

import pytest

from tests.fakes.source_tree import Module, called, dotted, modules, text_files

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60


def offences(allowed: str, *names: str) -> list[str]:
    """Find calls in swapd whose dotted name ends with one of these, outside an allowed path prefix."""
    return [
        f"{module.where(node)} {called(node)}"
        for module in modules()
        if not module.name.startswith(allowed)
        for node in ast.walk(module.tree)
        if any(called(node) == name or called(node).endswith(f".{name}") for name in names)
    ]


def test_only_aio_creates_tasks_so_that_each_has_an_owner() -> None:
    assert offences("swapd/aio/", "create_task", "ensure_future", "TaskGroup") == []


def test_nothing_in_the_daemon_sleeps_in_a_thread() -> None:
    assert offences("-", "time.sleep") == []


def test_only_the_command_line_prints() -> None:
    assert offences("swapd/cli/", "print") == []


@pytest.mark.parametrize("part", ["swapd", "tests", "benchmarks", "docs"])
def test_no_module_is_longer_than_one_can_keep_in_mind(part: str) -> None:
    assert [f"{module.name}: {module.lines}" for module in modules(part) if module.lines > MAX_MODULE_LINES] == []


def test_no_function_is_longer_than_a_page() -> None:
    def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        return (node.end_lineno or node.lineno) - node.lineno + 1

    assert [
        f"{module.where(node)} {node.name}: {length(node)}"
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and length(node) > MAX_FUNCTION_LINES
    ] == []


def test_every_module_says_first_what_it_decides_or_does() -> None:
    def first_line(module: Module) -> str:
        return (ast.get_docstring(module.tree) or "").partition("\n")[0]

    assert [module.name for module in modules() if not first_line(module).endswith((".", ":", "?"))] == []


def test_the_core_keeps_no_set_whose_order_could_leak_into_a_decision() -> None:
    """Sets are allowed for membership only: written out beside `in`, or as a frozen constant of a module."""
    assert [
        module.where(node)
        for module in modules("swapd/core")
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Set | ast.SetComp) or called(node) in ("set", "frozenset"))
        and node not in _membership_sets(module.tree)
    ] == []


def _membership_sets(tree: ast.Module) -> list[ast.AST]:
    """List the sets that can only be asked whether they contain something."""
    compared = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    beside_in = [
        right
        for node in compared
        for operator, right in zip(node.ops, node.comparators, strict=True)
        if isinstance(operator, ast.In | ast.NotIn)
    ]
    constants = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and called(node.value or node) == "frozenset"
    ]
    return [*beside_in, *(inner for node in constants if node for inner in ast.walk(node))]


def test_the_core_has_no_clock_and_no_chance() -> None:
    words = ("now", "monotonic", "monotonic_ns", "perf_counter", "time_ns", "random", "uuid4", "hash", "id")
    assert [
        f"{module.where(node)} {called(node)}"
        for module in modules("swapd/core")
        for node in ast.walk(module.tree)
        if called(node).rpartition(".")[2] in words
    ] == []


def test_the_core_uses_no_float_for_time_or_memory_of_the_past() -> None:
    """Annotated fields named in nanoseconds or bytes are integers in their own types."""
    assert [
        f"{module.where(node)} {dotted(node.target)}"
        for module in modules("swapd/core")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.AnnAssign)
        and dotted(node.target).endswith(("_ns", "_bytes", "bytes_per_gpu"))
        and "float" in ast.unparse(node.annotation)
    ] == []


@pytest.mark.parametrize(
    "pattern",
    [
        r"/[w]ork/",
        r"/[r]oot/",
        r"\.[p]yenv",
        r"\b(this|helper|another) [s]ession\b",
        r"\bsub-?[a]gent\b",
        r"\bissue #?[0-9]+\b",
        r"\bC[01][0-9]{2}\b",
        r"https?://[a-z0-9.-]*([p]ypi|[p]ythonhosted|[n]pmjs)",
    ],
)
def test_no_text_speaks_of_the_machine_it_was_written_on_or_of_how_it_was_made(pattern: str) -> None:
    found = re.compile(pattern)
    assert [
        f"{path}:{number} {line.strip()[:100]}"
        for path, text in text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if found.search(line)
    ] == []
