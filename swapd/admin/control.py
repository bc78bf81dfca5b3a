"""Names what the admin socket needs from the daemon; the agent provides it."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from swapd.core.ids import Duration, ModelName
from swapd.core.reasons import Rejection


@dataclass(frozen=True, slots=True)
class Result:
    """How an order ended."""

    ok: bool
    #: one sentence
    detail: str
    #: why not, in the words of HTTP and metrics; ``None`` when ``ok``, or when no such word fits
    reason: Rejection | None = None


class Control(Protocol):
    """What an operator may do. Every order returns when it is carried out or has failed.

    A cancelled call (the operator has left) does not undo the order.
    """

    def resolve(self, name: str) -> ModelName | None:
        """Return the configured model that a name or alias stands for."""

    async def status(self) -> dict[str, object]:
        """Return the status document; waits for nothing but its turns on the loop, likewise the others."""

    async def topology(self) -> dict[str, object]:
        """Return ``topology``, ``free``, ``models`` and ``state``, as a placer is told."""

    async def report(self) -> dict[str, object]:
        """Return the promotion report."""

    def timelines(self, model: ModelName | None) -> dict[str, object]:
        """Return the timelines of a model's last loads, or of everybody's; must not wait for anything."""

    def arrivals(self) -> AsyncGenerator[bytes, None]:
        """Yield the requests that are on record, as CSV: ``unix_s,model,service_s``, not in order of time."""

    async def model_list(self) -> str:
        """Return the models as CSV: ``model,gpus,load_s``, with the load times expected now."""

    async def cache(self) -> dict[str, object]:
        """Return the document of the weight cache."""

    async def prefetch(self, model: ModelName, *, wait: bool) -> Result | None:
        """Have a model's weights in the cache; ``None``: they are being fetched, and nobody is to ``wait`` for them."""

    async def verify(self, model: ModelName) -> Result:
        """Compare the cached copy of a model with its checksums."""

    async def remove(self, model: ModelName) -> Result:
        """Remove the cached copy of a model, unless it has to stay."""

    async def load(self, model: ModelName) -> Result:
        """Make a model resident; clears its cool-down."""

    async def unload(self, model: ModelName, cut_after: Duration | None) -> Result:
        """Take a model off the GPUs once its in-flight requests have ended, or are cut after ``cut_after``."""

    async def pin(self, model: ModelName, pinned: bool) -> Result:  # noqa: FBT001 - pinned is what the order is about
        """Pin a model, or take its pin away."""

    async def drain(self, cut_after: Duration | None) -> Result:
        """Take the node out of service; in-flight requests end first, or are cut after ``cut_after``."""

    async def undrain(self) -> Result:
        """Bring the node back into service."""

    async def reload(self) -> Result:
        """Read the configuration file again and apply it."""

    async def release_gpus(self) -> Result:
        """Let go of the driver, so that an operator can reset or partition GPUs; nothing new is loaded meanwhile."""

    async def acquire_gpus(self) -> Result:
        """Take the driver back and read the GPUs anew."""
