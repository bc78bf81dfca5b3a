"""What the daemon loads: nothing that it does not need."""

import subprocess
import sys

LARGE = ("rich", "pynvml", "anyio._backends._asyncio", "matplotlib", "huggingface_hub", "s3fs")
CODE = f"""
import sys
from swapd.cli.root import swapd
try:
    swapd(["serve", "/nowhere/swapd.yaml", "--log-format", "json"])
except SystemExit as end:
    print(end.code, [name for name in {LARGE} if sys.modules.get(name)])
"""


def test_a_daemon_loads_neither_what_is_for_terminals_nor_what_few_nodes_need() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=100)
    assert (done.stdout, "/nowhere/swapd.yaml" in done.stderr) == ("1 []\n", True)
