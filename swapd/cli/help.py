"""Keeps indented paragraphs of a command's docstring as they are written; click would fill them into one."""

import inspect
from typing import Any

import click


def _kept(text: str | None) -> str | None:
    """Mark the indented paragraphs with click's sign for "do not rewrap"."""
    if text is None:
        return None
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"\b\n{part}" if part.startswith(" ") else part for part in paragraphs)


class Command(click.Command):
    """A command whose help keeps indented paragraphs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "help": _kept(kwargs.get("help"))})


class Group(click.Group):
    """A group whose help keeps indented paragraphs."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "help": _kept(kwargs.get("help"))})
