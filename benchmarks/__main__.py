"""Runs the benchmarks, each in its own process; prints their tables and the goals: `python -m benchmarks [NAME…]`."""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import goals

NAMES = (
    *("core", "placement", "placement_study", "policies", "simulator", "agreement"),
    *("footprint", "swap", "relay", "stalls"),
    "cache",
)


def main() -> int:
    """Run the chosen benchmarks; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=f"one of {', '.join(NAMES)}")
    names = list(parser.parse_args().names)
    with tempfile.NamedTemporaryFile() as file:
        environment = {**os.environ, goals.VARIABLE: file.name}
        commands = {name: [sys.executable, "-m", f"benchmarks.{name}"] for name in names}
        failed = [n for n in names if subprocess.run(commands[n], check=False, env=environment).returncode]
        goals.show(Path(file.name), names)
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
