"""Holds the fake of NVML and the real bindings together: what the facade calls is there in both, and means the same."""

import ast
import inspect
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest

import swapd.gpus
from swapd.gpus.errors import LibraryAbsentError, NvmlError
from swapd.gpus.fake import FakeLibrary
from swapd.gpus.nvml import Nvml

ROOM = Path(swapd.gpus.__file__).parent


def called() -> list[str]:
    """List the functions of the library that the facade calls, by their names in its text."""
    tree = ast.parse((ROOM / "nvml.py").read_text())
    return sorted(
        {
            f"nvml{node.args[0].value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("self._call", "self._processes")
            and isinstance(node.args[0], ast.Constant)
        }
    )


def offered() -> list[str]:
    return sorted(name for name in dir(FakeLibrary) if name.startswith("nvml"))


def signature(function: Callable[..., object]) -> list[tuple[str, object]]:
    found = list(inspect.signature(inspect.unwrap(function)).parameters.values())
    return [(one.name, one.default) for one in found if one.name != "self"]


def test_the_facade_calls_what_the_fake_offers_and_the_fake_offers_nothing_else() -> None:
    assert called() == offered()
    assert len(called()) > 30


@pytest.mark.parametrize("name", offered())
def test_the_real_bindings_have_the_function_with_the_same_parameters(name: str) -> None:
    assert signature(getattr(FakeLibrary, name)) == signature(getattr(pynvml, name))


def test_every_constant_of_the_room_is_one_of_the_real_bindings() -> None:
    used = {
        node.attr
        for path in ROOM.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pynvml"
    }
    assert [name for name in sorted(used) if not hasattr(pynvml, name)] == []
    assert "NVML_NVLINK_MAX_LINKS" in used


def test_only_the_facade_and_the_fake_import_the_bindings() -> None:
    importers = [
        path.name
        for path in sorted(ROOM.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and [alias.name for alias in node.names] == ["pynvml"]
    ]
    assert [name for name in importers if name != "nvml.py" and not name.startswith("fake")] == []


def test_every_class_of_the_bindings_errors_has_the_number_that_ours_are_found_by() -> None:
    codes = {name: value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    assert codes["NVML_ERROR_GPU_IS_LOST"] == 15
    for value in codes.values():
        assert pynvml.nvmlExceptionClass(value)().value == value


def real_library_is_absent() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound:
        return True
    except pynvml.NVMLError:
        return False
    pynvml.nvmlShutdown()
    return False


@pytest.mark.skipif("not real_library_is_absent()", reason="libnvidia-ml is there")
@pytest.mark.parametrize("ask", [Nvml.init, Nvml.count, Nvml.driver_version, Nvml.shutdown, Nvml.event_set])
def test_without_a_library_the_real_bindings_fail_as_the_fake_does(ask: Callable[[Nvml], object]) -> None:
    fake = FakeLibrary([])
    fake.faults.absent()
    said = []
    for nvml in (Nvml(), Nvml(fake)):
        with pytest.raises(NvmlError) as caught:
            ask(nvml)
        said.append((type(caught.value), caught.value.code, caught.value.name))
    assert said[0] == said[1]
    assert (said[0][0] is LibraryAbsentError) == (ask is Nvml.init)
