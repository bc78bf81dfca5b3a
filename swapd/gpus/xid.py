"""Says what an Xid, the driver's number for an error of a GPU, means for the GPU that reported it.

The numbers and what to do about each come from NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors,
``analyzing-xid-catalog``); the six of applications are those that NVIDIA's device plugin for Kubernetes ignores
(``internal/rm/health.go``).

An Xid that is in neither table leaves the GPU in service and has it polled at once. Most of the catalog's other
entries say *restart the application* or *ignore*; those from 144 to 148 and 150 say either *ignore* or *reset* by a
sub-code that NVML does not pass on. A wrong alarm would cost every model on the GPU, while a real fault does not go
unseen: calls begin to fail, or the driver itself names a recovery action, which every poll reads.
"""

import enum
from collections.abc import Mapping
from typing import Final

_RESET: Final = "stop what uses it and reset the GPU (swapd release-gpus, nvidia-smi --gpu-reset)"
_REBOOT: Final = "reboot the node; if it comes again, have the hardware looked at"
_POWER_CYCLE: Final = "undo recent changes to the hardware and power-cycle the node"
_CHECK_POWER: Final = "check the GPU's power cable"


class XidKind(enum.StrEnum):
    """Whose fault an Xid reports."""

    #: a program on the GPU: the GPU stays in service
    APPLICATION = "application"
    #: the GPU, its memory or its links: nothing is placed there
    HARDWARE = "hardware"
    #: cannot be told from the number: the GPU stays in service and is polled at once
    UNDECIDED = "undecided"


APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})

#: what happened, and what to do
HARDWARE_XIDS: Final[Mapping[int, tuple[str, str]]] = {
    46: ("the GPU stopped processing", _RESET),
    48: ("uncorrectable ECC error", _RESET),
    54: ("auxiliary power is not connected", _CHECK_POWER),
    62: ("internal micro-controller halted", _RESET),
    64: ("a faulty row of memory could not be remapped", _RESET),
    74: ("NVLink error", _RESET),
    79: ("the GPU has fallen off the bus", _REBOOT),
    95: ("uncontained memory error", _RESET),
    110: ("security fault", _POWER_CYCLE),
    119: ("the GPU's system processor (GSP) does not answer", _RESET),
    120: ("error in the GPU's system processor (GSP)", _RESET),
    136: ("NVLink training failed", _RESET),
    140: ("ECC error that could not be contained", _RESET),
    143: ("the GPU could not be initialized", _RESET),
    149: ("an NVLink is down", _RESET),
    156: ("a faulty part of the GPU waits for its retirement", _RESET),
    158: ("fatal timeout", _RESET),
    167: ("fatal timeout on PCI Express", _REBOOT),
    169: ("internal micro-controller (SEC2) halted", _RESET),
}


def kind_of(xid: int) -> XidKind:
    """Return whose fault it is."""
    if xid in APPLICATION_XIDS:
        return XidKind.APPLICATION
    return XidKind.HARDWARE if xid in HARDWARE_XIDS else XidKind.UNDECIDED


def sentence(xid: int) -> str:
    """Say in one sentence what a hardware Xid means and what to do; raises ``KeyError`` for any other."""
    what, action = HARDWARE_XIDS[xid]
    return f"Xid {xid}, {what}: {action}"
