"""Runs the commands shown in ``simulate.md`` and writes what they print below each; takes a few minutes.

``python -m docs.simulations`` at the top of the repository. A command is the first line of a block, behind a ``$``;
what follows it in the block is replaced. A bar and a number after it (``| head -5``) keeps so many lines.
"""

import re
import shlex
import sys
from pathlib import Path

from click.testing import CliRunner
from swapd.cli.root import swapd

PAGE = Path(__file__).parent / "simulate.md"
BLOCK = re.compile(r"```\n\$ (swapd simulate [^\n]*)\n.*?```", re.DOTALL)


def commands(page: str) -> list[tuple[list[str], int | None]]:
    """Return the arguments of each command of a page, and how many lines of it are kept."""
    found = []
    for shown in BLOCK.findall(page):
        command, _, head = shown.partition(" | head -")
        found.append((shlex.split(command)[1:], int(head) if head else None))
    return found


def main() -> int:
    """Rewrite the page."""
    page = PAGE.read_text()
    printed = iter([output(arguments, lines) for arguments, lines in commands(page)])
    PAGE.write_text(BLOCK.sub(lambda block: f"```\n$ {block[1]}\n{next(printed)}\n```", page))
    return 0


def output(arguments: list[str], lines: int | None) -> str:
    """Return what a command prints."""
    sys.stderr.write(f"swapd {shlex.join(arguments)}\n")
    done = CliRunner().invoke(swapd, arguments)
    if done.exit_code:
        raise SystemExit(done.output)
    return "\n".join(line.rstrip() for line in done.stdout.rstrip().splitlines()[:lines])


if __name__ == "__main__":
    sys.exit(main())
