"""Writes the pages that are made from the code; with `--check` only says which of them are out of date."""

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

from swapd.config import document as config_document
from swapd.core import lifecycle
from swapd.metrics import document as metrics_document

DOCS = Path(__file__).parent


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each generated page and what it should contain."""
    yield DOCS.parent / config_document.REFERENCE, config_document.reference()
    yield DOCS.parent / config_document.JSON_SCHEMA, config_document.json_schema()
    yield DOCS / "metrics.md", metrics_document.render()
    architecture = DOCS / "architecture.md"
    diagram = f"```mermaid\n{lifecycle.as_mermaid()}```\n\n{lifecycle.as_markdown()}"
    yield architecture, with_part(architecture.read_text(), "lifecycle", diagram)


def with_part(text: str, name: str, part: str) -> str:
    """Return a page with the part between its two markers replaced."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"the markers of {name} are missing")
    return f"{before}{begin}{part}{end}{after}"


def main() -> int:
    """Write or check every page; return 1 when a checked page is out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when a page is out of date")
    check = parser.parse_args().check
    stale = 0
    for path, wanted in pages():
        present = path.read_text() if path.exists() else ""
        if present == wanted:
            continue
        stale += 1
        if check:
            before, after = (text.splitlines(keepends=True) for text in (present, wanted))
            sys.stdout.writelines(difflib.unified_diff(before, after, str(path)))
            print(f"{path} is out of date: make docs")
        else:
            path.write_text(wanted)
            print(f"wrote {path}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
