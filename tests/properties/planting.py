"""Exchanges functions of the core for bad ones, wherever they are used."""

import importlib
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import swapd.core

Function = Callable[..., Any]


def modules() -> list[ModuleType]:
    """Import and return every module of the core."""
    for found in pkgutil.walk_packages(swapd.core.__path__, "swapd.core."):
        importlib.import_module(found.name)
    return [module for name, module in sorted(sys.modules.items()) if name.startswith("swapd.core.")]


def exchange(patch: pytest.MonkeyPatch, name: str, bad: Callable[[Function], Function]) -> None:
    """Put ``bad(original)`` in place of the one function of this name, in every module that has imported it.

    The function is looked up by its name alone, so that a bug finds its place also after code has moved; that there
    is exactly one such function is asserted.
    """
    homes = {
        module.__name__: value
        for module in modules()
        for key, value in vars(module).items()
        if key == name and getattr(value, "__module__", None) == module.__name__
    }
    assert len(homes) == 1, f"{name} is defined in {sorted(homes) or 'no module'} of the core"
    (original,) = homes.values()
    replacement = bad(original)
    for module in modules():
        for key, value in list(vars(module).items()):
            if value is original:
                patch.setattr(module, key, replacement)


def instead(function: Function) -> Callable[[Function], Function]:
    """Return a maker that forgets the original."""
    return lambda _original: function


def pretending(attribute: str, neutral: Any) -> Callable[[Function], Function]:
    """Return a maker of functions that see another value in one attribute of their second argument."""

    def make(original: Function) -> Function:
        def bad(node: Any, subject: Any, **how: Any) -> Any:
            kept = getattr(subject, attribute)
            setattr(subject, attribute, neutral)
            try:
                return original(node, subject, **how)
            finally:
                setattr(subject, attribute, kept)

        return bad

    return make
