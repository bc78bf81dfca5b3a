"""Remembers for a moment which models are ready, for the records of clients that leave in crowds.

Asking the core costs as much as many requests; what is known of the last moment is good enough for a label.
"""

from collections.abc import Callable, Mapping
from typing import Final

from swapd.core.ids import MILLISECOND, Instant, ModelName
from swapd.core.reasons import State
from swapd.core.view import NodeView

_FRESH: Final = 100 * MILLISECOND


class ReadyModels:
    """The ready models and since when they are, at most 100 ms old."""

    def __init__(self, view: Callable[[], NodeView], now: Callable[[], Instant]) -> None:
        self._view = view
        self._now = now
        self._since: Mapping[ModelName, Instant] = {}
        self._asked: Instant | None = None

    def since(self, model: ModelName) -> Instant | None:
        """Return since when a model is ready; ``None``: it is not."""
        now = self._now()
        if self._asked is None or now - self._asked > _FRESH:
            self._asked = now
            instances = (row.instance for row in self._view().models)
            self._since = {
                instance.model: instance.since
                for instance in instances
                if instance is not None and instance.state is State.READY
            }
        return self._since.get(model)
