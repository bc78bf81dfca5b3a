"""Reads what must return to where it was once a daemon is alone again."""

import os
from dataclasses import dataclass

import psutil

from tests.fakes.daemon import Daemon, total, until

MIB = 2**20
#: rings that fill up and what the allocator keeps took 3 MiB in ten minutes with 110,000 requests and 500 killed
#: engines; 80 bytes for each of those requests, or 850 for each of 10,000 loads, would exceed it
RSS_SLACK = 8 * MIB
#: how long the long forms run that are bounded by time, seconds
LONG_S = int(os.environ.get("SOAK_SECONDS", "600"))


@dataclass(frozen=True, slots=True)
class Books:
    """What must return to where it was."""

    descriptors: int
    processes: int
    threads: int
    in_flight: float
    queued: float
    reserved_bytes: float


async def settled(daemon: Daemon) -> tuple[Books, int]:
    """Unload everything, wait until the daemon is alone, and read its books and its memory, bytes."""
    for name in sorted({instance["model"] for instance in (await daemon.status())["instances"]}):
        # It may have left by itself since the document was written.
        await daemon.cli("unload", name, check=False)
    await until(lambda: len(daemon.processes()) == 1, "all engines are gone")
    process = psutil.Process(daemon.process.pid)
    # Connections that clients have left are closed in the daemon a moment later.
    await until(lambda: _only_listeners(process), "clients' connections are gone")
    metrics = await daemon.metrics()
    await until(lambda: _only_listeners(process), "the scrape's connection is gone")
    books = Books(
        descriptors=process.num_fds(),
        processes=len(daemon.processes()),
        threads=process.num_threads(),
        in_flight=total(metrics, "swapd_inflight_requests"),
        queued=total(metrics, "swapd_queue_requests"),
        reserved_bytes=total(metrics, "swapd_gpu_reserved_bytes"),
    )
    return books, process.memory_info().rss


def _only_listeners(process: psutil.Process) -> bool:
    """Tell whether the daemon has no TCP connection open."""
    return all(connection.status == psutil.CONN_LISTEN for connection in process.net_connections("tcp"))
