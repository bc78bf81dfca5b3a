"""Runs the benchmarks, each in a process of its own, and prints their tables: `python -m benchmarks [NAME…]`."""

import argparse
import subprocess
import sys

NAMES = (
    "core",
    "placement",
    "placement_study",
    "policies",
    "simulator",
    "agreement",
    "footprint",
    "swap",
    "relay",
    "cache",
)


def main() -> int:
    """Run the chosen benchmarks; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=f"one of {', '.join(NAMES)}")
    names = parser.parse_args().names
    failed = [n for n in names if subprocess.run([sys.executable, "-m", f"benchmarks.{n}"], check=False).returncode]
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
