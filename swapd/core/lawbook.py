"""Says that a law of the core is broken, with the node's story."""

from swapd.core.node import Node


class LawBrokenError(AssertionError):
    """A law does not hold: a defect of the core."""


def law(node: Node, name: str, what: str, *, holds: bool) -> None:
    """Raise if a law does not hold."""
    if not holds:
        told = "\n".join(f"  {at / 1e9:.3f} s  {line}" for at, line in node.story.lines())
        raise LawBrokenError(f"{name}: {what}; the node's story:\n{told}")
