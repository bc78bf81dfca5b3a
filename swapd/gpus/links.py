"""Finds which NVLinks are up and where they lead, and joins what all GPUs say into one symmetric count per pair.

* ``NotSupported`` and ``InvalidArgument`` at a link say nothing about the next one.
* A switch has no peers: two GPUs behind one have as many links between them as the one with fewer has to it. Where
  the other end cannot be told (virtual machines) it is taken for a switch.
* A link to a GPU that is not ours to see (left out of the container, or lost before its address was known) is no
  link to a switch, or strangers would seem linked.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from swapd.gpus.errors import InvalidArgumentError, LostError, NotSupportedError, NvmlError, optional
from swapd.gpus.nvml import MAX_LINKS, Field, Nvml
from swapd.gpus.readings import Device, RemoteKind


@dataclass(frozen=True, slots=True)
class LinkScan:
    """The NVLinks of one GPU that are up."""

    #: canonical address at the other end of each (empty: not known), and what is there
    remotes: tuple[tuple[str, RemoteKind], ...] = ()
    #: links whose state could not be read
    unread: int = 0
    #: of one link, one way, MB/s; 0: not known
    mbps: int = 0


@dataclass(frozen=True, slots=True)
class Joined:
    """How the GPUs of the node are linked, by position."""

    #: symmetric; all 0 on the diagonal
    links: tuple[tuple[int, ...], ...]
    #: links to a switch, by GPU
    switch: tuple[int, ...]
    #: pairs that disagree, with what each says
    uneven: tuple[tuple[int, int, int, int], ...]


def scan_links(nvml: Nvml, device: Device) -> LinkScan:
    """Walk over all links a GPU might have. Raises ``LostError``, and nothing for any other trouble."""
    active, unread = [], 0
    for link in range(MAX_LINKS):
        try:
            if nvml.link_active(device, link):
                active.append(link)
        except LostError:
            raise
        except (NotSupportedError, InvalidArgumentError):
            continue
        except NvmlError:
            unread += 1
    remotes = tuple(_remote(nvml, device, link) for link in active)
    return LinkScan(remotes, unread, _mbps(nvml, device, active[0]) if active else 0)


def _remote(nvml: Nvml, device: Device, link: int) -> tuple[str, RemoteKind]:
    bdf = optional(lambda: nvml.link_remote_bdf(device, link), otherwise="")
    return bdf, optional(lambda: nvml.link_remote_kind(device, link), otherwise=RemoteKind.UNKNOWN)


def _mbps(nvml: Nvml, device: Device, link: int) -> int:
    fields = ((Field.LINK_SPEED_COMMON, 0), (Field.LINK_SPEED, link))
    common, single = optional(lambda: nvml.field_values(device, fields), otherwise=(0, 0))
    return common or single or 0


def join(bdfs: Sequence[str], scans: Sequence[LinkScan | None]) -> Joined:
    """Count the links of each pair; ``None``: that GPU takes no part, whatever the others say of it."""
    direct = [Counter(bdf for bdf, _ in scan.remotes) if scan else Counter[str]() for scan in scans]
    switch = tuple(sum(_to_switch(bdf, kind, bdfs) for bdf, kind in scan.remotes) if scan else 0 for scan in scans)
    size = len(bdfs)
    links = [[0] * size for _ in range(size)]
    uneven = []
    for one, two in combinations(range(size), 2):
        if scans[one] is None or scans[two] is None:
            continue
        through = min(switch[one], switch[two])
        known = bdfs[one] and bdfs[two]
        there, back = (direct[one][bdfs[two]], direct[two][bdfs[one]]) if known else (0, 0)
        if there != back:
            uneven.append((one, two, there, back))
        links[one][two] = links[two][one] = min(there, back) or through
    return Joined(tuple(map(tuple, links)), switch, tuple(uneven))


def _to_switch(bdf: str, kind: RemoteKind, gpus: Sequence[str]) -> bool:
    elsewhere = bdf in gpus or kind is RemoteKind.GPU
    return kind is not RemoteKind.NPU and not (bdf and elsewhere)


def most_common(counts: Sequence[int]) -> int:
    """Return the count that most GPUs of one product have; of equally frequent ones the greatest."""
    frequency = Counter(counts)
    return max(frequency, key=lambda count: (frequency[count], count), default=0)
