"""Keeps example and exit codes of a command's docstring line by line; click would fill them into one paragraph.

So are other indented paragraphs. A docstring that indents everything after its first line looks as if it indented
nothing, which is why these two are known by their first word.
"""

import inspect
import textwrap
from typing import Any

import click


def _kept(text: str | None) -> str | None:
    """Mark the paragraphs to be kept with click's sign for "do not rewrap"."""
    return None if text is None else "\n\n".join(map(_paragraph, inspect.cleandoc(text).split("\n\n")))


def _paragraph(part: str) -> str:
    if part.startswith(("Example:", "Exit codes:")):
        part = textwrap.indent(part, "  ")
    return f"\b\n{part}" if part.startswith(" ") else part


class Command(click.Command):
    """A command whose help keeps its example and exit codes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "help": _kept(kwargs.get("help"))})


class Group(click.Group):
    """A group whose help keeps its example and exit codes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "help": _kept(kwargs.get("help"))})
