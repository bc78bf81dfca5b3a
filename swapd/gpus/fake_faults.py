"""Scripts what goes wrong in a fake NVML: which call fails, blocks or loses a GPU, and when.

A script is a list of rules that every call passes, in the order in which they were made. Nothing happens by chance
unless a probability with a seed was asked for.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pynvml

from swapd.gpus.fake_gpu import FakeGpu


@dataclass(eq=False, slots=True)
class _Rule:
    #: the function without its ``nvml`` prefix; ``None``: every function
    name: str | None
    #: calls about this GPU; ``None``: every call
    gpu: FakeGpu | None
    #: what happens before the call; it may raise
    action: Callable[[], object]
    #: matching calls to let pass first
    skip: int
    #: matching calls that it then happens to; ``None``: all
    times: int | None


class Faults:
    """The script of one fake; may be changed at any moment, from any thread."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []

    def apply(self, name: str, gpus: tuple[FakeGpu, ...]) -> None:
        """Let happen what is scripted for this call; raises the scripted error."""
        for rule in tuple(self._rules):
            if rule.name not in (None, name) or (rule.gpu is not None and rule.gpu not in gpus) or rule.times == 0:
                continue
            if rule.skip > 0:
                rule.skip -= 1
                continue
            if rule.times is not None:
                rule.times -= 1
            rule.action()

    def fail(
        self,
        name: str | None,
        error: Callable[[], Exception],
        *,
        gpu: FakeGpu | None = None,
        skip: int = 0,
        times: int | None = None,
    ) -> None:
        """Have a function (``None``: any) raise an error of the bindings, after ``skip`` calls, ``times`` times."""

        def raise_it() -> None:
            raise error()

        self.block(name, raise_it, gpu=gpu, skip=skip, times=times)

    def block(
        self,
        name: str | None,
        action: Callable[[], object],
        *,
        gpu: FakeGpu | None = None,
        skip: int = 0,
        times: int | None = None,
    ) -> None:
        """Have a function do something first: wait for an event that the test sets, or change a GPU."""
        self._rules.append(_Rule(name, gpu, action, skip, times))

    def lose(self, gpu: FakeGpu, *, after: int = 0) -> None:
        """Lose a GPU now, or after so many more calls about it."""

        def lose_it() -> None:
            gpu.lost = True

        if after == 0:
            lose_it()
        else:
            self.block(None, lose_it, gpu=gpu, skip=after, times=1)

    def lose_by_chance(self, gpu: FakeGpu, probability: float, *, seed: int) -> None:
        """Lose a GPU at any call about it, with a probability; the same seed loses it at the same call."""
        chance = random.Random(seed)  # noqa: S311 - a script, no secret

        def lose_perhaps() -> None:
            gpu.lost = gpu.lost or chance.random() < probability

        self.block(None, lose_perhaps, gpu=gpu)

    def heal(self, gpu: FakeGpu) -> None:
        """Bring a GPU back, and forget what was scripted for it."""
        gpu.lost = gpu.mute = False
        self._rules = [rule for rule in self._rules if rule.gpu is not gpu]

    def clear(self) -> None:
        """Forget the script; what it did to GPUs stays."""
        self._rules = []

    def absent(self, *, times: int | None = None) -> None:
        """Take the library away, for so many tries to begin."""
        self.fail("Init", pynvml.NVMLError_LibraryNotFound, times=times)

    def old_driver(self) -> None:
        """Take the functions away that a driver of version 470 does not have."""
        for name in ("DeviceGetMemoryInfo_v2", "DeviceGetGpuFabricInfoV", "DeviceGetNumaNodeId"):
            self.fail(name, pynvml.NVMLError_FunctionNotFound)
        for name in ("DeviceGetComputeRunningProcesses", "DeviceGetGraphicsRunningProcesses"):
            self.fail(name, pynvml.NVMLLibraryMismatchError)
