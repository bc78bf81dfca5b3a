"""Decides from polls and Xids which GPUs are out of reach or broken, and when they may serve again; pure.

Rules that hold here:

* A GPU that says it is lost is lost at once. One that fails in another way is lost after several polls in a row, so
  that a single bad call costs nobody a model.
* When every GPU fails in another way it is the driver that has failed, and no GPU's condition changes: engines that
  run need no NVML.
* A GPU that was lost or broken is taken back after several clean polls in a row: it answers, the driver asks for no
  recovery, no row of its memory waits for a reset, no uncorrectable error is left. The links that it had before a
  fault must be back, too; only a discovery can tell. Each time it is taken back the next time takes twice as long, so
  that one which breaks under load does not take a model with it every minute.

What the GPUs are and how they are joined is the discovery's; nothing here calls NVML.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from swapd.core.topology import Gpu, GpuHealth
from swapd.gpus.xid import XidKind, kind_of, sentence

#: ``nvmlDeviceGpuRecoveryAction_t``, those that concern the whole GPU. Left out: 3 (drain P2P) and 5 (recover the IMEX
#: domain), after which models on a single GPU and on a single node still run
_RECOVERY: Final[Mapping[int, str]] = {
    1: "a reset of the GPU",
    2: "a reboot of the node",
    4: "a drain and a reset of the GPU",
    6: "a reset of the GPU's PCI bus",
    7: "a reboot of the node",
}

#: half an hour of polls with the usual period and patience
_MOST_DOUBLINGS: Final = 6


class Answer(enum.StrEnum):
    """How a GPU answered a poll."""

    READ = "read"
    #: it says itself that it is gone
    LOST = "lost"
    #: any other error
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Signs:
    """What one poll found of one GPU; ``None``: the driver does not tell."""

    answer: Answer
    #: what it answered instead; empty: it was read
    error: str = ""
    #: ``nvmlDeviceGpuRecoveryAction_t``; 0: none needed
    recovery: int | None = None
    #: a faulty row of memory waits for a reset
    remap_pending: bool | None = None
    #: uncorrectable ECC errors since the last reset
    uncorrectable: int | None = None


@dataclass(frozen=True, slots=True)
class Patience:
    """How many polls in a row it takes."""

    #: that fail, until a GPU counts as lost or the driver as failed
    bad: int = 3
    #: that are clean, until a GPU is taken back
    clean: int = 6


@dataclass(frozen=True, slots=True)
class Condition:
    """What is known against one GPU."""

    #: one sentence: why it is out of reach; empty: it is not
    lost: str = ""
    #: one sentence: what is broken and what to do; empty: nothing
    fault: str = ""
    #: links that must be back before the fault is over
    nvlinks: int = 0
    #: polls in a row that failed
    failing: int = 0
    #: polls in a row that were clean
    clean: int = 0
    #: fewest uncorrectable ECC errors ever read; more mean that it has not been reset since
    uncorrectable: int | None = None
    #: how often it was taken back
    returns: int = 0

    @property
    def sound(self) -> bool:
        """Whether nothing is known against it."""
        return not (self.lost or self.fault)

    def ripe(self, patience: Patience) -> bool:
        """Whether it may be taken back if a discovery agrees."""
        return not self.sound and self.clean >= patience.clean << min(self.returns, _MOST_DOUBLINGS)


def after_poll(before: Condition, signs: Signs, patience: Patience) -> Condition:
    """Return a GPU's condition after a poll of it."""
    if signs.answer is Answer.LOST:
        return replace(
            before, lost=before.lost or f"{signs.error}; look for Xid 79 in the kernel log", failing=0, clean=0
        )
    if signs.answer is Answer.ERROR:
        failing = before.failing + 1
        lost = before.lost
        if failing >= patience.bad and not lost:
            lost = f"cannot be read: {signs.error}, {failing} polls in a row; look at the kernel log"
        return replace(before, lost=lost, failing=failing, clean=0)
    fewest = min((n for n in (before.uncorrectable, signs.uncorrectable) if n is not None), default=None)
    after = replace(before, failing=0, uncorrectable=fewest)
    wanted = _RECOVERY.get(signs.recovery or 0)
    if wanted is not None and not after.fault:
        after = replace(after, fault=f"the driver asks for {wanted}")
    return replace(after, clean=after.clean + 1 if _clean(after, signs) else 0)


def _clean(condition: Condition, signs: Signs) -> bool:
    worse = signs.uncorrectable is not None and signs.uncorrectable > (condition.uncorrectable or 0)
    return not signs.recovery and not signs.remap_pending and not worse


def after_xid(before: Condition, xid: int, gpu: Gpu) -> Condition:
    """Return a GPU's condition after it has reported an Xid."""
    if kind_of(xid) is not XidKind.HARDWARE:
        return before
    return replace(before, fault=sentence(xid), nvlinks=max(before.nvlinks, gpu.nvlinks), clean=0)


def after_discovery(before: Condition, gpu: Gpu, patience: Patience) -> Condition:
    """Return a GPU's condition after a discovery: it is taken back, or must be clean for as long again."""
    if gpu.health is GpuHealth.LOST:
        return replace(before, lost=before.lost or gpu.why or "cannot be read", clean=0)
    if not before.ripe(patience):
        return before
    if before.fault and gpu.nvlinks < before.nvlinks:
        return replace(before, lost="", clean=0)
    return replace(before, lost="", fault="", nvlinks=0, returns=before.returns + 1)


def driver_failed(conditions: Iterable[Condition], signs: Iterable[Signs]) -> bool:
    """Whether every GPU that should answer a poll failed in a way that speaks of the driver, not of a GPU."""
    asked = [sign for condition, sign in zip(conditions, signs, strict=True) if not condition.lost]
    return bool(asked) and all(sign.answer is Answer.ERROR for sign in asked)


def with_condition(gpu: Gpu, condition: Condition) -> Gpu:
    """Return a discovered GPU with what is known against it; why a discovery could not read it stays as it is."""
    if gpu.health is GpuHealth.LOST:
        return gpu
    if condition.lost:
        return replace(gpu, health=GpuHealth.LOST, why=condition.lost)
    if condition.fault:
        return replace(gpu, health=GpuHealth.FAILED, why=condition.fault)
    return gpu
